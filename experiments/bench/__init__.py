"""Benchmarks of the pure parts: `python -m experiments.bench learner --out out/bench/learner.json`."""
