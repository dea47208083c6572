"""Times decoding and prompt reading on a GPU, for Qwen3 architectures with random weights.

A pass is transformers' own Qwen3 in bfloat16: each layer compiled by torch, with FlashAttention (through SDPA) on a
static cache as long as the context, and all of it captured as one CUDA graph, so that the GPU is timed rather than the
launching of its kernels. Each token is the most probable one; tokenizer, scheduler and network are left out.

This file needs torch and transformers but nothing from the product, so it also runs where only those are installed:

    python bench/gpu_timing.py < plan.json > measured.json
"""

import gc
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, NamedTuple


class Shape(NamedTuple):
    """The fields of a checkpoint's config.json that determine the sizes of a Qwen3's matrices."""

    hidden: int
    mlp: int
    layers: int
    query_heads: int
    kv_heads: int
    tied: bool  # whether the embedding is also the output matrix
    head_dim: int = 128
    vocabulary: int = 151_936

    @property
    def kv_bytes(self) -> int:
        """Return how many bytes one position's keys and values take in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


QWEN3: Final = {
    "qwen3-0.6b": Shape(1024, 3072, 28, 16, 8, tied=True),
    "qwen3-1.7b": Shape(2048, 6144, 28, 16, 8, tied=True),
    "qwen3-4b": Shape(2560, 9728, 36, 32, 8, tied=True),
    "qwen3-8b": Shape(4096, 12288, 36, 32, 8, tied=False),
    "qwen3-14b": Shape(5120, 17408, 40, 40, 8, tied=False),
    "qwen3-32b": Shape(5120, 25600, 64, 64, 8, tied=False),
}
"""The shapes, keyed by the models' names in the catalogue `qwen3`."""

_REPETITION_S: Final = 0.1


class NoGPU(Exception):
    """There is no CUDA device, or torch or transformers is missing."""


def measure(plan: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Return the device, its ceilings, and the seconds for each model's steps and prompts.

    Args:
        plan: `models` (names in QWEN3), `batches`, `contexts` and `prompts` (tokens), `repetitions`.
        say: Called with a line for each figure.

    Raises:
        NoGPU: There is no CUDA device, or torch or transformers is missing.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise NoGPU(f"no {error.name}: install torch with CUDA, and transformers") from None
    if not torch.cuda.is_available():
        raise NoGPU(f"torch {torch.__version__} sees no CUDA device")
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "device": properties.name,
        "memory_gb": round(properties.total_memory / 1e9, 1),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "transformers": transformers.__version__,
        },
        "plan": plan,
        "ceilings": _ceilings(plan["repetitions"]),
        "models": {},
    }
    say(f"{properties.name}: {found['ceilings']}")
    for name in plan["models"]:
        began = time.monotonic()
        found["models"][name] = _model(name, plan, say)
        say(f"{name}: {time.monotonic() - began:.0f} s")
    return found


def _model(name: str, plan: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds for one model's steps and prompts. Entries that do not fit in the GPU's memory say so."""
    import torch

    model = build(QWEN3[name], "cuda")
    parameters = sum(each.numel() for each in model.parameters())
    found: dict[str, Any] = {
        "parameters": parameters,
        "weight_bytes": parameters * 2,
        "compiled_against_eager": _compiled_against_eager(model),
        "decode": [],
        "prefill": [],
    }
    shapes = [("decode", batch, context) for batch in plan["batches"] for context in plan["contexts"]]
    shapes += [("prefill", 1, tokens) for tokens in plan["prompts"]]
    for kind, batch, context in shapes:
        row: dict[str, Any] = {"batch": batch, "context": context}
        needed = batch * context * QWEN3[name].kv_bytes + (2 << 30)
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if needed > free:
            row["left_out"] = f"needs {needed / 1e9:.0f} GB beside the weights; {free / 1e9:.0f} GB are free"
        else:
            new = 1 if kind == "decode" else context
            row |= _timed(model, batch, context, new, plan["repetitions"])
        found[kind].append(row)
        say(f"{name} {kind} {row}")
    del model
    torch._dynamo.reset()  # compiled code may keep the weights alive
    gc.collect()
    torch.cuda.empty_cache()
    return found


def build(shape: Shape, device: str) -> Any:
    """Return transformers' Qwen3ForCausalLM in a given shape, with random bfloat16 weights on a device."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    finally:
        torch.set_default_dtype(before)
    return model.requires_grad_(False).train(False)


class Slots:
    """One layer's keys and values, of a fixed length. A pass writes the last positions and reads all of them.

    Every layer has its own, so that torch compiles a single layer rather than one for each index in a shared cache.
    """

    def __init__(self, keys: Any, values: Any, written: Any) -> None:
        self.keys, self.values, self.written = keys, values, written

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write the new positions and return all positions, as a transformers cache does."""
        self.keys.index_copy_(2, self.written, keys)
        self.values.index_copy_(2, self.written, values)
        return self.keys, self.values


def slots_of(model: Any, batch: int, context: int, new: int) -> list[Slots]:
    """Return a cache of random keys and values for each layer; a pass writes its last `new` positions."""
    import torch

    config, like = model.config, model.lm_head.weight
    size = (batch, config.num_key_value_heads, context, config.head_dim)
    written = torch.arange(context - new, context, device=like.device)

    def drawn() -> Any:
        return torch.randn(size, device=like.device, dtype=like.dtype)

    return [Slots(drawn(), drawn(), written) for _ in range(config.num_hidden_layers)]


def layer_pass(layer: Any, hidden: Any, cos: Any, sin: Any, slots: Slots) -> Any:
    """Return the hidden states after one layer. Without a mask, SDPA may use FlashAttention with grouped queries."""
    return layer(hidden, attention_mask=None, past_key_values=slots, position_embeddings=(cos, sin))


def whole_pass(model: Any, tokens: Any, slots: Sequence[Slots], layer_pass: Callable[..., Any]) -> Any:
    """Return the logits after the last token. The tokens belong to the positions that the slots write.

    Args:
        model: A model from `build`.
        tokens: The tokens, of shape [batch, new positions].
        slots: The slots from `slots_of`.
        layer_pass: `layer_pass`, or a compiled form of it.
    """
    hidden = model.model.embed_tokens(tokens)
    cos, sin = model.model.rotary_emb(hidden, slots[0].written[None])
    for layer, own in zip(model.model.layers, slots, strict=True):
        hidden = layer_pass(layer, hidden, cos, sin, own)
    return model.lm_head(model.model.norm(hidden[:, -1]))


@contextmanager
def _compiled() -> Iterator[Callable[..., Any]]:
    """Compile `layer_pass` once for the shapes it will see; more than one compilation is an error."""
    import torch
    from torch._dynamo.utils import counters
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield torch.compile(layer_pass, dynamic=False, fullgraph=True)
    if counters["stats"]["unique_graphs"] != 1:
        raise RuntimeError(f"{counters['stats']['unique_graphs']} compilations of one layer: wanted one")


def _compiled_against_eager(model: Any) -> float:
    """Return the relative difference between the compiled pass's logits and transformers' own forward pass."""
    import torch

    tokens = torch.randint(model.config.vocab_size, (2, 96), device="cuda")
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits[:, -1].float()
    for layer in model.model.layers:
        layer.self_attn.layer_idx = 0  # otherwise torch compiles each layer for its own index
    slots = slots_of(model, 2, 96, 96)
    with torch.no_grad():
        whole_pass(model, tokens, slots, layer_pass)
    # The last token again, by itself: a step that reads what the prompt left in the cache.
    for own in slots:
        own.written = own.written[-1:]
    with _compiled() as compiled:
        last = whole_pass(model, tokens[:, -1:], slots, compiled).float()
    return float((last - expected).norm() / expected.norm())


def _timed(model: Any, batch: int, context: int, new: int, repetitions: int) -> dict[str, Any]:
    """Return the seconds for one pass that computes `new` positions of a context for each sequence in a batch."""
    import torch

    tokens = torch.randint(model.config.vocab_size, (batch, new), device="cuda")
    slots = slots_of(model, batch, context, new)
    with _compiled() as compiled:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(2):
                whole_pass(model, tokens, slots, compiled).argmax(-1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            logits = whole_pass(model, tokens, slots, compiled)
            chosen = logits.argmax(-1)
    chosen.fill_(-1)
    taken = _repeated(graph.replay, repetitions)
    if not (int(chosen.min()) >= 0 and bool(torch.isfinite(logits).all())):
        raise RuntimeError(f"batch {batch}, context {context}: no tokens, or logits that are not finite")
    del graph, slots, logits, chosen, compiled
    gc.collect()
    torch.cuda.empty_cache()
    return taken


def _repeated(run: Callable[[], Any], repetitions: int) -> dict[str, Any]:
    """Return the median, least and most seconds per run; each repetition is enough runs to fill a tenth of a second."""

    def one(runs: int) -> float:
        begin, end = _event(), _event()
        begin.record()
        for _ in range(runs):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / runs

    one(3)
    runs = max(3, math.ceil(_REPETITION_S / one(3)))
    one(runs)
    taken = [one(runs) for _ in range(repetitions)]
    return {
        "seconds": _short(median(taken)),
        "least": _short(min(taken)),
        "most": _short(max(taken)),
        "runs": runs,
    }


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def _ceilings(repetitions: int) -> dict[str, float]:
    """Return the card's limits: bytes per second for a copy, read and written, and FLOP/s for a matrix product."""
    import torch

    source = torch.randint(255, (4 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = _repeated(lambda: target.copy_(source), repetitions)
    source = target = torch.empty(0)
    torch.cuda.empty_cache()
    left, right = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = _repeated(lambda: left @ right, repetitions)
    return {
        "copy_tb_per_s": round(2 * (4 << 30) / copy["seconds"] / 1e12, 3),
        "bf16_tflop_per_s": round(2 * 8192**3 / product["seconds"] / 1e12, 1),
    }


if __name__ == "__main__":
    found = measure(json.load(sys.stdin), lambda line: print(line, file=sys.stderr, flush=True))
    json.dump(found, sys.stdout)
