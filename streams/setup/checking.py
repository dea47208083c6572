"""Finds what is wrong with a deployment's configuration (file, servers, prior, topics), and what to do about it."""

import asyncio
import contextlib
import difflib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agents.bandit.errors import CorruptState, PriorRefused
from agents.catalogue.file import beside_catalogue
from agents.catalogue.list_prices import SOURCE, list_price
from agents.catalogue.models import Catalogue, Model, VerifierModel
from agents.decider.decider import Decider
from agents.embedding import EncoderError, encoder_id
from agents.encoders import encoder_of
from agents.serving.engine import Engine, StreamingEngine
from agents.serving.errors import ServingError
from agents.serving.health_checks import first_token, streamed, tried
from agents.serving.http import JsonServer
from agents.serving.listing import Listed, listed, prices_of
from agents.serving.registry import HostingOptions, connected, served_name
from agents.serving.retries import Retries
from agents.serving.vllm_settings import checkpoint_path
from agents.verifier.prm import start_verifier
from schemas.errors import InvalidField
from schemas.objective import UNITS
from schemas.prices import Prices, rate_in_words
from streams.control_follower import Control, mixed_in_words
from streams.log import kafka_admin
from streams.log.kafka_clients import BrokerUnreachable, KafkaError
from streams.services.decider import baseline_of, check_control_group, policy_of, prior_of, read_prior, sized
from streams.services.hosting import hosting_options
from streams.settings import Settings
from streams.setup.starter import FILL_IN, unfilled
from streams.topics import Topics

State = Literal["ok", "note", "fails"]

Entry = TypeVar("Entry", Model, VerifierModel)


class Finding(Struct, frozen=True):
    """The result of checking one part of a deployment.

    Attributes:
        about: The part that was checked, such as a model, the prior or the topics.
        state: Whether the part is in order (`ok`), has something worth knowing (`note`), or would fail (`fails`).
        what: What was found.
        fix: What to do about it; empty if nothing needs to be done.
    """

    about: str
    state: State
    what: str
    fix: str = ""


def findings_of(settings: Settings, say: Callable[[str], None] = lambda line: None) -> list[Finding]:
    """Check everything that a deployment with these settings depends on.

    Every server is sent a request for one token with its entry's parameters, a request for each capability that the
    entry declares, and a request for a stream, each of which may cost as much as the first.

    Args:
        settings: The deployment's settings.
        say: Called with a line of text about what is being checked, because a server may take minutes.

    Raises:
        UniscaleError: the file cannot be used; the message names the field and the fix.
    """
    control = Control(settings)
    catalogue = control.base
    return [
        *_file(settings),
        *_money(catalogue),
        *asyncio.run(_servers(settings, catalogue, say)),
        *_grades(control, settings),
        *_learner(settings, control, say),
        *_broker(settings, catalogue, say),
    ]


def _file(settings: Settings) -> list[Finding]:
    path = Path(settings.catalogue)
    left: dict[str, list[str]] = {}
    for at, line in unfilled(path.read_text(encoding="utf-8")):
        left.setdefault(line.partition(":")[0].removeprefix("- "), []).append(str(at))
    if not left:
        return []
    where = "; ".join(f"{name} (line {', '.join(lines)})" for name, lines in left.items())
    fix = f"correct or keep each, then delete its mark {FILL_IN}"
    return [Finding(path.name, "note", f"still to be filled in: {where}", fix)]


def _money(catalogue: Catalogue) -> list[Finding]:
    bounds = catalogue.cost_range
    said = f"{UNITS[catalogue.unit]}, from {bounds.low:g} to {bounds.high:g} a query"
    return [Finding("unit of costs", "ok", said)]


# The servers: one token is requested from each.

_PATIENCE: Final = Retries(attempts=1)


async def _servers(settings: Settings, catalogue: Catalogue, say: Callable[[str], None]) -> list[Finding]:
    options = replace(hosting_options(settings, catalogue), retries=_PATIENCE)
    fetched = beside_catalogue(Path(settings.catalogue)).fetched
    models = [each for each in catalogue.models if each.name != fetched]
    asked = [_told(each, _model(each, options), say) for model in models for each in _at_each_server(model)]
    asked += [
        _told(each, _verifier(each, options), say)
        for entry in catalogue.scoring
        for each in _at_each_server(entry)
    ]
    found = [finding for findings in await asyncio.gather(*asked) for finding in findings]
    if fetched is not None:
        found.append(
            Finding(f"model {fetched}", "ok", "is fetched and served by `up` or `demo`; not asked here")
        )
    return found


async def _told(
    entry: Model | VerifierModel, asking: Awaitable[list[Finding]], say: Callable[[str], None]
) -> list[Finding]:
    """Return the findings about an entry at one server, and say when it is asked and when it has replied."""
    if entry.endpoint.kind == "in-process":
        return await asking
    [url] = entry.endpoint.servers
    say(f"asking {entry.name} at {url} …")
    found = await asking
    say(f"{entry.name} at {url}: {'failed' if any(each.state == 'fails' for each in found) else 'ok'}")
    return found


def _at_each_server(entry: Entry) -> list[Entry]:
    """Return an entry for each of the servers in it, with that server alone."""
    at = entry.endpoint
    return [replace(entry, endpoint=replace(at, urls=(url,))) for url in at.urls] or [entry]


def _about(entry: Model | VerifierModel) -> str:
    kind = "model" if isinstance(entry, Model) else "verifier"
    return f"{kind} {entry.name}" + "".join(f" at {url}" for url in entry.endpoint.urls)


async def _model(model: Model, options: HostingOptions) -> list[Finding]:
    about = _about(model)
    if model.endpoint.kind == "in-process":
        return [_folder(about, model, options)]
    try:
        loaded = await connected(model, options)
    except ServingError as error:
        return [_unloadable(about, model, error)]
    assert loaded.server is not None, "it is on a server"
    try:
        why = await first_token(loaded.engine, model.sampling, options.probes)
        try:
            known = await listed(loaded.server)
        except ServingError:
            known = []  # not every server lists its models, and the token shows whether it has this model
        if why:
            return [Finding(about, "fails", why, _cure(model, known))]
        here = next((each for each in known if each.id == served_name(model)), None)
        found = [*_context(about, model, here), *await _price(about, model, loaded.server)]
        found += await _capabilities(about, model, loaded.engine, options)
        source = f", as {model.price.source} says" if model.price and model.price.source else ""
        return found or [Finding(about, "ok", f"gave a token; charges {rate_in_words(model.rate)}{source}")]
    finally:
        await loaded.engine.close()


def _folder(about: str, entry: Model | VerifierModel, options: HostingOptions) -> Finding:
    path = Path(checkpoint_path(entry.checkpoint, options.folder))
    if options.offline and not path.is_dir():
        fix = "correct checkpoint in its entry, or set offline to false to read it from the Hugging Face hub"
        return Finding(about, "fails", f"checkpoint is {entry.checkpoint}: there is no such folder", fix)
    return Finding(about, "ok", "is loaded by its executor or verifier; not asked here")


def _unloadable(about: str, entry: Model | VerifierModel, error: ServingError) -> Finding:
    if "key_env" in str(error):
        fix = f"export {entry.endpoint.key_env}=… before `up` and for each executor"
    else:
        fix = "give checkpoint a folder with its tokenizer, or a name on the Hugging Face hub and offline: false"
    return Finding(about, "fails", str(error), fix)


def _cure(model: Model, known: Sequence[Listed]) -> str:
    """Return what to do if a server returned no token. `known` contains the models it lists, if any."""
    name, names = served_name(model), [each.id for each in known]
    field = "model" if model.endpoint.kind == "chat" else "served_name"
    if known and name not in names:
        near = difflib.get_close_matches(name, names, 3, 0.3) or names[:3]
        return f"set endpoint.{field} to a model that the server has, such as {', '.join(near)}; it is {name}"
    if not known:
        return _correct(model, "the key of its server")
    return "correct what the server refuses in the model's entry, or its server"


def _correct(entry: Model | VerifierModel, otherwise: str) -> str:
    [url] = entry.endpoint.servers
    field = "urls, which has" if entry.endpoint.urls else "url, which is"
    return f"correct endpoint.{field} {url}, or {otherwise}"


def _context(about: str, model: Model, here: Listed | None) -> list[Finding]:
    mine, field = model.engine.context_tokens, "engine.context_tokens"
    if model.endpoint.kind == "chat":
        field = "endpoint.context_tokens"
    if here is None or here.context_tokens is None or here.context_tokens == mine:
        return []
    what = f"{field} is {mine}, and the server's longest context is {here.context_tokens}"
    if mine > here.context_tokens:
        return [Finding(about, "fails", what, f"set {field} to {here.context_tokens}")]
    return [Finding(about, "note", what, f"set {field} to {here.context_tokens} to use all of it")]


async def _capabilities(about: str, model: Model, engine: Engine, options: HostingOptions) -> list[Finding]:
    found = []
    for capability in model.capabilities:
        if why := await tried(engine, model.sampling, options.probes, capability):
            fix = f"remove {capability} from capabilities, or have the server support it"
            found.append(Finding(about, "fails", f"declares {capability}: {why}", fix))
    if (
        model.endpoint.kind == "chat"
        and model.endpoint.stream
        and isinstance(engine, StreamingEngine)
        and (why := await streamed(engine, model.sampling, options.probes))
    ):
        found.append(Finding(about, "fails", f"does not stream: {why}", "set endpoint.stream to false"))
    return found


async def _price(about: str, model: Model, server: JsonServer) -> list[Finding]:
    stated, by = (await prices_of(server)).get(served_name(model)), "its proxy states"
    if stated is None and model.endpoint.kind == "chat":
        with contextlib.suppress(InvalidField):
            stated, by = list_price(model.endpoint.servers[0], model.endpoint.model), f"{SOURCE} says"
    if stated is None or not isinstance(model.rate, Prices) or stated == model.rate:
        return []
    what = f"charges {rate_in_words(model.rate)}, and {by} {rate_in_words(stated)}"
    cached = "" if stated.cached_input is None else f", cached_input: {stated.cached_input:g}"
    fix = f"set price to {{input: {stated.input:g}{cached}, output: {stated.output:g}}}, if that is what you pay"
    return [Finding(about, "note", what, fix)]


async def _verifier(entry: VerifierModel, options: HostingOptions) -> list[Finding]:
    about = _about(entry)
    if entry.endpoint.kind == "in-process":
        return [_folder(about, entry, options)]
    try:
        verifier = await start_verifier(entry, options)
    except ServingError as error:
        return [_unloadable(about, entry, error)]
    try:
        async with asyncio.timeout(options.probes.timeout_s):
            await verifier.score(options.probes.question, [["2 + 3 = 5"]])
    except (ServingError, TimeoutError) as error:
        why = str(error) or f"no score in {options.probes.timeout_s:g} s"
        return [Finding(about, "fails", why, _correct(entry, "its server"))]
    finally:
        await verifier.close()
    return [Finding(about, "ok", "scored a step")]


# Learning: the grades, the policy and its prior.


def _grades(control: Control, settings: Settings) -> list[Finding]:
    if not (said := mixed_in_words(control.base)):
        return []
    baseline = baseline_of(settings, control.base, control.space(control.base))
    fix = "send references or feedback: docs/own-models.md, Grades"
    late = []
    if not settings.queries.feedback_waits_s(mixed=control.base.verified == "some"):
        what = "feedback_wait_s is 0: an answer without a reference is closed at once, and feedback on it is too late"
        late.append(
            Finding("feedback", "note", what, "set feedback_wait_s, such as 3600, or send references only")
        )
    return [
        Finding("grades", "note", said, fix),
        *late,
        Finding(
            "baseline", "note", f"until then every query gets {baseline}", "name another: control_action"
        ),
    ]


def _learner(settings: Settings, control: Control, say: Callable[[str], None]) -> list[Finding]:
    say("loading the encoder, the policy and its prior …")
    about = "policy and prior"
    try:
        encoder = encoder_of(settings.encoder)
    except EncoderError as error:
        return [Finding("encoder", "fails", str(error), "correct the encoder's settings: docs/settings.md")]
    policy = policy_of(settings, encoder)
    check_control_group(settings, control)
    if (path := prior_of(settings)) is None:
        return [Finding(about, "ok", f"{policy.name} begins without history")]
    decider = Decider(policy, encoder=encoder_id(encoder), unit=control.base.unit)
    try:
        decider.begin(read_prior(path), sized(control.base), cost_basis=control.base.cost_basis)
    except (PriorRefused, CorruptState) as error:
        if settings.policy.prior:
            fix = "make it again from outcomes of these models (docs/policies.md), or set prior to none"
            return [Finding(about, "fails", str(error), fix)]
        return [Finding(about, "note", f"{policy.name} begins without history: {error}")]
    return [Finding(about, "ok", f"{policy.name} begins from {path}")]


def _broker(settings: Settings, catalogue: Catalogue, say: Callable[[str], None]) -> list[Finding]:
    say(f"asking the broker at {settings.kafka.bootstrap} …")
    declared = Topics(settings).declared(catalogue.groups)
    found: list[str] = []
    try:
        kafka_admin.require(settings, declared)
    except kafka_admin.TopicsWrong as error:
        found = error.findings
    except (BrokerUnreachable, KafkaError) as error:
        fix = "`up --broker auto` starts one; for your own, correct bootstrap"
        return [Finding("broker", "note", str(error), fix)]
    absent = [each for each in found if ": missing;" in each]
    wrong = [Finding("topics", "fails", each) for each in found if each not in absent]
    if absent:
        said = f"missing: {len(absent)} of {len(declared)}"
        wrong.append(Finding("topics", "note", said, "`up` and `topics create` make them"))
    return wrong or [Finding("topics", "ok", "are as declared")]
