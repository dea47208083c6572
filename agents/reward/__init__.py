"""Answer, Feedback and Due to Reward: what a search cost, whether it was right, and the join of all three.

The scalar reward (Eq. 4) itself is `schemas.objective.ObjectiveInForce.reward`: it needs nothing but its record.
"""
