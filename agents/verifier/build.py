"""From a catalogue entry to a verifier: hosted in this process, or at a server."""

import asyncio
from typing import Literal

import msgspec

from agents.serving.errors import EngineStartError
from agents.serving.host import EngineHost
from agents.serving.http import JsonServer, ServerSettings
from agents.serving.prompts import ChatPrompts
from agents.serving.settings import HostedModel, HostSettings, checkpoint_path
from agents.serving.sizing import kv_cache_bytes
from agents.space.models import DTYPE_BYTES
from agents.space.models import Verifier as VerifierEntry
from agents.verifier.formats import Format, SkyworkFormat, StepTagFormat
from agents.verifier.prm import HostedRows, HttpRows, Overflow, ProcessRewardModel, RowSource
from schemas.search import Served

SKYWORK_LABEL = 0  # its one column is the value's sigmoid


class VerifierOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a deployment says about its verifier; the catalogue says the rest.

    Attributes:
        folder: Where a relative checkpoint starts: the repository root.
        device: `cpu`, or `gpu` to leave block sizes to vLLM.
        offline: Never ask the Hugging Face hub; the checkpoint must be a folder.
        threads: Torch threads of the engine thread; None leaves torch's choice.
        api_key: For an HTTP endpoint; may be empty.
        system: A system message, where the model was trained with one (Qwen2.5-Math-PRM).
        overflow: What to do with paths over the verifier's context.
        start_timeout_s: Longest wait for the model.
    """

    folder: str = "."
    device: Literal["cpu", "gpu"] = "cpu"
    offline: bool = True
    threads: int | None = None
    api_key: str = ""
    system: str = ""
    overflow: Overflow = "keep-tail"
    start_timeout_s: float = 600.0


async def start_verifier(
    entry: VerifierEntry, options: VerifierOptions, host: EngineHost | None = None
) -> ProcessRewardModel:
    """Load or connect a verifier; return when it can score.

    Args:
        entry: Its catalogue entry.
        options: Of the deployment.
        host: A started host to load it into, which stays its owner's; None starts one that closes with the
            verifier.

    Raises:
        EngineStartError: The model or its tokenizer could not be loaded.
        EngineEnvironmentError: This process cannot host vLLM.
    """
    prompts = ChatPrompts.load(
        checkpoint_path(entry.checkpoint, options.folder),
        offline=options.offline,
        needs_template=entry.family == "step-tags",
    )
    source: RowSource
    if entry.endpoint.kind == "http":
        served_name = entry.endpoint.served_name or entry.checkpoint
        settings = ServerSettings(url=entry.endpoint.url or "", api_key=options.api_key)
        served = Served(name="http-pooling", model=entry.name)
        source = HttpRows(JsonServer(settings), served_name)
    else:
        owns_host = host is None
        host = await _hosted(entry, options, host)
        served = Served(name=host.vllm_name, version=host.vllm_version, model=entry.name)
        source = HostedRows(host, entry.name, owns_host=owns_host)
    return ProcessRewardModel(
        served,
        source,
        format_for(entry, prompts, options.system),
        good_label=entry.step_tags.good_label if entry.step_tags else SKYWORK_LABEL,
        context_tokens=entry.engine.context_tokens,
        overflow=options.overflow,
    )


def format_for(entry: VerifierEntry, prompts: ChatPrompts, system: str = "") -> Format:
    """Return how paths are put to a verifier.

    Raises:
        EngineStartError: The tokenizer does not know its step tag, or under another id.
    """
    if entry.step_tags is None:
        return SkyworkFormat(prompts)
    return StepTagFormat(prompts, entry.step_tags.tag, tag_id=entry.step_tags.tag_id, system=system)


def hosted_verifier(entry: VerifierEntry, options: VerifierOptions) -> HostedModel:
    """Return how vLLM hosts a verifier in process.

    Raises:
        EngineStartError: The entry asks for several GPUs, which one process thread cannot drive.
    """
    engine, shape = entry.engine, entry.architecture
    if engine.tensor_parallel > 1:
        raise EngineStartError(
            f"{entry.name}: tensor_parallel is {engine.tensor_parallel}; serve it with `vllm serve` and give "
            "the catalogue an http endpoint"
        )
    return HostedModel(
        name=entry.name,
        path=checkpoint_path(entry.checkpoint, options.folder),
        runner="pooling",
        dtype=engine.dtype,
        context_tokens=engine.context_tokens,
        max_sequences=engine.max_sequences,
        kv_cache_bytes=kv_cache_bytes(
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            number_bytes=DTYPE_BYTES[engine.dtype],
            context_tokens=engine.context_tokens,
            sequences=engine.max_sequences,
        ),
        block_tokens=32 if options.device == "cpu" else None,
        # A prompt is read once, and vLLM does not read the cache for token classification anyway.
        prefix_caching=False,
        step_tag_id=entry.step_tags.tag_id if entry.step_tags else None,
    )


async def _hosted(entry: VerifierEntry, options: VerifierOptions, host: EngineHost | None) -> EngineHost:
    model = hosted_verifier(entry, options)
    if host is not None:
        if entry.name not in host.context_tokens:
            await asyncio.wrap_future(host.load(model))
        return host
    settings = HostSettings(
        models=(model,),
        offline=options.offline,
        threads=options.threads,
        start_timeout_s=options.start_timeout_s,
    )
    own = EngineHost(settings)
    await asyncio.to_thread(own.start)
    return own
