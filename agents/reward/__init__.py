"""Answer, Feedback and Due to Reward: the cost of a search, the grade of its answer, and the join of all records.

The scalar reward (Eq. 4) itself is `schemas.objective.ObjectiveInForce.reward`, which needs only its record.
"""
