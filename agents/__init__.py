"""The algorithms. They are pure; `streams` connects them to topics.

catalogue   the choices: actions, models, objectives, and search costs
grading     whether an answer is right: extraction, exact rules, mathematics and programs
embedding   text to unit vector, using one of `encoders`; `minilm` is the default and loads onnxruntime
serving     engines: vLLM in process, servers over HTTP, recordings
bandit      the policies, which choose a configuration for each query
search      the search forest: Decision and Verification to SearchStep and Answer
verifier    process reward models: SearchStep to Verification
reward      cost, grade and the reward join: Answer, Feedback and Due to Reward
decider     Context to Decision, Reward to learning; the learner's log

`pyproject.toml` defines which packages may import which others.
"""
