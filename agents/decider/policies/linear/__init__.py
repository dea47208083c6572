"""Policies that are linear in the joint vector x = [s_q; f_a], over one A = λI + Σ x xᵀ.

linucb      UniScale's LinUCB (Alg. 1); α = 0 is Greedy
thompson    linear Thompson sampling
forgetting  LinUCB with a sliding window, or with a discount
gram        A and its inverse, exact and cheap
"""

from agents.decider.policies.linear import forgetting, linucb, thompson  # each registers its policies

__all__ = ["forgetting", "linucb", "thompson"]
