"""Which models to host and how, the environment that vLLM needs, and the size of an engine's KV cache."""

from collections.abc import Container, MutableMapping
from pathlib import Path
from typing import Literal

import msgspec

from agents.catalogue.models import DTYPE_BYTES, Architecture, EngineSettings
from agents.serving.errors import EngineEnvironmentError

# The settings of a hosted model, one frozen struct per model.
#
# Defaults suit small models on a CPU; on a GPU set `dtype="bfloat16"`, `kv_cache_bytes` to this model's share of the
# card's memory, and `block_tokens=None` (vLLM chooses).

MIB = 1 << 20


class HostedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model for one vLLM engine.

    Attributes:
        name: The model's name in requests; unique in a host.
        path: A Hugging Face folder, or a hub id when the host is not `offline`.
        runner: `generate` for a language model, `pooling` for a process reward model.
        dtype: Data type of weights and activations; float32 on a CPU, because verifier scores enter the early-exit
            bound.
        context_tokens: Maximum tokens of prompt and output together; None takes the checkpoint's own limit.
        max_sequences: Maximum sequences in one batch of the engine.
        kv_cache_bytes: Size of this engine's own KV cache. None leaves it to vLLM, which takes all of the machine's
            memory and so suits only one engine per process.
        block_tokens: Tokens per KV block. Prefix caching shares whole blocks, and vLLM's CPU default of 128
            is longer than most of our prompts. None leaves it to vLLM.
        prefix_caching: Whether prompts that begin alike, as all paths of a search do, share the KV cache of that
            prefix.
        step_tag_id: Used with `pooling`, to return only the rows of this token (STEP pooling). None returns a
            row for every token (ALL pooling).
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


def checkpoint_path(checkpoint: str, folder: str) -> str:
    """Return a checkpoint's folder, or the checkpoint itself if it is not a folder (a hub id).

    Args:
        checkpoint: The checkpoint as written in a catalogue.
        folder: The folder to which relative paths refer.
    """
    local = Path(folder) / checkpoint
    return str(local) if local.is_dir() else checkpoint


# The environment variables that vLLM needs, set in one place before vLLM is imported.
#
# Part of vLLM's configuration can only be set through environment variables. Below the services, only this file sets
# them, and it reads none of our own settings from the environment.

# Without it, vLLM silently starts a process for each engine, so one thread cannot own several, and a further model
# takes 35 s to load instead of 0.3 s.
REQUIRED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

# An operator's own export takes precedence over these.
PREFERRED = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # vLLM imports setuptools, which refuses to load when a library imported Python's own distutils before.
    "SETUPTOOLS_USE_DISTUTILS": "stdlib",
}


def prepare_environment(offline: bool, environ: MutableMapping[str, str], imported: Container[str]) -> None:
    """Set the variables that vLLM needs in `environ`.

    Args:
        offline: Whether access to the Hugging Face hub is forbidden.
        environ: `os.environ` of this process.
        imported: `sys.modules` of this process.

    Raises:
        EngineEnvironmentError: vLLM has already been imported with different values.
    """
    wrong = {name: value for name, value in REQUIRED.items() if environ.get(name) != value}
    if wrong and "vllm" in imported:
        exports = " ".join(f"{name}={value}" for name, value in wrong.items())
        raise EngineEnvironmentError(
            f"vllm was imported before the engine host was started; start the host first, or export {exports}"
        )
    environ.update(REQUIRED)
    if offline:
        environ["HF_HUB_OFFLINE"] = "1"
    # This variable would override every model's own kv_cache_bytes with a number of whole GiB.
    environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    for name, value in PREFERRED.items():
        environ.setdefault(name, value)


# The size of an engine's KV cache: room for one sequence of full length, or for a batch of typical ones.

GIB = 1 << 30
USUAL_TOKENS = 1024  # a generous bound for a question and a path of steps
BLOCK_TOKENS = 128  # vLLM's default on a CPU
SPARE_BLOCKS = 2  # vLLM keeps a null block and rounds up


def kv_cache_bytes(shape: Architecture, engine: EngineSettings) -> int:
    """Return the bytes of KV cache for one engine.

    This is the catalogue's value or, if it has none, enough for `max_sequences` typical sequences but at most 1 GiB:
    too small a cache causes preemptions, and too large a cache starves the next engine. The result is always enough for
    one sequence of full length; with less, vLLM refuses to start.

    Args:
        shape: Architecture of the model.
        engine: The engine's settings in the catalogue.
    """
    token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * DTYPE_BYTES[engine.dtype]
    blocks = -(-engine.context_tokens // BLOCK_TOKENS) + SPARE_BLOCKS
    least_bytes = token_bytes * blocks * BLOCK_TOKENS
    usual_bytes = token_bytes * min(engine.max_sequences * USUAL_TOKENS, GIB // token_bytes)
    return max(least_bytes, usual_bytes if engine.kv_cache_bytes is None else engine.kv_cache_bytes)
