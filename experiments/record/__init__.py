"""Recording: every (question, configuration) run for real and written to one columnar file."""
