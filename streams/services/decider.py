"""The decider service, with its metrics: decides for Contexts, learns from Rewards and follows up AttemptFailed."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from agents.bandit.errors import CorruptState, DuplicateQuery, PolicyRefused, PriorRefused
from agents.bandit.pacing import KEYS, spare
from agents.bandit.policy import ActionVector, BudgetStatus, Drift, Policy, Target
from agents.bandit.prior import digest
from agents.bandit.registry import build_policy
from agents.catalogue.action_space import PAIRS, ActionSpace, uis_space
from agents.catalogue.cost_model import cost_of
from agents.catalogue.descriptions import describe_actions
from agents.catalogue.file import beside_catalogue
from agents.catalogue.models import ActionError, Catalogue
from agents.decider.decider import Decider, LearnResult
from agents.decider.decisions import DecisionResult
from agents.decider.eligibility import DecisionEnvironment
from agents.decider.failed_attempts import Failure, RetryResult
from agents.decider.rows import Row, decode_row
from agents.decider.snapshot import EndedIds
from agents.embedding import BadEmbedding, Encoder, EncoderError, EncoderRefused, embed_actions, encoder_id
from agents.encoders import encoder_of
from agents.search.search import SearchRules
from schemas.action import Action
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.failure import attempt_id
from schemas.objective import UNITS, ObjectiveInForce
from schemas.query import QueryContext
from schemas.record import Record, decode
from schemas.reward import Reward
from streams.control_follower import Control, catalogue_of, mixed_in_words, ungraded_in_words
from streams.log.base import ConsumerRecord, Outgoing, SendFailed, Unavailable, key_of
from streams.metrics import Metrics
from streams.runtime.effects import BatchEffects, OrderedService
from streams.runtime.errors import Crash, PartialWrite, PartitionLost
from streams.runtime.handler_guard import Refusal
from streams.runtime.runtime import Runtime
from streams.services.learner_log import LearnerLog
from streams.settings import Settings, SettingsError, variable

log = logging.getLogger("streams.decider")

# The configured policy, and a catalogue's actions as the policy sees them.

WARM_UP: Final = 50
"""Number of uniformly random rounds that the paper's policies warm up with (§5)."""


def policy_of(settings: Settings, encoder: Encoder) -> Policy:
    """Return the configured policy, which has no actions yet, and limit this process to one BLAS thread.

    The last bits of a matrix product depend on the number of threads, and decisions must not depend on the number of
    cores. The products are too small to gain from more threads.

    Raises:
        SettingsError: an unknown policy or option, or a value out of range.
    """
    threadpool_limits(1, user_api="blas")
    warm_up = settings.policy.warm_up
    if warm_up is None:
        warm_up = 0 if settings.policy.name == "contextual" else WARM_UP
    try:
        return build_policy(
            settings.policy.name,
            {"warm_up": warm_up, **settings.policy.options},
            query_dim=encoder.dimension,
            action_dim=encoder.dimension,
            encoder=encoder_id(encoder),
            unit=catalogue_of(settings).unit,
        )
    except PolicyRefused as error:
        raise SettingsError(str(error)) from None


def action_vectors(
    catalogue: Catalogue,
    encoder: Encoder,
    cache: Path | None = None,
    *,
    pairs: Sequence[tuple[int, int]] = PAIRS,
) -> Sequence[ActionVector]:
    """Return every action in a catalogue that has one of these (QP, CP), each with its description's embedding."""
    actions = list(uis_space(catalogue, pairs))
    models = {model.name: model for model in catalogue.models}
    rows = embed_actions(encoder, describe_actions(actions, catalogue), cache)
    return [
        ActionVector(action.id, of.name, row.astype("float64"), float(of.parameters), of.base)
        for action, row in zip(actions, rows, strict=True)
        for of in (models[action.model],)
    ]


def sized(catalogue: Catalogue) -> list[ActionVector]:
    """Return a catalogue's models and their sizes. A prior must match nothing else, because it has its own vectors."""
    return [
        ActionVector(each.name, each.name, np.zeros(0), float(each.parameters), each.base)
        for each in catalogue.models
    ]


def prior_of(settings: Settings) -> Path | None:
    """Return the path of the prior named by the settings, or else by the catalogue; None if there is none."""
    if settings.policy.prior == "none":
        return None
    return (
        Path(settings.policy.prior)
        if settings.policy.prior
        else beside_catalogue(Path(settings.catalogue)).prior
    )


def read_prior(path: Path) -> bytes:
    """Return a prior's bytes.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{variable('prior')}: {path} cannot be read ({error.strerror}); make it with `python -m streams prior`"
        ) from None


def baseline_of(settings: Settings, catalogue: Catalogue, space: ActionSpace) -> str:
    """Return the action for every query until the first answer has been graded; empty if there is none.

    It is the control group's action or, if that is not on offer, the smallest search with the catalogue's first model.
    If one verifier scores all models, there is no baseline, and the policy learns from scores.
    """
    if catalogue.verified == "all":
        return ""
    named = str(settings.policy.options.get("control_action", ""))
    if named in {action.id for action in space}:
        return named
    first = next(name for name in catalogue.model_names if name in space.models)
    return min((a for a in space if a.model == first), key=lambda action: action.qp * action.cp).id


def check_control_group(settings: Settings, control: Control) -> None:
    """Refuse a control action that is not offered. If its model may have been removed, only log a warning.

    Raises:
        SettingsError: the action is not offered; the message names those that are.
    """
    if not (named := settings.policy.options.get("control_action")):
        return
    action, catalogue = Action.parse(named), control.catalogue
    try:
        control.space(catalogue).index(action)
    except ActionError as error:
        why = f"{variable('policy_options')}: control_action: {error}"
        if control.catalogue_version < 0 or action.model in catalogue.model_names:
            raise SettingsError(why) from None
        # Removing a model must not prevent the decider from starting.
        log.warning("%s: no query is in the control group", why)


# Two gauges: how many decisions await a reward, and the age of the oldest.


class PendingDecisions:
    """The decisions still awaiting a reward. Recovered ones are counted, but have no age."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._count = 0
        # The append times of their Contexts, oldest first, in ms.
        self._since_ms: dict[str, int] = {}

    def recovered(self, count: int) -> None:
        """Start from the number of open decisions in the log."""
        self._count = count
        self._since_ms.clear()  # another worker may have learned from them since
        self.runtime.metrics.pending.set(count)

    def add(self, attempt: str, appended_ms: int) -> None:
        """Count an attempt's decision, given the append time of its Context in ms since the epoch."""
        self._count += 1
        self._since_ms[attempt] = appended_ms

    def heard(self, attempt: str) -> None:
        """Stop tracking the age of a decision whose reward has arrived but has not been learned from yet."""
        self._since_ms.pop(attempt, None)

    def remove(self, attempt: str) -> None:
        """Remove a decision whose reward was learned or charged, or that was abandoned."""
        self._count -= 1
        self._since_ms.pop(attempt, None)

    def show(self) -> None:
        """Update both gauges; the age is 0 if no decision has one."""
        self.runtime.metrics.pending.set(self._count)
        oldest_ms = next(iter(self._since_ms.values()), self.runtime.clock.now_ms())
        self.runtime.metrics.oldest_pending.set(oldest_ms / 1000)


# Reports models whose behaviour has drifted from what was learned.


class DriftNotice:
    """Reports drift detected by the policy: in metrics, and once in the log.

    Args:
        metrics: Where drift is reported.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known: Mapping[str, Drift] = {}

    def recovered(self, policy: Policy) -> None:
        """Set the metrics from the recovered policy. Drift it had already detected was logged at the time."""
        self._known = policy.drifted()
        for model, drift in self._known.items():
            self._metrics.cost_drift.labels(model).set(drift.cost)

    def learned(self, policy: Policy) -> None:
        """Report what the policy has detected since the last call."""
        before, self._known = self._known, policy.drifted()
        for model in sorted(before.keys() | self._known.keys()):
            was, now = before.get(model, Drift()), self._known.get(model, Drift())
            if now.cost != was.cost:
                self._metrics.cost_drift.labels(model).set(now.cost)
            if was.cost == 1.0 != now.cost:
                log.warning(
                    "%s: its searches cost %.2g times what was learned; predictions of its cost are corrected by that. "
                    "Has its template, its sampling or its server changed?",
                    model,
                    now.cost,
                )
            elif was.cost != 1.0 == now.cost:
                log.info("%s: its searches cost what was learned again", model)
            if now.accuracy_seq is not None and now.accuracy_seq != was.accuracy_seq:
                self._metrics.accuracy_drifts.labels(model).inc()
                log.warning(
                    "%s: its answers are right more or less often than was learned; its accuracy is learned again from "
                    "sequence number %d on. Has its checkpoint, its template or its server changed?",
                    model,
                    now.accuracy_seq,
                )


class RoomNotice:
    """Logs the categories of requests that there is no room for, and those that there is room for again."""

    def __init__(self) -> None:
        self._known = frozenset[str]()

    def look(self, policy: Policy) -> None:
        """Log what has changed since the last call."""
        before, self._known = self._known, frozenset(policy.left_out())
        if new := sorted(self._known - before):
            log.warning(
                "nothing is learned about %s: there is no room for more categories, and others have more outcomes. "
                "List fewer values in context_keys",
                ", ".join(new),
            )
        if back := sorted(before - self._known):
            log.info("room for categories: %s", ", ".join(back))


# Reports on objectives with a target: the budget account as metrics, and a log line when the target becomes unreachable
# (with the best value that can be reached) and when it can be met again.

EVERY: Final = 100
"""Decisions between two checks of an objective: a check predicts every configuration on every recent query."""


class Pacing:
    """Metrics and log lines for objectives with a target.

    Args:
        metrics: The metrics that budget accounts are reported in.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seen: OrderedDict[tuple[str, str], tuple[int, bool]] = OrderedDict()
        self._shown: dict[str, str] = {}

    def decided(self, objective: ObjectiveInForce, policy: Policy, tenant: str = "") -> None:
        """Count a decision; check for a shortfall at the first one and every hundredth after it."""
        target = Target.of(objective, tenant)
        if objective.name is not None:
            self._forget(objective.name, target)
        if target is None or policy.pacer is None:
            return
        count, short = self._seen.pop(target.account_id, (0, False))
        if count % EVERY == 0:
            short = self._told(objective, tenant, policy.pacer.shortfall(target), short)
        self._seen[target.account_id] = count + 1, short
        if len(self._seen) > KEYS:
            del self._seen[spare(self._seen)]
        if objective.name is not None:
            in_usd = objective.cost_range.unit == "usd"
            self._show(objective.name, target, policy.pacer.status(target), in_usd=in_usd)

    def _forget(self, name: str, target: Target | None) -> None:
        """Remove the metrics of a named objective whose target was changed or removed."""
        if name not in self._shown or (target is not None and self._shown[name] == target.key):
            return
        del self._shown[name]
        shown = self._metrics
        for gauge in (
            shown.objective_price,
            shown.objective_cost,
            shown.objective_usd,
            shown.objective_accuracy,
        ):
            gauge.remove_by_labels({"objective": name})

    def _show(self, name: str, target: Target, account: BudgetStatus | None, *, in_usd: bool) -> None:
        """Set a named objective's metrics. Queries' own targets get none: each would create a time series."""
        if account is None:
            return
        self._shown[name] = target.key
        self._metrics.objective_price.labels(name).set(account.shadow_price)
        cost = self._metrics.objective_usd if in_usd else self._metrics.objective_cost
        accuracy = self._metrics.objective_accuracy
        if target.mean_cost is not None:
            cost.labels(name, "target").set(target.mean_cost)
        cost.labels(name, "spent").set(account.mean_cost)
        if account.predicted is not None and account.correct is not None:
            accuracy.labels(name, "predicted").set(account.predicted)
            accuracy.labels(name, "true").set(account.correct)

    def _told(self, objective: ObjectiveInForce, tenant: str, best: float | None, before: bool) -> bool:
        name = (objective.name or "stated by a query") + (f" of {tenant!r}" if tenant else "")
        if best is None:
            if before:
                log.info("objective %s: its target can be met again", name)
            return False
        if not before and objective.mean_cost is not None:
            log.warning(
                "objective %s: a mean cost of %.4g %s cannot be met; recent queries cost %.4g at least. "
                "Raise the target, or offer cheaper configurations",
                name,
                objective.mean_cost,
                UNITS[objective.cost_range.unit],
                best,
            )
        elif not before:
            log.warning(
                "objective %s: %.4g of the accuracy within reach cannot be met; %.4g can be had on recent "
                "queries. Lower the target",
                name,
                objective.accuracy,
                best,
            )
        return True


_AGAIN_S: Final = 30.0
"""Seconds before retrying the encoder after it failed to embed a model's actions. Decisions wait during each try."""

_REFUSALS: Final = (EncoderRefused, BadEmbedding)
"""Encoder errors caused by one text; any other error would occur for every text."""


class NotEmbedded(Unavailable):
    """No model can be offered until the encoder embeds its actions; the message says why it has not."""


class Offered(NamedTuple):
    """The actions on offer from a catalogue.

    Attributes:
        version: The offset in `control` of the last change to the catalogue.
        space: The actions on offer.
        whole: Whether these are all of the catalogue's actions; if not, the others are waiting for the encoder.
    """

    version: int
    space: ActionSpace
    whole: bool


# The service's learner: recovered from its log, and offering the current catalogue's actions.


class ShardLearner:
    """Recovers this shard's learner, updates its actions and writes its rows. Callers must hold the service's lock.

    Args:
        runtime: The service's runtime.
        encoder: Embeds the actions.
        pending: Receives the number of open decisions in the log.
        recovered: Awaited once the log's table has been read.

    Attributes:
        decider: The learner; None until it has recovered, and while another worker may be the learner.
        log: Its log on the broker.
        offered: The actions on offer; None before the first offer.
    """

    def __init__(
        self,
        runtime: Runtime,
        encoder: Encoder,
        pending: PendingDecisions,
        recovered: Callable[[], Awaitable[None]],
    ) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.encoder = encoder
        self.log = LearnerLog(runtime, recovered)
        self.decider: Decider | None = None
        self.offered: Offered | None = None
        self._pending = pending
        self._waiting = frozenset[str]()
        self._ask_encoder_s = 0.0

    async def ready(self) -> Decider:
        """Return the learner, offering the current catalogue except for models waiting for the encoder.

        Raises:
            CorruptState: The learner is not recovered yet, and its log is incomplete.
            PartitionLost: This worker does not own the learner, or does not own it yet.
            NotEmbedded: No model can be offered yet.
        """
        decider = self.decider or await self.rebuild()
        while not self._is_current():  # the catalogue may change while this one is being offered
            await self._offer(decider)
        return decider

    async def rebuild(self) -> Decider:
        """Recover the learner from its log; if the log is empty, start from the prior, if there is one.

        Raises:
            CorruptState: The log is incomplete.
            PartitionLost: This worker does not own the learner, or does not own it yet.
        """
        policy = policy_of(self.settings, self.encoder)
        decider = Decider(
            policy,
            seed=self.settings.policy.seed,
            encoder=encoder_id(self.encoder),
            unit=self.runtime.control.catalogue.unit,
            limit=self.runtime.limit,
            ended=EndedIds(self.settings.policy.remembered_ids),
        )
        try:
            found = await self.log.recover(decider)
        except CorruptState as error:
            raise error.within(f"{self.log.changelog}, read with {self.log.topic}:") from error
        if (prior := prior_of(self.settings)) is not None:
            await self._begin(decider, prior)
        self._pending.recovered(found.folded.outstanding)
        self.show(decider)
        self.decider, self.offered = decider, None
        return decider

    def show(self, decider: Decider) -> None:
        """Set the gauges for the learner's progress."""
        self.runtime.metrics.policy_version.set(decider.policy.version)
        self.runtime.metrics.sequence.set(decider.seq)

    @property
    def live(self) -> Decider:
        """Return the recovered learner."""
        assert self.decider is not None, "the learner is not recovered"
        return self.decider

    def offers(self, catalogue_version: int) -> bool:
        """Return whether the learner offers this catalogue, except for models waiting for the encoder."""
        return self.offered is not None and self.offered.version == catalogue_version

    async def vectors(
        self, decider: Decider, catalogue: Catalogue
    ) -> tuple[ActionSpace, Sequence[ActionVector]]:
        """Return the actions in a catalogue that can be offered: all of them, or those embedded so far.

        Each new model is embedded separately, so that a model refused by the encoder does not hold up the others.
        Waiting models are retried after 30 s. The first offer fixes the centre of the vectors, so it is not made while
        the encoder is unavailable.

        Raises:
            NotEmbedded: No action can be offered.
        """
        known, space = decider.actions, self.runtime.control.space(catalogue)
        new = {action.model for action in space if action.id not in known}
        found = {action.id: known[action.id].vector() for action in space if action.id in known}
        if found and self.runtime.monotonic() < self._ask_encoder_s:
            new -= self._waiting
        asked = [model for model in catalogue.models if model.name in new]
        failed, away = list[str](), False
        for at, model in enumerate(asked):
            try:
                embedded = await self.embedded(msgspec.structs.replace(catalogue, models=(model,)))
                found = {each.action_id: each for each in embedded} | found
            except EncoderError as error:
                self.runtime.metrics.engine_faults.labels("decider").inc()
                away = not isinstance(error, _REFUSALS)
                names = ", ".join(sorted(each.name for each in (asked[at:] if away else [model])))
                failed.append(f"{names}: {error}")
                if away:
                    break
        if failed:
            why = "; ".join(failed)
            if not found or (away and not known):
                raise NotEmbedded(f"the encoder: {why}")
            self._ask_encoder_s = self.runtime.monotonic() + _AGAIN_S
            log.warning("not on offer until the encoder embeds it: %s", why)
        self._waiting = frozenset(action.model for action in space if action.id not in found)
        left = tuple(action for action in space if action.id in found)
        return ActionSpace(left), [found[action.id] for action in left]

    def row(self, query_id: str) -> bytes | None:
        """Return a query's row, or None if it has no row."""
        return self.log.table.get(key_of(query_id))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Wrap a change to the learner and the write of its rows; if either fails, this learner is not used again.

        Raises:
            PartitionLost: The log belongs to another worker, or is being recovered; nothing was written.
            PartialWrite: Anything else failed; the learner may be ahead of its log.
        """
        try:
            yield
        except BaseException as error:
            self.decider = None
            if isinstance(error, Exception) and not isinstance(error, Crash | PartitionLost):
                raise PartialWrite("the learner may be ahead of its log") from error
            raise

    async def write(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write rows and wait until they are durable; end the service if the broker does not accept them.

        Raises:
            PartitionLost: The log belongs to another worker, or is being recovered; nothing was written.
        """
        try:
            await self.log.write(rows)
        except SendFailed as error:
            # The learner in memory is ahead of its log, and only the log knows what was written.
            self.runtime.crash("the learner's rows could not be written", error)

    async def _begin(self, decider: Decider, path: Path) -> None:
        """Start from a prior if the log is empty; otherwise the log contains what the learner started from."""
        asked = bool(self.settings.policy.prior)
        if decider.prior or decider.seq or decider.actions:
            if asked and decider.prior != digest(await self.runtime.in_thread(lambda: read_prior(path))):
                log.warning(
                    "the log began from %s; the prior %s counts for an empty log only",
                    f"prior {decider.prior}" if decider.prior else "nothing",
                    path,
                )
            return
        prior, control = await self.runtime.in_thread(lambda: read_prior(path)), self.runtime.control
        try:
            records = self._begun(decider, prior, control.catalogue)
        except PriorRefused as error:
            # If models were added or removed before the learner first started, the prior may match the file instead.
            try:
                records = self._begun(decider, prior, control.base)
            except PriorRefused:
                if asked:
                    raise error from None
                # The catalogue's prior is optional: it fits one policy, one encoder and the models in the file.
                log.info("the learner starts without a prior: %s", error)
                return
        try:
            await self.log.begin(records)
        except SendFailed as error:
            self.runtime.crash("the prior could not be written", error)
        log.info("the learner begins from prior %s", decider.prior)

    def _begun(self, decider: Decider, prior: bytes, catalogue: Catalogue) -> list[tuple[bytes, bytes]]:
        """Start the learner from a prior for a catalogue's models; return the rows to write.

        Raises:
            PriorRefused: the prior does not fit; nothing has changed.
        """
        return decider.begin(prior, sized(catalogue), self.log.chunk_bytes, catalogue.cost_basis)

    async def embedded(self, catalogue: Catalogue) -> Sequence[ActionVector]:
        """Return a catalogue's actions as the policy sees them. Slow for actions that are not in the cache.

        Raises:
            EncoderError: The encoder returned no vector.
        """
        cache, pairs = self.settings.state_path("actions"), self.runtime.control.pairs
        return await self.runtime.in_thread(
            lambda: action_vectors(catalogue, self.encoder, cache, pairs=pairs)
        )

    def _is_current(self) -> bool:
        """Return whether every action in the current catalogue that can be offered is on offer."""
        offered = self.offered
        if offered is None or offered.version != self.runtime.control.catalogue_version:
            return False
        return offered.whole or self.runtime.monotonic() < self._ask_encoder_s

    async def _offer(self, decider: Decider) -> None:
        """Offer the current catalogue.

        Raises:
            NotEmbedded: None of its models can be offered yet.
        """
        control = self.runtime.control
        catalogue, version = control.catalogue, control.catalogue_version
        space, vectors = await self.vectors(decider, catalogue)
        with self.changing():
            baseline = baseline_of(self.settings, catalogue, space)
            mixed = catalogue.verified != "all"
            await self.write(decider.offer(vectors, catalogue.price_factors, baseline, mixed=mixed))
        if baseline and not decider.policy.graded:
            log.warning("%s", ungraded_in_words(baseline))
        self.offered = Offered(version, space, len(space) == len(control.space(catalogue)))
        log.info("on offer: %s", ", ".join(space.models))


# A single partition and lock put decisions and updates in one order (`OrderedService`). The state behind a decision is
# on the broker before the decision is sent. A redelivered Context gets the stored bytes; a redelivered Reward changes
# nothing. `agents.decider` contains the logic.


class DeciderService(OrderedService):
    """The handlers of one shard, which share its learner one at a time.

    Attributes:
        learner: The learner they use.
        lock: Held while the learner is used.
    """

    def __init__(self, runtime: Runtime, encoder: Encoder) -> None:
        self.runtime = runtime
        self.encoder = encoder
        self.pending = PendingDecisions(runtime)
        self.learner = ShardLearner(runtime, encoder, self.pending, self._recovered)
        self.pacing = Pacing(runtime.metrics)
        self.drift = DriftNotice(runtime.metrics)
        self.room = RoomNotice()
        self.lock = asyncio.Lock()
        self._beats_awaited = False
        self._grace_ends = self._grace_from_now()
        self._at_baseline = False  # whether any query has been given the baseline since the start
        self._contexts: dict[str, QueryContext] = {}  # Contexts for a batch of AttemptFailed, by query
        # The offset of the last AttemptFailed in the batch being handled; -1 if the batch has none.
        self._last_failure = -1

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the encoder and embed the actions; later catalogues use the cache."""
        service = cls(runtime, await runtime.in_thread(lambda: encoder_of(runtime.settings.encoder)))
        policy_of(runtime.settings, service.encoder)
        check_control_group(runtime.settings, runtime.control)
        if said := mixed_in_words(runtime.control.catalogue):
            log.warning("%s", said)
        # The encoder may refuse a model added later: start without it.
        with suppress(*_REFUSALS):
            await service.learner.embedded(runtime.control.catalogue)
        return service

    async def prepare(self, kind: type[Record], batch: Sequence[tuple[Any, ConsumerRecord]]) -> None:
        """Read the Contexts of queries to decide again. If the broker is slow, other queries are decided meanwhile."""
        if kind is AttemptFailed:
            self._contexts = {}
            await self._read_contexts(batch)

    async def ready(self, kind: type[Record], batch: Sequence[tuple[Any, ConsumerRecord]]) -> None:
        """Wait for the learner and, before the first decision, for executors' heartbeats."""
        if kind is not Reward:
            await self._wait_for_executors()
        await self.learner.ready()  # after the wait: the decision must see the catalogue that is offered
        if kind is AttemptFailed:
            await self._read_contexts(batch)  # if there were no rows before

    async def on_batch(self, batch: Sequence[tuple[Any, ConsumerRecord]]) -> BatchEffects:
        """Decide for contexts, learn from rewards, or retry attempts that failed.

        A refit on all outcomes runs in a thread: it can take a second and would block the event loop. In the meantime,
        only the holder of the lock reads the learner.
        """
        self._last_failure = -1
        if not batch:
            return BatchEffects()
        if isinstance(batch[0][0], QueryContext):
            return self._decide(batch)
        learn = self._retry if isinstance(batch[0][0], AttemptFailed) else self._learn
        if self.learner.live.policy.refits.due(len(batch)):
            return await self.runtime.in_thread(partial(learn, batch))
        return learn(batch)

    def changing(self) -> AbstractContextManager[None]:
        """Wrap a change to the learner; see `ShardLearner.changing`."""
        return self.learner.changing()

    async def write(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write rows; see `ShardLearner.write`."""
        await self.learner.write(rows)

    async def settled(self) -> None:
        """Update the pending gauges, and write a snapshot if one is due; all records of the batch have been sent."""
        self.learner.log.retried_offset = max(self.learner.log.retried_offset, self._last_failure)
        decider = self.learner.live
        self.pending.show()
        self.learner.show(decider)
        self.room.look(decider.policy)
        await self.learner.log.snapshot_when_due(decider)

    @property
    def decider(self) -> Decider | None:
        """Return the learner; None until it has recovered."""
        return self.learner.decider

    def environments(self, space: ActionSpace) -> tuple[DecisionEnvironment, DecisionEnvironment]:
        """Return the current decision environments: for queries that a live executor can run, and for the others.

        The others are decided too, so that their deadline starts and they end in an `expired` Answer rather than none.

        Args:
            space: The actions on offer.
        """
        state = self.runtime.control.state
        waiting = frozenset(state.catalogue.model_names).difference(space.models)
        settings = self.runtime.settings
        others = DecisionEnvironment(
            state,
            space,
            waiting=waiting,
            context_keys=settings.policy.keys(),
            session_s=settings.queries.session_s,
        )
        return replace(others, living=self.runtime.control.serving()), others

    def _decide(self, batch: Sequence[tuple[QueryContext, ConsumerRecord]]) -> BatchEffects:
        """Decide for each new context; resend the stored Decision for a redelivered one."""
        assert self.learner.offered is not None, "nothing is on offer"
        living, others = self.environments(self.learner.offered.space)
        served = [living.serves(context.query) for context, _ in batch]
        made: dict[bytes, bytes] = {}

        def row(query_id: str) -> bytes | None:
            return made.get(key_of(query_id)) or self.learner.row(query_id)

        done: list[tuple[QueryContext, ConsumerRecord, DecisionResult]] = []
        # Decide first for the queries that a live executor can run, then for the others.
        for trust, environment in ((True, living), (False, others)):
            part = [each for each, known in zip(batch, served, strict=True) if known is trust]
            if not part:
                continue
            results = self.learner.live.decide(
                [(context, at.origin) for context, at in part], row, environment, self.runtime.monotonic
            )
            made.update(each.row for each in results if each.row)
            done += [(context, at, each) for (context, at), each in zip(part, results, strict=True)]
        return BatchEffects(
            rows=[each.row for _, _, each in done if each.row],
            send=[out for _, _, each in done for out in self._outgoing(each)],
            refused=[_refused(context, at, each.error) for context, at, each in done if each.error],
            then=partial(self._decided, done),
        )

    def _decided(self, done: Sequence[tuple[QueryContext, ConsumerRecord, DecisionResult]]) -> None:
        for _, at, each in done:
            if each.error is None and each.resent:
                self.runtime.metrics.duplicates.labels(at.topic).inc()
            elif each.error is None and each.value is not None:
                self.pending.add(each.query_id, at.timestamp_ms)
                decision = decode(each.value, Decision)
                self._count(decision)
                self._at_baseline = self._at_baseline or decision.reason == "baseline"
                policy = self.learner.live.policy
                self.pacing.decided(decision.objective, policy, decision.query.account)

    def _learn(self, batch: Sequence[tuple[Reward, ConsumerRecord]]) -> BatchEffects:
        """Apply each new reward."""
        told = [(reward, at.offset) for reward, at in batch]
        results = self.learner.live.learn(told, self.learner.row)
        done = list(zip(batch, results, strict=True))
        return BatchEffects(
            rows=[row for each in results for row in each.rows],
            refused=[
                Refusal(each.error, at.value, at.origin, answer=True) for (_, at), each in done if each.error
            ],
            then=partial(self._learned, done),
        )

    async def _read_contexts(self, batch: Sequence[tuple[AttemptFailed, ConsumerRecord]]) -> None:
        # Rows do not contain the question, so another decision needs the original Context.
        missing = [record for record, _ in batch if record.query_id not in self._contexts]
        found = await asyncio.gather(*map(self._context, missing))
        self._contexts |= {context.query_id: context for context in found if context is not None}

    async def _context(self, record: AttemptFailed) -> QueryContext | None:
        """Return a query's Context; None if it is gone, or if the learner does not know the query.

        Raises:
            Unavailable: The broker cannot be read.
        """
        names = (attempt_id(record.query_id, record.attempt + more) for more in (0, 1))
        value = next((found for name in names if (found := self.learner.row(name))), None)
        row = None if value is None else decode_row(key_of(record.query_id), value)
        there = await self.runtime.log.at(row.context_origin) if isinstance(row, Row) else None
        try:
            return None if there is None else decode(there.value, QueryContext)
        except UniscaleError as error:
            log.error("%s: its Context cannot be read again: %s", record.query_id, error)
            return None

    def _failure(self, record: AttemptFailed, at: ConsumerRecord) -> Failure:
        context = self._contexts.get(record.query_id)
        cost = None
        try:
            cost = cost_of(record.answer, self.runtime.control.cost_model)
        except (UniscaleError, ValueError, ArithmeticError) as error:
            log.warning(
                "%s: what its attempt %d cost is not known: %s", record.query_id, record.attempt, error
            )
        in_time = context is not None and self._in_time(context)
        return Failure(record, at.offset, context, None if cost is None else cost.cost or None, in_time)

    def _in_time(self, context: QueryContext) -> bool:
        """Return whether a query still has time for a search to begin."""
        timeout_s = context.query.timeout_s or self.runtime.settings.queries.timeout_s
        until_ms = context.appended_ms + timeout_s * SearchRules().search_share * 1000
        return not context.appended_ms or self.runtime.clock.now_ms() < until_ms

    def _retry(self, batch: Sequence[tuple[AttemptFailed, ConsumerRecord]]) -> BatchEffects:
        """Decide each failed attempt's query again, or end it with that attempt's Answer."""
        assert self.learner.offered is not None, "nothing is on offer"
        self._last_failure = batch[-1][1].offset
        living, _ = self.environments(self.learner.offered.space)
        results = self.learner.live.retry_failed(
            [self._failure(record, at) for record, at in batch],
            self.learner.row,
            living,
            attempts=self.runtime.settings.queries.attempts,
            timer=self.runtime.monotonic,
        )
        done = list(zip(batch, results, strict=True))
        return BatchEffects(
            rows=[row for each in results for row in each.rows],
            send=[out for each in results for out in self._retry_effects(each)],
            refused=[
                Refusal(each.error, at.value, at.origin, answer=True) for (_, at), each in done if each.error
            ],
            then=partial(self._retried, done),
        )

    def _retry_effects(self, result: RetryResult) -> list[Outgoing]:
        if result.answer is not None:
            return [Outgoing.of(self.runtime.topics.answer, result.answer)]
        return self._outgoing(DecisionResult(result.query_id, result.value, result.group))

    def _retried(self, done: Sequence[tuple[tuple[AttemptFailed, ConsumerRecord], RetryResult]]) -> None:
        metrics = self.runtime.metrics
        for (record, at), each in done:
            if each.error is not None:
                continue
            if not each.rows:
                metrics.duplicates.labels(at.topic).inc()
                continue
            self.pending.remove(attempt_id(record.query_id, record.attempt))
            if each.refused is not None:
                log.info("%s: not tried again: %s", record.query_id, each.refused)
            model = record.answer.action.model if record.answer.action else ""
            metrics.failed_attempts.labels(model, "answered" if each.value is None else "retried").inc()
            if each.value is not None:
                decision = decode(each.value, Decision)
                self.pending.add(attempt_id(decision.query_id, decision.attempt), at.timestamp_ms)
                self._count(decision)
        self.drift.learned(self.learner.live.policy)

    def _learned(self, done: Sequence[tuple[tuple[Reward, ConsumerRecord], LearnResult]]) -> None:
        metrics = self.runtime.metrics
        for (reward, at), each in done:
            if each.error is not None:
                continue
            name = attempt_id(reward.query_id, reward.attempt)
            for later in set(each.ended) - {name}:
                self.pending.remove(later)
            if each.rows and each.verdict != "late":
                metrics.rewards_applied.labels(reward.kind).inc()
                if each.verdict in ("learned", "priced", "failed", "abandoned"):
                    self.pending.remove(name)
                continue
            metrics.rewards_ignored.labels(each.verdict).inc()
            if each.verdict == "unlearnable":
                self.pending.heard(name)
            if each.verdict == "duplicate":
                metrics.duplicates.labels(at.topic).inc()
            elif each.verdict == "differs":
                log.warning("%s: differs from the one that was learned from: ignored", reward.reward_id)
        self.drift.learned(self.learner.live.policy)
        if self._at_baseline and self.learner.live.policy.graded:
            self._at_baseline = False
            log.info("an answer has been graded: from now on the policy decides, and no longer the baseline")

    def _outgoing(self, decided: DecisionResult) -> list[Outgoing]:
        if decided.value is None:
            return []
        key = key_of(decided.query_id)
        topics = self.runtime.topics
        # To the aggregator first, so that it knows the deadline before the executor's Answer arrives.
        return [
            Outgoing(topics.decision, key, decided.value),
            Outgoing(topics.decision_for(decided.group), key, decided.value),
        ]

    def _count(self, decision: Decision) -> None:
        metrics, action = self.runtime.metrics, decision.action
        metrics.decisions.labels(decision.reason).inc()
        metrics.choices.labels(action.model, str(action.qp), str(action.cp), str(action.bs)).inc()
        for model in decision.masked_models:
            metrics.masked.labels(model).inc()

    async def _wait_for_executors(self) -> None:
        """Wait for the first heartbeats, soon after the start only; until they come, all models would look dead."""
        if self._beats_awaited:
            return
        while missing := set(self.runtime.control.catalogue.model_names) - self.runtime.control.serving():
            if self.runtime.monotonic() >= self._grace_ends:
                log.warning("no executor serves %s yet: decided without", ", ".join(sorted(missing)))
                break
            await self.runtime.sleep(0.1)
        self._beats_awaited = True

    def _grace_from_now(self) -> float:
        return self.runtime.monotonic() + self.runtime.settings.executor.heartbeat_grace_s

    async def _recovered(self) -> None:
        """Rebuild the learner before reading starts, because the log determines where reading continues.

        The models are offered here too, so that the first query does not wait for the offer.
        """
        async with self.lock:
            self.learner.decider = None
            try:
                self.drift.recovered((await self.learner.ready()).policy)
            except NotEmbedded as error:
                # The learner is recovered: the first query waits and retries.
                log.warning("no model can be offered: %s", error)
            except PartitionLost:
                self.pending.recovered(0)
            self.pending.show()
            self._grace_ends = self._grace_from_now()


def _refused(context: QueryContext, at: ConsumerRecord, error: Exception) -> Refusal:
    """Return the refusal of a context. A duplicate gets no Answer: the first query with its id has or will have one."""
    taken = isinstance(error, DuplicateQuery)
    return Refusal(error, at.value, at.origin, not taken, context.origin if taken else None)
