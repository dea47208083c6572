"""Makes recordings: runs every (question, configuration) for real and writes the outcomes to one columnar file."""
