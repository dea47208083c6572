"""From catalogue entries to engines: which models this process hosts, which answer at a server."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec

from agents.executor.engine import Engine
from agents.executor.engines.http_engine import Dialect, HttpEngine
from agents.executor.engines.recorded_engine import RecordedEngine
from agents.executor.engines.vllm_engine import VllmEngine
from agents.serving.errors import EngineStartError
from agents.serving.host import EngineHost
from agents.serving.http import JsonServer, ServerSettings
from agents.serving.prompts import ChatPrompts
from agents.serving.recording import Recording
from agents.serving.settings import HostedModel, HostSettings, checkpoint_path
from agents.serving.sizing import kv_cache_bytes
from agents.space.models import DTYPE_BYTES, Model


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a deployment says about its engines; the catalogue says the rest.

    Attributes:
        folder: Where relative checkpoints start: the repository root.
        device: `cpu`, or `gpu` to leave block sizes to vLLM.
        offline: Never ask the Hugging Face hub; checkpoints must be folders.
        threads: Torch threads of the engine thread; None leaves torch's choice.
        api_key: For HTTP endpoints; may be empty.
        dialect: For HTTP endpoints: `vllm`, or `plain` for servers that do not say why a text stopped.
        instruction: A system message for conversations that have none, e.g. to reason step by step. The mini
            family is trained without one.
        start_timeout_s: Longest wait for all hosted models together.
    """

    folder: str = "."
    device: Literal["cpu", "gpu"] = "cpu"
    offline: bool = True
    threads: int | None = None
    api_key: str = ""
    dialect: Dialect = "vllm"
    instruction: str = ""
    start_timeout_s: float = 600.0


class EngineSet:
    """The engines of one executor group, by model, and the host behind those in process."""

    def __init__(self, engines: dict[str, Engine], host: EngineHost | None) -> None:
        self.engines = engines
        self.host = host

    def __getitem__(self, model: str) -> Engine:
        """Return the engine of a model.

        Raises:
            KeyError: The group does not serve it.
        """
        return self.engines[model]

    async def close(self) -> None:
        """Close every engine, then the host."""
        for engine in self.engines.values():
            await engine.close()
        if self.host is not None:
            await asyncio.to_thread(self.host.close)


async def start_engines(models: Sequence[Model], options: EngineOptions) -> EngineSet:
    """Load or connect every model; return when all can draft.

    Args:
        models: Catalogue entries of one group.
        options: Of the deployment.

    Raises:
        EngineStartError: A model or its tokenizer could not be loaded.
        EngineEnvironmentError: This process cannot host vLLM.
    """
    hosted = [hosted_model(model, options) for model in models if model.endpoint.kind == "in-process"]
    host = None
    if hosted:
        settings = HostSettings(
            models=tuple(hosted),
            offline=options.offline,
            threads=options.threads,
            start_timeout_s=options.start_timeout_s,
        )
        host = EngineHost(settings)
        await asyncio.to_thread(host.start)
    return EngineSet({model.name: engine_for(model, options, host) for model in models}, host)


def recorded_engines(models: Sequence[str], recording: Recording) -> EngineSet:
    """Return engines that answer from a recording."""
    return EngineSet({model: RecordedEngine(recording, model) for model in models}, None)


def engine_for(model: Model, options: EngineOptions, host: EngineHost | None) -> Engine:
    """Return the engine of one catalogue entry.

    Args:
        model: Its entry.
        options: Of the deployment.
        host: Hosts the model when its endpoint is in process.

    Raises:
        EngineStartError: Its tokenizer cannot be read, or no host has it.
    """
    prompts = ChatPrompts.load(
        checkpoint_path(model.checkpoint, options.folder),
        template_arguments={"enable_thinking": model.sampling.thinking},
        offline=options.offline,
    )
    if model.endpoint.kind == "in-process":
        if host is None or model.name not in host.context_tokens:
            raise EngineStartError(
                f"{model.name}: its endpoint is in-process, but no host here has loaded it"
            )
        return VllmEngine(host, model.name, prompts, instruction=options.instruction)
    server = JsonServer(
        ServerSettings(
            url=model.endpoint.url or "", api_key=options.api_key, connections=4 * model.engine.max_sequences
        )
    )
    return HttpEngine(
        server,
        model.name,
        prompts,
        context_tokens=model.engine.context_tokens,
        served_name=model.endpoint.served_name or model.checkpoint,
        instruction=options.instruction,
        dialect=options.dialect,
    )


def hosted_model(model: Model, options: EngineOptions) -> HostedModel:
    """Return how vLLM hosts one catalogue entry in process.

    Raises:
        EngineStartError: The entry asks for several GPUs, which one process thread cannot drive.
    """
    engine, shape = model.engine, model.architecture
    if engine.tensor_parallel > 1:
        raise EngineStartError(
            f"{model.name}: tensor_parallel is {engine.tensor_parallel}; serve it with `vllm serve` and give "
            "the catalogue an http endpoint"
        )
    return HostedModel(
        name=model.name,
        path=checkpoint_path(model.checkpoint, options.folder),
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
    )
