"""The questions of the family: quick ones, stories told from a world's state, procedures, programs."""
