"""Every process's control state: catalogue, objectives, cost bounds and heartbeats.

`control` and `heartbeat` are read to the end before a process starts, and followed from then on.
`agents.catalogue.control_state` interprets control records; an invalid record changes nothing and is logged with its
offset.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from agents.catalogue.action_space import ActionSpace, parse_pairs, uis_space
from agents.catalogue.control_state import ControlState
from agents.catalogue.cost_model import CostModel
from agents.catalogue.file import beside_catalogue, load_catalogue
from agents.catalogue.models import (
    NO_VERIFIER,
    ActionError,
    Catalogue,
    CatalogueError,
    Model,
    VerifierModel,
)
from agents.catalogue.objectives import CAREFUL, DEFAULT_MODE, Objectives
from agents.grading.grade import is_program
from schemas.control import CatalogueEntry, Heartbeat, PriceFactorEntry, decode_control
from schemas.errors import UniscaleError
from schemas.grader import Grader, grader_of
from schemas.query import Query
from schemas.record import decode
from streams.log.base import ConsumerRecord, Log
from streams.settings import Settings, SettingsError, variable
from streams.topics import Topics

log = logging.getLogger("streams.control")

# Number of missed heartbeats after which an executor is considered dead.
_BEATS = 3

_BEST = ("ready", "loading", "suspended", "failed")


def default_objective(settings: Settings) -> str:
    """Return the name of the default objective."""
    aims = settings.policy.name == "contextual"
    return settings.queries.objective or (CAREFUL if aims else DEFAULT_MODE)


def catalogue_of(settings: Settings) -> Catalogue:
    """Return the catalogue a deployment starts with: the one in its file, with the configured verifier.

    Raises:
        CatalogueError: the file cannot be used.
        SettingsError: there is no catalogue, or it does not contain the configured verifier.
    """
    path = Path(settings.catalogue)
    if settings.catalogue == Settings().catalogue and not path.exists():
        raise SettingsError(
            f"there is no {settings.config or Settings().config} with a catalogue in {Path.cwd()}: "
            "`python -m streams init` writes one from your servers; change to its folder, or name it with --config FILE"
        )
    found = load_catalogue(path)
    check_graders(found)
    if not settings.engine.verifier:
        return found
    try:
        return found.scored_by(settings.engine.verifier)
    except CatalogueError as error:
        raise SettingsError(str(error), "verifier") from None


def check_graders(catalogue: Catalogue) -> None:
    """Reject a catalogue in which a grader's JSON Schema is invalid.

    Raises:
        CatalogueError: a schema is invalid; the message names the grader's owner and the fix.
    """
    for whose, grader in catalogue.graders.items():
        if grader.schema is None:
            continue
        from agents.grading.compiled import refusal  # imports jsonschema, which most processes do not need

        if why := refusal(schema=grader.schema):
            raise CatalogueError(f"catalogue {catalogue.name!r}, {whose}, field grader.schema: {why}")


def overlong_in_words(catalogue: Catalogue) -> str:
    """Return a warning about models whose paths may be too long for their verifier; empty if there are none."""
    said = []
    for verifier in catalogue.scoring:
        longest = {m: n for m, n in catalogue.overlong.items() if catalogue.verifier_of(m) is verifier}
        if longest:
            said.append(
                f"paths of {', '.join(longest)} may have up to {max(longest.values())} tokens (depth_limit times "
                f"step_tokens); of those beyond the {verifier.engine.context_tokens} of verifier {verifier.name}, it "
                "scores the last steps alone (`uniscale_shortened_paths_total` counts them). Lower depth_limit or "
                "step_tokens, or take a verifier with a longer context"
            )
    return "; ".join(said)


def mixed_in_words(catalogue: Catalogue) -> str:
    """Return a warning about a catalogue whose models do not share one verifier; empty if they do."""
    match catalogue.verified:
        case "all":
            return ""
        case "some":
            why = "the models of the catalogue do not all have the same verifier"
        case "none":
            why = "no model of the catalogue has a verifier"
    return (
        f"{why}: from an answer that nobody grades, only its cost is learned. Send references or feedback "
        "(docs/catalogue.md, Without a verifier)"
    )


def ungraded_in_words(baseline: str) -> str:
    """Return a warning that every query gets the baseline because no answer has been graded yet."""
    return (
        f"nobody has said of any answer whether it is right, so that every query gets the baseline, {baseline}, and no "
        "other model is tried. From the first reference or feedback on, the policy decides. `control_action` among "
        "the policy_options names another baseline (docs/own-models.md, Grades)"
    )


class Control:
    """The deployment's state, built from control records.

    Args:
        settings: The deployment's settings, which name its catalogue file and default objective.
        monotonic: A monotonic clock, in seconds, for measuring the age of heartbeats.

    Raises:
        SettingsError: a setting does not match the catalogue.
    """

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.base = catalogue_of(settings)
        beside = beside_catalogue(Path(settings.catalogue))
        asked, named_by = settings.policy.parallelism, variable("parallelism")
        if not asked:
            asked, named_by = beside.parallelism, settings.catalogue
        try:
            self.pairs = parse_pairs(asked)
        except ActionError as error:
            raise SettingsError(f"{named_by}: {error}") from None
        if asked and all(model.endpoint.kind == "chat" for model in self.base.models):
            raise SettingsError(
                f"{named_by}: parallelism is {', '.join(asked)}, but all models of the catalogue are chat endpoints, "
                "which have no steps: leave it out, and give endpoint.n for several answers"
            )
        self.state = ControlState.of(
            self.base, settings.queries.own_objectives(), default_objective(settings)
        )
        # Offset of the last record that changed the catalogue, as recorded in Decisions.
        self.catalogue_version = -1
        # Every model ever seen: a removed model's searches still end, and their costs must be computed.
        self.models: dict[str, Model] = {m.name: m for m in self.base.models}
        self.cost_model = CostModel.of(self.base)
        self._topics = Topics(settings)
        self._monotonic = monotonic
        self._beats: dict[str, tuple[Heartbeat, int, float]] = {}
        self._last_beat_ms = 0

    async def start(self, log: Log) -> None:
        """Read `control` and `heartbeat` to their ends, and keep following them."""
        await log.tail([self._topics.control], self._on_control, begin="beginning")
        await log.tail([self._topics.heartbeat], self._on_heartbeat, begin="beginning")

    @property
    def catalogue(self) -> Catalogue:
        """The current catalogue."""
        return self.state.catalogue

    def space(self, catalogue: Catalogue) -> ActionSpace:
        """Return the actions offered by a catalogue."""
        return uis_space(catalogue, self.pairs)

    def verifier_of(self, model: Model) -> VerifierModel | None:
        """Return a model's verifier, even if the model was removed; None if it has none."""
        name = self.catalogue.verifier if model.verifier is None else model.verifier
        return None if name == NO_VERIFIER else self.catalogue.verifier_named(name)

    @property
    def objectives(self) -> Objectives:
        """The current objectives."""
        return self.state.objectives

    def grader(self, query: Query, model: str) -> Grader | None:
        """Return the grader for a model's answer to a query: the query's own, the model's, or the catalogue's.

        None stands for the default grader, which also grades against references that are program tests.
        """
        if query.grader is not None:
            return query.graded_with
        entry = self.models.get(model)
        named = (entry.grader if entry is not None else None) or self.catalogue.grader
        return None if named is None or is_program(query.reference) else grader_of(named)

    def graders(self, query: Query) -> tuple[Grader | None, ...]:
        """Return every grader that may apply to the answer to a query."""
        pinned = query.pinned
        names = (pinned.model,) if pinned else query.allowed_models or self.catalogue.model_names
        found: list[Grader | None] = []
        for name in names:
            if (grader := self.grader(query, name)) not in found:
                found.append(grader)
        return tuple(found)

    def serving(self) -> frozenset[str]:
        """Return the models with a live executor.

        The broker's clock and this machine's are never compared. A heartbeat is too old if the newest one was appended
        much later, by the broker's clock, or if it was received too long ago, by this process's clock.
        """
        return frozenset(model for beat in self._living() for model in beat.models)

    def health(self) -> dict[str, tuple[str, str]]:
        """Return each model's state and its reason, as reported by live executors; if they differ, the best state."""
        found: dict[str, tuple[str, str]] = {}
        for beat in self._living():
            for each in beat.health:
                known = found.get(each.model)
                if known is None or _BEST.index(each.state) < _BEST.index(known[0]):
                    found[each.model] = (each.state, each.why)
        return found

    def _living(self) -> list[Heartbeat]:
        now = self._monotonic()
        return [
            beat
            for beat, appended_ms, received in self._beats.values()
            if not beat.stopping
            and self._last_beat_ms - appended_ms <= _BEATS * beat.every_s * 1000
            and now - received <= _BEATS * beat.every_s
        ]

    def _on_heartbeat(self, record: ConsumerRecord) -> None:
        if not record.value:
            return
        try:
            beat = decode(record.value, Heartbeat)
        except UniscaleError as error:
            log.warning("%s: %s", record.coordinates, error)
            return
        self._last_beat_ms = record.timestamp_ms
        self._beats[beat.key] = (beat, record.timestamp_ms, self._monotonic())

    def _on_control(self, record: ConsumerRecord) -> None:
        if not record.value:
            return
        try:
            entry = decode_control(record.value)
            after = self.state.after(entry, record.offset)
            check_graders(after.catalogue)
            self.state = after
        except UniscaleError as error:
            log.error("%s has no effect: %s", record.coordinates, error)
            return
        if isinstance(entry, CatalogueEntry | PriceFactorEntry):
            self.catalogue_version = record.offset
            self.models |= {m.name: m for m in self.catalogue.models}
            self.cost_model = CostModel.of(self.catalogue, self.cost_model)
