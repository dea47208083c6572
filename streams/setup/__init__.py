"""The way to one's own models: a configuration file from what servers say of themselves, and a check of one.

starter     a commented configuration file, from the models that servers list
checking    what is wrong with a deployment's configuration, and what to do about it
"""
