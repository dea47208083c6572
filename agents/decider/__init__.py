"""The decider turns Contexts into Decisions and learns from Rewards.

decider          one shard's learner: decides, learns and retries, record by record
eligibility      which configurations a query may get
decisions        from Contexts to Decisions, each with its row
categories       properties of a request besides its text
sessions         the last turn of each conversation, whose configuration later turns keep
failed_attempts  what happens after a failed attempt
rows             the rows of the learner's log
rewards          how a reward changes its decision's row
policy_fold      rows in, policy state out
snapshot         the state as records, and which rows may leave the log once they are written
recovery         restores a learner from its log; `repair` finds and removes rows that prevent it from starting
verify           replays the log and checks that it reproduces every Decision
preview          what would be chosen now, without changing state
"""
