"""The rooms, in stream order; each is a pure core, bound to its topics by `streams`.

space        what can be chosen: actions, the model catalogue, action descriptions (App. B.2)
serving      vLLM in process and model servers over HTTP; lies below the executor and the verifier
embedder     Query to Context: the text becomes a unit vector
decider      Context to Decision, Reward to learning: the bandit policies
executor     Decision and Verification to SearchStep and Answer: the search forest and its engines
verifier     SearchStep to Verification: process reward models
aggregator   Answer, Feedback and Due to Reward: price, grade and the reward join

Rooms never import one another: each runs in a process of its own.
"""
