"""Training: generators, and the verifiers that judge their steps."""
