"""Setting up a deployment of your own models: writing a configuration file, and checking one.

starter     writes a commented configuration file from the models that servers list
checking    finds what is wrong with a deployment's configuration, and what to do about it
"""
