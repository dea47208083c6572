"""The contextual policy: exact ridge regression on z_q ⊗ g_a, of 20 to 150 dimensions.

policy     scores, learns and paces
options    what a user sets of it
design     the vector x = z_q ⊗ g_a
estimates  what is learned: the expected terms of every action for a query
ridge      the regression, exact to the bit
pacer      accounts of objectives by mean cost and accuracy, and what their price λ aims at
outlook    λ and what cannot be met, solved on the predictions for recent queries
history    history as a table of outcomes
fitting    what the design takes from history
lessons    a policy without a prior relearns from its own first outcomes
prior      a complete state made from history, to begin from
"""

from agents.decider.policies.contextual import options  # registers it

__all__ = ["options"]
