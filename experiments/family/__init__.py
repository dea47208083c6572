"""The mini family, second edition: tasks, tokenizer, training and evaluation of six generators and two verifiers.

It stands beside `experiments.mini`, which made the models that ship today, and replaces it when `models/` switches.
"""
