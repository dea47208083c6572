"""The contextual policy: exact ridge regression on z_q ⊗ g_a, of 20 to 150 dimensions.

policy     learns, and answers for all parts
options    what a user sets of it
design     the vector x = z_q ⊗ g_a
estimates  what is learned: the expected terms of every action for a query
ridge      the regression, exact to the bit
drift      models whose searches have come to cost something else than was learned
ranking    predicted reward, priced optimism, caution
caution    a query leaves the incumbent only for what is predicted to be clearly better
pacing/    the price λ of objectives by mean cost and by accuracy
history/   what is taken from history: a prior, the query transform
"""

from agents.decider.policies.contextual import options  # registers it

__all__ = ["options"]
