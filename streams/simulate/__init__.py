"""Deterministic simulation: a deployment, its traffic and faults are drawn from a seed, and all invariants are checked.

`world` draws the deployment and its traffic, `faults` draws and injects faults, `life` runs the deployment, `judge`
checks the outcome (with `attempts` and `fold`), and `run` does all this for many seeds. Nothing in a history reads the
machine's clock, sleeps or depends on hash order, so the same seed always produces the same bytes.
"""
