"""The executor: the searches of one group of models, and their engines."""
