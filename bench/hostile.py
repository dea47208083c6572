"""The effect of one hostile tenant of six, with every permission of the scope `ask`, on the five others.

The product's own services and gateway run in memory, on a virtual clock, with a recorded engine made from
`experiments/data/mixed-2.parquet`. Five honest tenants, whose keys teach, send rounds of forty questions each, which
keep the deployment busy. The sixth tenant starts before them and sends as many questions as the five together, with as
many in flight as its key allows. The same honest questions, in the same order, are run alone, alone with different
delays (which measures chance, because decisions depend on the rewards that have arrived), with an honest sixth tenant
that sends as many questions, and with a hostile sixth tenant of each kind.

**The criterion.** Every figure is compared within a seed; the mean over the seeds has Student's 95 % interval. For
accuracy, cost and regret, the spread is pooled over all kinds, because none of them should change what is learned and
all should differ only by chance. A bound is met if the interval does not exceed it. Accuracy, cost, regret and waiting
time are compared with the mean of the two runs with the honest five alone; they may be worse by 1 point, 5 %, 1.5
points and a factor of 2, respectively (a wait below 0.1 s is taken as 0.1 s). Decider time and bytes may be at most
twice those of the run with an honest sixth tenant. Regret is measured in correctness minus a tenth of the relative
cost, against the cheapest single configuration that is right nearly as often as the best one. That configuration's cost
is the unit, so 1 point and 5 % of the cost make 1.5 points. Bytes on disk exclude the sixth tenant's own questions,
because a key may send 64 MiB per minute.
"""

import asyncio
import logging
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import orjson
from scipy import stats

from agents.decider.decider import Decider
from agents.embedding import Encoder, Vectors
from agents.grading.quantities import as_number
from agents.minilm import MiniLM
from agents.serving.recorded import RecordedPath, RecordedStep, Recording
from experiments.outcomes import Outcomes, load_recording
from experiments.record.table import questions_in
from experiments.yardstick import is_history
from schemas.answer import Answer
from schemas.control import KeyEntry, Scope
from schemas.query import Query, QueryContext
from schemas.record import decode, encode
from schemas.reward import Reward
from streams.cli.keys import make_key
from streams.gateway.errors import ApiError
from streams.gateway.request import digest, parse
from streams.gateway.service import GatewayService
from streams.log.base import ConsumerRecord
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.runtime.runtime import Runtime
from streams.services import SERVICES, decider, embedder
from streams.settings import Settings

RECORDING: Final = Path("experiments/data/mixed-2.parquet")
HONEST: Final = ("a", "b", "c", "d", "e")
EACH: Final = 40
"""Number of questions that each honest tenant sends per round; the sixth tenant sends as many as all five together."""

PLACES: Final = 30
"""Maximum number of queries in flight with five or six active tenants. A round is larger, so queries have to wait."""

SIXTH: Final = "sixth"
TEACHES: Final[tuple[Scope, ...]] = ("ask", "feedback", "read", "teach")
LEAST_WAIT_S: Final = 0.1
PRIORS: Final = ("shipped", "none")


# The questions, and the recorded engine's answers.


class Answered(NamedTuple):
    """A question that is not in the prior and that has an integer answer."""

    text: str
    reference: int
    hard: bool


class Corpus(NamedTuple):
    """The questions, and how well single configurations answer them.

    Attributes:
        questions: All questions.
        paths: The models' outputs.
        usual: For the configuration that regret refers to, correctness minus a tenth of its cost (in multiples of
            `unit`).
        unit: That configuration's mean cost, in eFLOPs.
    """

    questions: list[Answered]
    paths: list[RecordedPath]
    usual: float
    unit: float


@cache
def corpus() -> Corpus:
    """Return the live questions of a recording, and paths that reproduce its outcomes.

    A search's seed draws from its model's paths. A path is included four times if its configuration has a single
    sample, twice if it has four samples or beams, and once otherwise.
    """
    table = load_recording(RECORDING)
    numbers = ((each.question_id, as_number(str(each.reference))) for each in questions_in(RECORDING))
    whole = {name: int(number) for name, number in numbers if number is not None and number.denominator == 1}
    live = [
        at
        for at, each in enumerate(table.questions)
        if not is_history(each.question_id) and each.question_id in whole
    ]
    table = table.of_questions(live)
    right = table.correct[0]
    questions = [
        Answered(each.text, whole[each.question_id], not right[at].any())
        for at, each in enumerate(table.questions)
    ]
    paths = [
        path
        for at, known in enumerate(questions)
        for arm in range(len(table.arms))
        for path in _paths(table, at, arm, known)
    ]
    accuracy, cost = right.mean(axis=0), table.cost[0].mean(axis=0)
    usual = min(np.flatnonzero(accuracy >= 0.98 * accuracy.max()), key=lambda arm: cost[arm])
    return Corpus(questions, paths, float(accuracy[usual]) - 0.1, float(cost[usual]))


def _paths(table: Outcomes, at: int, arm: int, known: Answered) -> Iterator[RecordedPath]:
    """Yield the path that a configuration returned for a question, once for each time it is to be included."""
    of = table.arms[arm]
    cell = {name: float(table.extra[name][0, at, arm]) for name in ("depth", "tokens", "drafts")}
    depth, a_step = max(1, round(cell["depth"])), max(1, round(cell["tokens"] / max(cell["drafts"], 1.0)))
    answer = known.reference if table.correct[0, at, arm] else known.reference + 1
    score = float(np.clip(table.score[0, at, arm], 0.0, 1.0))
    ends = [f"\\boxed{{{answer}}}" if step == depth - 1 else "\n\n" for step in range(depth)]
    steps = tuple(
        RecordedStep(
            text=f"{of.qp}.{of.cp}.{step}: {end}",
            tokens=a_step,
            score=score,
            finish="eos" if step == depth - 1 else "separator",
        )
        for step, end in enumerate(ends)
    )
    for copy in range({1: 4, 4: 2}.get(of.qp * of.cp, 1)):
        yield RecordedPath(question=known.text, model=of.model, path=copy, steps=steps, prompt_tokens=40)


class _Mixture:
    """One seed's queries. Those of the honest tenants are the same in every setting."""

    def __init__(self, seed: int, outcomes: int) -> None:
        asked = corpus().questions
        self.honest = _shuffled(asked, random.Random(f"honest {seed}"), outcomes)
        self.sixth = _shuffled(asked, random.Random(f"sixth {seed}"), outcomes)
        rng = random.Random(f"hostile {seed}")
        self.hard = _shuffled([each for each in asked if each.hard], rng, outcomes)
        self.filler = ["".join(rng.choices("abcdefghij ", k=120_000)) for _ in range(8)]


def _shuffled(asked: Sequence[Answered], rng: random.Random, count: int) -> list[Answered]:
    found: list[Answered] = []
    while len(found) < count:
        found += rng.sample(asked, len(asked))
    return found[:count]


def _body(known: Answered, **more: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": known.text}], **more}


def _graded(known: Answered) -> dict[str, Any]:
    return _body(known, uniscale={"reference": str(known.reference)})


def _false(at: int, traffic: _Mixture) -> dict[str, Any]:
    """Return a request with a false reference, or one that waits for false feedback."""
    known = traffic.sixth[at]
    uniscale = {"feedback_wait_s": 5.0} if at % 2 else {"reference": str(known.reference + 7)}
    return _body(known, uniscale=uniscale)


def _huge(at: int, traffic: _Mixture) -> dict[str, Any]:
    """Return a request that fills the family's largest context, at the gateway's eight bytes per token."""
    return _body(Answered(f"{at} {traffic.filler[at % len(traffic.filler)]}", 0, True))


KINDS: Final[dict[str, Callable[[int, _Mixture], dict[str, Any]]]] = {
    "hard questions": lambda at, traffic: _body(traffic.hard[at]),
    "false references and feedback": _false,
    "pinned to the dearest": lambda at, traffic: _body(traffic.hard[at], model="mini-4m/64/1/1"),
    "max_tokens of 1 to 4": lambda at, traffic: _body(traffic.sixth[at], max_tokens=1 + at % 4),
    "huge prompts": _huge,
    "targets of its own": lambda at, traffic: _body(
        traffic.hard[at], uniscale={"mean_cost": 1e9 * (1.0 + at)}
    ),
}
"""A hostile tenant's requests, keyed by the kind of hostility."""

ALONE: Final = ("alone", "alone, timed otherwise")
BUSY: Final = ("an honest sixth",)
"""The settings with an honest sixth tenant, which hostile settings are compared with."""

UNTAUGHT: Final = "hard questions, and no key teaches"
"""A setting exempt from the bounds: if no key has the scope `teach`, the policy learns from all plain questions."""


def _sixth(setting: str, at: int, traffic: _Mixture) -> dict[str, Any]:
    if setting in BUSY:
        return _graded(traffic.sixth[at])
    return KINDS[setting.partition(",")[0]](at, traffic)


# An in-memory deployment that runs one setting.


class _Remembered:
    """The encoder with a cache, so that each text is embedded once."""

    def __init__(self, inner: Encoder) -> None:
        self._inner, self._rows = inner, dict[str, Vectors]()
        self.name, self.version, self.dimension, self.truncated = (
            inner.name,
            inner.version,
            inner.dimension,
            0,
        )

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row per text."""
        for text in texts:
            # Text beyond the encoder's maximum length does not affect the vector.
            if text[:8000] not in self._rows:
                self._rows[text[:8000]] = self._inner.encode([text])
        rows = [self._rows[text[:8000]] for text in texts]
        return np.concatenate(rows) if rows else np.zeros((0, self.dimension), np.float32)


@cache
def _encoder() -> _Remembered:
    return _Remembered(MiniLM())


@cache
def _recording() -> Recording:
    return Recording(corpus().paths)


class _Clock:
    """The CPU seconds spent on deciding and learning, and the decider."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.learner: Decider | None = None


@contextmanager
def _watched(clock: _Clock) -> Iterator[None]:
    """Time the decider's two functions. Embed each text, and read the recording, only once for all runs."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Decider, *args: Any) -> Any:
            began, clock.learner = time.process_time(), self
            try:
                return function(self, *args)
            finally:
                clock.seconds += time.process_time() - began

        return call

    others: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (Decider, "decide", timed(Decider.decide)),
        (Decider, "learn", timed(Decider.learn)),
        (embedder, "encoder_of", lambda settings: _encoder()),
        (decider, "encoder_of", lambda settings: _encoder()),
        (Recording, "load", lambda *_, **__: _recording()),
    )
    before = [getattr(owner, name) for owner, name, _ in others]
    for owner, name, other in others:
        setattr(owner, name, other)
    try:
        yield
    finally:
        for (owner, name, _), old in zip(others, before, strict=True):
            setattr(owner, name, old)


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one setting, for the five honest tenants unless stated otherwise.

    Attributes:
        setting: The sixth tenant's behaviour.
        prior: The learner's initial state: `shipped` or `none`.
        seed: Seed for traffic and timing.
        outcomes: Total number of questions from the five honest tenants.
        accuracy: Share of right answers.
        cost: Mean cost of a query, in eFLOPs.
        regret: Regret as defined in the module's docstring.
        wait_s: The 95th percentile of the wait for admission.
        decider_ms: The decider's CPU time per query, over all tenants.
        resident: Bytes of state kept by services: table rows, the gateway's index and the learner.
        disk: Bytes on all topics.
        sent: Bytes in the sixth tenant's queries.
        refused: Number of the sixth tenant's requests that the gateway refused.
        taught: Number of the sixth tenant's outcomes that could be learned from.
    """

    setting: str
    prior: str
    seed: int
    outcomes: int
    accuracy: float
    cost: float
    regret: float
    wait_s: float
    decider_ms: float
    resident: int
    disk: int
    sent: int
    refused: int
    taught: int


class _Trial:
    """A deployment and its tenants."""

    def __init__(self, settings: Settings, setting: str, seed: int, outcomes: int) -> None:
        self.setting, self.traffic, self.outcomes = setting, _Mixture(seed, outcomes), outcomes
        self.gateway: GatewayService
        timing = seed + 1000 if setting == ALONE[1] else seed
        self.cluster = Cluster(settings, {**SERVICES, "gateway": self._gateway()}, seed=timing)
        self.topics, self.broker = self.cluster.topics, self.cluster.broker
        self.keys: dict[str, str] = {}
        self.tenants: dict[str, str] = {}  # tenant by query id
        self.refused = 0
        self.ended: set[str] = set()
        self.open: set[str] = set()  # the sixth tenant's open queries
        self.asked_ms: dict[str, int] = {}
        self.admitted_ms: dict[str, int] = {}
        self.rewards: dict[str, Reward] = {}
        self.disk = self.sent = 0
        names = {topic.name for topic in self.topics.declared(self.cluster.groups)}
        names |= {self.topics.changelog(*of) for of in (("decider", "pending"), ("aggregator", "join"))}
        self.broker.watch(self, names, self._see)

    def _gateway(self) -> Any:
        async def build(runtime: Runtime) -> None:
            self.gateway = GatewayService(runtime, runtime.settings.gateway.recent)
            await self.gateway.follow()

        return msgspec.structs.replace(SERVICES["gateway"], build=build)

    def _see(self, record: ConsumerRecord) -> None:
        size, topics = len(record.key or b"") + len(record.value or b""), self.topics
        self.disk += size
        if record.topic == topics.query:
            query = decode(record.value, Query)
            self.asked_ms[query.query_id] = record.timestamp_ms
            self.sent += size if query.tenant == SIXTH else 0
        elif record.topic == topics.context:
            self.admitted_ms[decode(record.value, QueryContext).query_id] = record.timestamp_ms
        elif record.topic == topics.reward:
            reward = decode(record.value, Reward)
            if reward.closes:
                self.rewards[reward.query_id] = reward
                self._end(reward.query_id)
        elif record.topic == topics.answer and (answer := decode(record.value, Answer)).action is None:
            self._end(answer.query_id)

    def _end(self, query_id: str) -> None:
        self.ended.add(query_id)
        self.open.discard(query_id)

    async def live(self) -> None:
        """Send all queries in rounds. A round starts when all queries of the previous round have their rewards."""
        await self.cluster.up()
        await self.cluster.start("gateway")
        teaches = TEACHES[:-1] if self.setting == UNTAUGHT else TEACHES
        for name in HONEST:
            self._key(name, teaches, EACH)
        self._key(SIXTH, TEACHES if self.setting in BUSY else TEACHES[:-1])
        await self.cluster.until(lambda: len(self.gateway.runtime.control.serving()) > 0)
        a_round = EACH * len(HONEST)
        for begin in range(0, self.outcomes, a_round):
            end = min(begin + a_round, self.outcomes)
            sixth = asyncio.create_task(self._attacks(range(begin, end)))
            await asyncio.sleep(0.3)
            for at in range(begin, end):
                await self._ask(HONEST[at % len(HONEST)], at, _graded(self.traffic.honest[at]))
            await sixth
            await self.cluster.until(self._settled, timeout_s=36_000.0)

    def _settled(self) -> bool:
        """Return whether every query has its closing reward. If a worker has ended, raise its error."""
        if self.cluster.deaths:
            raise self.cluster.deaths[0]
        return self.ended >= set(self.tenants)

    def _key(self, name: str, scopes: tuple[Scope, ...], in_flight: int | None = None) -> None:
        self.keys[name], sha = make_key()
        entry = KeyEntry(name=name, op="add", sha256=sha, tenant=name, scopes=scopes, in_flight=in_flight)
        self.cluster.produce(self.topics.control, entry.key.encode(), encode(entry))

    async def _attacks(self, asked: range) -> None:
        """Send the sixth tenant's queries, with as many in flight as its key allows."""
        for at in asked if self.setting not in ALONE else ():
            await self.cluster.until(lambda: len(self.open) < PLACES)
            await self._attack(at)

    async def _attack(self, at: int) -> None:
        body = _sixth(self.setting, at, self.traffic)
        query_id = ""
        while not query_id:
            try:
                query_id = await self._ask(SIXTH, at, body)
            except ApiError:
                self.refused += 1
                if body == (plain := _body(self.traffic.hard[at])):
                    await asyncio.sleep(1.0)  # the key has reached its limit of bytes per minute
                body = plain
        if "feedback_wait_s" in body.get("uniscale", {}):
            who = self.gateway.keys.credential(self.keys[SIXTH])
            await self.gateway.access.feedback(query_id, at % 4 == 1, "", "person", who)

    async def _ask(self, tenant: str, at: int, body: Mapping[str, Any]) -> str:
        raw = orjson.dumps(body)
        who = self.gateway.keys.credential(self.keys[tenant])
        admitted = await self.gateway.submission.submit(
            parse(raw), who, digest=digest(raw), idempotency_key=f"{tenant}-{at}", is_retry=False
        )
        self.tenants[admitted.query_id] = tenant
        if tenant == SIXTH:
            self.open.add(admitted.query_id)
        return admitted.query_id

    def figures(self, clock: _Clock) -> dict[str, Any]:
        """Return the figures for `Observed`."""
        honest = [query_id for query_id, tenant in self.tenants.items() if tenant != SIXTH]
        correct = float(np.mean([self.rewards[each].correct or 0.0 for each in honest]))
        cost = float(np.mean([np.exp(self.rewards[each].log_cost or 0.0) for each in honest]))
        waits = [(self.admitted_ms[each] - self.asked_ms[each]) / 1000 for each in honest]
        tables = [table for worker in self.cluster.workers for table in worker.tables]
        assert clock.learner is not None
        rows = sum(len(key) + len(value) for table in tables for key, value in table.items())
        sixth = [
            self.rewards[each]
            for each in self.tenants.keys() & self.rewards.keys()
            if each not in set(honest)
        ]
        return {
            "accuracy": correct,
            "cost": cost,
            "regret": corpus().usual - (correct - 0.1 * cost / corpus().unit),
            "wait_s": float(np.percentile(waits, 95)),
            "decider_ms": 1000 * clock.seconds / len(self.tenants),
            "resident": rows + self.gateway.index.size + len(clock.learner.policy.state()),
            "disk": self.disk,
            "sent": self.sent,
            "refused": self.refused,
            "taught": sum(reward.learn for reward in sixth),
        }


def lived(setting: str, prior: str, seed: int, outcomes: int) -> Observed:
    """Run one deployment with the given tenant behaviour and return its results.

    Args:
        setting: The sixth tenant's behaviour.
        prior: `shipped` or `none`.
        seed: Seed for traffic and timing.
        outcomes: Total number of questions from the five honest tenants; the sixth sends the same total.
    """
    clock = _Clock()
    logging.disable(logging.CRITICAL)  # targets that cannot be met and closed workers log a lot
    with tempfile.TemporaryDirectory() as folder, _watched(clock):
        settings = Settings().replace(
            catalogue="infra/catalogue/mini-six.yaml",  # whose actions the recording has
            recorded="corpus",
            state_dir=folder,
            max_in_flight=PLACES,
            query_partitions=1,
        )
        if prior == "none":
            settings = settings.replace(prior="none")

        async def life() -> dict[str, Any]:
            made = _Trial(settings, setting, seed, outcomes)
            await made.live()
            figures = made.figures(clock)
            await made.cluster.close()
            return figures

        figures = run(life())
    return Observed(setting=setting, prior=prior, seed=seed, outcomes=outcomes, **figures)


# The comparison with each bound.


class Bound(NamedTuple):
    """A figure, and how much worse than its baseline it may be.

    Attributes:
        name: The figure's name.
        beside: The settings whose mean is the baseline.
        most: The largest allowed difference or ratio.
        ratio: Whether the ratio is bounded rather than the difference.
    """

    name: str
    beside: tuple[str, ...]
    most: float
    ratio: bool

    def apart(self, one: Observed, others: Sequence[Observed]) -> float:
        """Return how much worse than its baseline a setting is, as a ratio or a difference."""
        mine, theirs = (statistics.fmean(_figure(each, self.name) for each in of) for of in ([one], others))
        if self.ratio:
            return mine / theirs
        return theirs - mine if self.name == "accuracy" else mine - theirs


BOUNDS: Final = (
    Bound("accuracy", ALONE, 0.01, False),
    Bound("cost", ALONE, 1.05, True),
    Bound("regret", ALONE, 0.015, False),
    Bound("wait_s", ALONE, 2.0, True),
    Bound("decider_ms", BUSY, 2.0, True),
    Bound("resident", BUSY, 2.0, True),
    Bound("disk", BUSY, 2.0, True),
)


LEARNED: Final = ("accuracy", "cost", "regret")


def _figure(of: Observed, name: str) -> float:
    value = float(getattr(of, name))
    if name == "wait_s":
        return max(value, LEAST_WAIT_S)
    return value - (of.sent if name == "disk" else 0)


def report(lives: Sequence[Observed]) -> list[dict[str, Any]]:
    """Return, for each prior, setting and bound, the mean difference, its interval and whether the bound is met."""
    of = {(each.prior, each.setting, each.seed): each for each in lives}
    seeds: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in lives:
        seeds[each.prior, each.setting].append(each.seed)

    def apart_of(bound: Bound, prior: str, setting: str) -> list[float]:
        beside = [each for each in bound.beside if each != setting]
        return [
            bound.apart(of[prior, setting, seed], [of[prior, each, seed] for each in beside])
            for seed in seeds[prior, setting]
        ]

    table = []
    for prior, setting in seeds:
        kinds = [each for p, each in seeds if p == prior and each in KINDS]
        for bound in BOUNDS:
            if setting == bound.beside[0]:
                continue
            apart = apart_of(bound, prior, setting)
            mean = statistics.fmean(apart)
            alike = kinds if setting in KINDS and bound.name in LEARNED else [setting]
            half = _half([apart_of(bound, prior, each) for each in alike], len(apart))
            table.append(
                {
                    "prior": prior,
                    "setting": setting,
                    "figure": bound.name,
                    "beside": bound.beside[0],
                    "is": statistics.fmean(
                        _figure(of[prior, setting, seed], bound.name) for seed in seeds[prior, setting]
                    ),
                    "mean": mean,
                    "low": mean - half,
                    "high": mean + half,
                    "bound": bound.most,
                    "ratio": bound.ratio,
                    "seeds": len(apart),
                    "met": mean + half <= bound.most,
                }
            )
    return table


def _half(groups: Sequence[Sequence[float]], count: int) -> float:
    """Return the half-width of Student's 95 % interval for a mean of `count` values, from the spread within groups."""
    free = sum(len(values) - 1 for values in groups)
    if not free:
        return float("inf")  # a single value does not show its spread
    variance = (
        sum((len(values) - 1) * statistics.variance(values) for values in groups if len(values) > 1) / free
    )
    return float(stats.t.ppf(0.975, free) * (variance / count) ** 0.5)


def markdown(table: Sequence[Mapping[str, Any]]) -> str:
    """Return the report as a table with a row for each prior and setting and a column for each figure."""
    names = [bound.name for bound in BOUNDS]
    rows: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for each in table:
        rows[each["prior"], each["setting"]][each["figure"]] = _said(each)
    heads = [
        f"{bound.name}, at most {_number(bound.most, bound.ratio)} beside {bound.beside[0]}"
        for bound in BOUNDS
    ]
    lines = ["| prior | setting | " + " | ".join(heads) + " |", "|---" * (len(names) + 2) + "|"]
    for (prior, setting), cells in rows.items():
        lines.append(f"| {prior} | {setting} | " + " | ".join(cells.get(name, "") for name in names) + " |")
    return "\n".join(lines) + "\n"


def _said(row: Mapping[str, Any]) -> str:
    low, mean, high = (_number(row[name], row["ratio"]) for name in ("low", "mean", "high"))
    return f"{mean} ({low} to {high}): {'met' if row['met'] else 'not met'}"


def _number(value: float, ratio: bool) -> str:
    return f"{value:.2f}×" if ratio else f"{100 * value:.2f} points"


def measure(
    settings: Sequence[str],
    priors: Sequence[str],
    seeds: Sequence[int],
    outcomes: int,
    out: Path,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Run every setting that is not in the journal yet, write the report, and return its rows.

    Args:
        settings: The sixth tenant's behaviours, which are run after the baselines.
        priors: The learner's initial states.
        seeds: Seeds for traffic and timing.
        outcomes: Total number of questions from the five honest tenants; the sixth sends the same total.
        out: The folder for `lives.jsonl` (the journal), `report.json` and `report.md`.
        say: Called with a line after each run.
    """
    out.mkdir(parents=True, exist_ok=True)
    journal = out / "lives.jsonl"
    lines = journal.read_bytes().splitlines() if journal.exists() else []
    lives = [msgspec.json.decode(line, type=Observed) for line in lines]
    known = {(each.prior, each.setting, each.seed, each.outcomes) for each in lives}
    for seed in seeds:
        for prior in priors:
            for setting in dict.fromkeys([*ALONE, *BUSY, *settings]):
                if (prior, setting, seed, outcomes) in known:
                    continue
                began = time.monotonic()
                lives.append(found := lived(setting, prior, seed, outcomes))
                with journal.open("ab") as file:
                    file.write(msgspec.json.encode(found) + b"\n")
                say(f"{time.monotonic() - began:.0f} s: {msgspec.json.encode(found).decode()}")
    table = report([each for each in lives if each.outcomes == outcomes])
    (out / "report.json").write_bytes(orjson.dumps(table, option=orjson.OPT_INDENT_2))
    (out / "report.md").write_text(markdown(table))
    return table
