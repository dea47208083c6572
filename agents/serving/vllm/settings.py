"""What to host and how: one frozen struct a model, one for the process.

Defaults suit small models on a CPU; on a GPU set `dtype="bfloat16"`, `kv_cache_bytes` to what the card
can spare for this model, and `block_tokens=None` (vLLM chooses).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

MIB = 1 << 20


class HostedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model for one vLLM engine.

    Attributes:
        name: What requests call it; unique in a host.
        path: A Hugging Face folder, or a hub id when `HostSettings.offline` is off.
        runner: `generate` for a language model, `pooling` for a process reward model.
        dtype: Weights and activations. float32 on a CPU: the paper's verifier scores feed a bound.
        context_tokens: Longest prompt plus output; None takes the checkpoint's own.
        max_sequences: Most sequences in one batch of the engine.
        kv_cache_bytes: KV cache of this engine alone. None leaves it to vLLM, which takes the machine's
            memory and so suits one engine a process only.
        block_tokens: Tokens a KV block. Prefix caching shares whole blocks, and vLLM's CPU default of 128
            is longer than most of our prompts. None leaves it to vLLM.
        prefix_caching: Share the KV of equal prompt prefixes; every path of a search has one.
        step_tag_id: For `pooling`: return the rows of this token alone (STEP pooling). None returns a
            row for every token (ALL pooling).
        arguments: Anything else for vLLM's `EngineArgs`, as is; wins over the fields above.
    """

    name: str
    path: str
    runner: Literal["generate", "pooling"] = "generate"
    dtype: str = "float32"
    context_tokens: int | None = None
    max_sequences: int = 64
    kv_cache_bytes: int | None = 128 * MIB
    block_tokens: int | None = 32
    prefix_caching: bool = True
    step_tag_id: int | None = None
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name: must not be empty")
        if self.step_tag_id is not None and self.runner != "pooling":
            raise ValueError(
                f"step_tag_id: {self.name!r} is a generator; only runner 'pooling' has step tags"
            )
        for field in ("context_tokens", "max_sequences", "kv_cache_bytes", "block_tokens"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field}: {value} of {self.name!r} is not a positive number")


class HostSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All engines of one process.

    Attributes:
        models: What to host from the start, in the order of loading; more can be loaded later.
        offline: Never ask the Hugging Face hub; every path must be a folder.
        threads: Torch threads of the engine thread; None leaves torch's choice.
        log_level: vLLM's own logging, unless VLLM_LOGGING_LEVEL is already in the environment.
        start_timeout_s: Longest wait for all models together; the first start on a machine is the slowest.
    """

    models: tuple[HostedModel, ...]
    offline: bool = True
    threads: int | None = None
    log_level: str = "ERROR"
    start_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"models: {', '.join(twice)} named twice")

    @classmethod
    def of(cls, models: Sequence[HostedModel], **others: Any) -> Self:
        """Return settings for these models; `others` are the remaining fields."""
        return cls(models=tuple(models), **others)


def checkpoint_path(checkpoint: str, folder: str) -> str:
    """Return a checkpoint's folder, or the checkpoint itself where it is no folder (a hub id).

    Args:
        checkpoint: As a catalogue spells it.
        folder: Where relative ones start.
    """
    local = Path(folder) / checkpoint
    return str(local) if local.is_dir() else checkpoint
