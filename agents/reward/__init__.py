"""Answer, Feedback and Due to Reward: a search's cost, its answer's grade, and the join of all records.

The scalar reward itself (Eq. 4) is computed by `schemas.objective.ObjectiveInForce.reward`.
"""
