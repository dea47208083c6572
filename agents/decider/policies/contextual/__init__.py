"""The contextual policy: exact ridge regression on z_q ⊗ g_a, of 20 to 150 dimensions.

policy     learns, and answers for all parts
options    what a user sets of it
design     the vector x = z_q ⊗ g_a
estimates  what is learned: the expected terms of every action for a query
ridge      the regression, exact to the bit
ranking    predicted reward, priced optimism, caution
caution    a query leaves the incumbent only for what is predicted to be clearly better
drift      models whose searches have come to cost something else than was learned
pacer      accounts of objectives by mean cost and accuracy, and what their price λ aims at
forecast   what would be chosen for recent queries at any λ, and the λ that meets a target
outlook    the recent queries, λ now, and what cannot be met
history    history as a table of outcomes
fitting    what the design takes from history
lessons    a policy without a prior relearns from its own first outcomes
prior      a complete state made from history, to begin from
"""

from agents.decider.policies.contextual import options  # registers it

__all__ = ["options"]
