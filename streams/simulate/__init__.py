"""Deterministic simulation: a seed draws a deployment, its traffic and faults; then all invariants are checked.

`world` draws the deployment and its traffic, `faults` draws and injects faults, `history` runs both and judges the
outcome, `run` does that for many seeds. Nothing here reads a clock, sleeps or depends on hash order: the same seed
gives the same bytes.
"""
