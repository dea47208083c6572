"""Measures that need no loop: off-policy estimates, cost at equal accuracy."""
