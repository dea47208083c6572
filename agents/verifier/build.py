"""From a catalogue entry to a verifier: hosted in this process, or at a server."""

from agents.serving.hosting import (
    HostingOptions,
    hosted_model,
    load_into,
    prompts_of,
    served_name,
    server_of,
    start_host,
)
from agents.serving.prompts import ChatPrompts
from agents.serving.vllm.host import EngineHost
from agents.space.models import Verifier as VerifierEntry
from agents.verifier.formats import Format, SkyworkFormat, StepTagFormat
from agents.verifier.prm import HostedRows, HttpRows, Overflow, ProcessRewardModel, RowSource
from schemas.search import Served

SKYWORK_LABEL = 0  # its one column is the value's sigmoid


class VerifierOptions(HostingOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a deployment says about its verifier.

    Attributes:
        system: A system message, where the model was trained with one (Qwen2.5-Math-PRM).
        overflow: What to do with paths over the verifier's context.
    """

    system: str = ""
    overflow: Overflow = "keep-tail"


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
    prompts = prompts_of(entry, options)
    source: RowSource
    if entry.endpoint.kind == "http":
        served = Served(name="http-pooling", model=entry.name)
        source = HttpRows(server_of(entry, options), served_name(entry))
    else:
        owns_host = host is None
        if host is None:
            host = await start_host([hosted_model(entry, options)], options)
        elif entry.name not in host.context_tokens:
            await load_into(host, entry, options)
        served = Served(name=host.vllm_name, version=host.vllm_version, model=entry.name)
        source = HostedRows(host, entry.name, owns_host=owns_host, retries=options.retries)
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
