"""The contextual policy: exact ridge regression on z_q ⊗ g_a, of 20 to 150 dimensions.

policy  scores, learns and paces
design  the vector x = z_q ⊗ g_a
ridge   the regression, exact to the bit
pacer   the price λ at which an objective by mean cost or accuracy is met
prior   a complete state made from history, to begin from
"""

from agents.decider.policies.contextual import policy  # registers it

__all__ = ["policy"]
