"""From a catalogue entry, generator or verifier, to where it runs: vLLM in this process, or a server elsewhere."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec

from agents.serving.errors import EngineStartError
from agents.serving.http.keys import Keys
from agents.serving.http.server import JsonServer, ServerSettings
from agents.serving.prompts import ChatPrompts
from agents.serving.retry import Retries
from agents.serving.vllm.host import EngineHost
from agents.serving.vllm.settings import HostedModel, HostSettings, checkpoint_path
from agents.serving.vllm.sizing import kv_cache_bytes
from agents.space.models import DTYPE_BYTES, Model, Verifier

CPU_BLOCK_TOKENS = (
    32  # vLLM's own 128 are longer than most prompts of the mini family, and nothing would be shared
)


class HostingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a deployment says about where its models run; the catalogue says the rest.

    Attributes:
        folder: Where relative checkpoints start: the repository root.
        device: `cpu`, or `gpu` to leave block sizes to vLLM.
        offline: Never ask the Hugging Face hub; checkpoints must be folders.
        threads: Torch threads of the engine thread; None leaves torch's choice.
        keys: API keys of HTTP endpoints, by host.
        retries: How often a request to a model is tried.
        start_timeout_s: Longest wait for vLLM itself to start.
    """

    folder: str = "."
    device: Literal["cpu", "gpu"] = "cpu"
    offline: bool = True
    threads: int | None = None
    keys: Keys = Keys()
    retries: Retries = Retries()
    start_timeout_s: float = 600.0


def hosted_model(entry: Model | Verifier, options: HostingOptions) -> HostedModel:
    """Return how vLLM hosts a catalogue entry in this process.

    The entry's `kv_cache_bytes` is used, but never less than one sequence of full length needs, without which
    vLLM would refuse to start.

    Raises:
        EngineStartError: the entry asks for several GPUs, which one process thread cannot drive.
    """
    engine, shape = entry.engine, entry.architecture
    if engine.tensor_parallel > 1:
        raise EngineStartError(
            f"{entry.name}: tensor_parallel is {engine.tensor_parallel}; serve it with `vllm serve` and give "
            "the catalogue an http endpoint"
        )
    block_tokens = engine.block_tokens or (CPU_BLOCK_TOKENS if options.device == "cpu" else None)
    kv_bytes = kv_cache_bytes(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        number_bytes=DTYPE_BYTES[engine.dtype],
        context_tokens=engine.context_tokens,
        sequences=engine.max_sequences,
        wanted_bytes=engine.kv_cache_bytes,
    )
    verifies = isinstance(entry, Verifier)
    return HostedModel(
        name=entry.name,
        path=checkpoint_path(entry.checkpoint, options.folder),
        runner="pooling" if verifies else "generate",
        dtype=engine.dtype,
        context_tokens=engine.context_tokens,
        max_sequences=engine.max_sequences,
        kv_cache_bytes=kv_bytes,
        block_tokens=block_tokens,
        # A verifier reads a prompt once, and vLLM does not read the cache for token classification anyway.
        prefix_caching=not verifies,
        step_tag_id=entry.step_tags.tag_id if isinstance(entry, Verifier) and entry.step_tags else None,
    )


def server_of(entry: Model | Verifier, options: HostingOptions) -> JsonServer:
    """Return the client of the server that an entry's endpoint names."""
    url = entry.endpoint.url or ""
    return JsonServer(
        ServerSettings(
            url=url,
            api_key=options.keys.of(url),
            retries=options.retries,
            # A verifier's request holds many prompts, a generator's one draft of a step of 64.
            connections=4 * entry.engine.max_sequences,
        )
    )


def served_name(entry: Model | Verifier) -> str:
    """Return what an entry's model is called at its server."""
    return entry.endpoint.served_name or entry.checkpoint


def prompts_of(entry: Model | Verifier, options: HostingOptions) -> ChatPrompts:
    """Return the tokenizer and chat template of an entry.

    Raises:
        EngineStartError: they cannot be read.
    """
    path = checkpoint_path(entry.checkpoint, options.folder)
    if isinstance(entry, Verifier):
        needed = entry.family == "step-tags"
        return ChatPrompts.load(path, offline=options.offline, needs_template=needed)
    arguments = {"enable_thinking": entry.sampling.thinking}
    return ChatPrompts.load(path, template_arguments=arguments, offline=options.offline)


async def start_host(models: Sequence[HostedModel], options: HostingOptions) -> EngineHost:
    """Start vLLM in this process with these models loaded; further ones can be loaded later.

    Raises:
        EngineStartError: a model could not be loaded.
        EngineEnvironmentError: this process cannot host vLLM.
    """
    host = EngineHost(
        HostSettings(
            models=tuple(models),
            offline=options.offline,
            threads=options.threads,
            start_timeout_s=options.start_timeout_s,
        )
    )
    await asyncio.to_thread(host.start)
    return host


async def load_into(host: EngineHost, entry: Model | Verifier, options: HostingOptions) -> None:
    """Load an entry into a started host, in place of a model of the same name.

    Raises:
        EngineStartError: it could not be loaded. The host goes on serving its other models.
    """
    if entry.name in host.context_tokens:
        await asyncio.wrap_future(host.unload(entry.name))
    await asyncio.wrap_future(host.load(hosted_model(entry, options)))
