"""The algorithms: pure, and bound to topics by `streams`.

catalogue   what can be chosen: actions, models, objectives, and what a search costs
grading     is an answer right: extraction, exact rules, mathematics and programs
embedding   a text becomes a unit vector, by one of `encoders`; `minilm` is the one that ships, and loads onnxruntime
serving     engines: vLLM in process, servers over HTTP, recordings
bandit      the policies: which configuration a query gets
search      Decision and Verification to SearchStep and Answer: the search forest
verifier    SearchStep to Verification: process reward models
reward      Answer, Feedback and Due to Reward: cost, grade and the reward join
decider     Context to Decision, Reward to learning; the learner's log

Imports go down this list only as `pyproject.toml` allows.
"""
