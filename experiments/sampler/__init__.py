"""The plain sampler: batched inference of small checkpoints in PyTorch, which makes recordings fast."""
