"""How much KV cache an engine is given: one sequence of full length, or a batch of usual ones."""

GIB = 1 << 30
USUAL_TOKENS = 1024  # a question and a path of steps, generously
SPARE_BLOCKS = 2  # vLLM keeps a null block and rounds up


def kv_cache_bytes(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    number_bytes: int,
    context_tokens: int,
    sequences: int,
    block_tokens: int = 128,
    wanted_bytes: int | None = None,
) -> int:
    """Return the bytes of KV cache for one engine.

    vLLM refuses to start when one sequence of full length does not fit. Beyond that, what the catalogue wants;
    or else room for `sequences` usual ones, but not more than 1 GiB: a cache too small costs preemptions, one
    too large starves the next engine.

    Args:
        layers: Attention layers.
        kv_heads: KV heads a layer.
        head_dim: Width of one head.
        number_bytes: Bytes of one cached number.
        context_tokens: Longest prompt plus output.
        sequences: Most sequences in one batch.
        block_tokens: Tokens a KV block.
        wanted_bytes: What the catalogue says; None where it says nothing.

    >>> (
    ...     kv_cache_bytes(
    ...         layers=2, kv_heads=1, head_dim=32, number_bytes=4, context_tokens=512, sequences=64
    ...     )
    ...     >> 20
    ... )
    32
    """
    token_bytes = 2 * layers * kv_heads * head_dim * number_bytes
    blocks = -(-context_tokens // block_tokens) + SPARE_BLOCKS
    least_bytes = token_bytes * blocks * block_tokens
    usual_bytes = token_bytes * min(sequences * USUAL_TOKENS, GIB // token_bytes)
    return max(least_bytes, usual_bytes if wanted_bytes is None else wanted_bytes)
