"""The decider: Context in, Decision out; Reward in, learning.

decider    what it decides and learns, record by record
rows       the rows of the learner's log
rewards    what a reward does to the row of its decision
fold       from rows to policy state
snapshot   the state as records, and what may go from the log once they are written
recovery   a learner from its log; `repair` finds what keeps one from starting
verify     does the log reproduce every Decision?
preview    what would be chosen now; changes nothing
"""
