"""Answer, Feedback and Due to Reward: the cost of a search, the grade of its answer, and the join of all records.

The scalar reward itself (Eq. 4) is computed by `schemas.objective.ObjectiveInForce.reward`.
"""
