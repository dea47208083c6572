"""The learner's log: what is written of every decision and reward, and how the learner comes back from it.

rows       one row per decision
rewards    what a reward does to its row
events     the one order of decisions and updates
fold       from rows to policy state
snapshot   policy and open rows in chunks, so that the log before them can go
ended      ids of queries whose rows have gone
repair     what of a damaged log can be kept
reproduce  was every Decision the one that the log calls for?
"""
