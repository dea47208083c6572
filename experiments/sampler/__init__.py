"""The plain sampler: batched inference with small checkpoints in PyTorch, which makes recordings fast."""
