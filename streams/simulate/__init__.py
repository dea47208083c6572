"""Deterministic simulation: a seed draws a deployment, its traffic and what goes wrong; then everything must add up.

`world` draws the deployment and its traffic, `faults` draws what goes wrong and does it, `history` lives through both
and judges the outcome, `run` does that for many seeds. Nothing here reads a clock, sleeps or depends on the order of a
hash: the same seed gives the same bytes.
"""
