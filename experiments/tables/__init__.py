"""Every table of the report, as nested dictionaries of figures."""
