"""The learner's log: what is written of every decision and reward, and how the learner recovers from it.

rows       one row per decision
offers     which actions could be chosen when
rewards    what a reward does to its row
events     the one order of decisions and updates
fold       from rows to policy state
manifest   which snapshots there are, and what each consists of
snapshot   policy and open rows in chunks, which replace the log before them
retention  what a snapshot carries, and what may be deleted
ended      ids of queries whose rows have gone
recovery   a learner from its log
repair     what of a damaged log can be kept
reproduce  was every Decision the one that the log calls for?
"""
