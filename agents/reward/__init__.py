"""Answer, Feedback and Due to Reward: what a search cost, whether it was right, and the join of all three."""
