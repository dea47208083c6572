"""The decider turns Contexts into Decisions and learns from Rewards.

decider          decisions and learning, record by record
categories       properties of a request besides its text
sessions         the last turns of conversations, whose configuration later turns keep
failed_attempts  what follows an attempt that failed
rows             the rows of the learner's log
rewards          how a reward changes the row of its decision
policy_fold      from rows to policy state
snapshot         the state as records, and the rows that may be removed from the log once these are written
recovery         a learner from its log; `repair` finds rows that prevent it from starting
verify           whether the log reproduces every Decision
preview          what would be chosen now, without changing state
"""
