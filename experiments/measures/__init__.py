"""Measures that need no loop: off-policy estimates, cost at equal accuracy, what a verifier's scores are worth."""
