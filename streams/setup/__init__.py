"""Sets up a deployment of your own models: writes a configuration file, or checks one.

starter     writes a commented configuration file from the models that servers list
checking    finds what is wrong with a deployment's configuration, and what to do about it
"""
