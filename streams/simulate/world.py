"""A deployment drawn from a seed: services, catalogue, recording, policy, and what clients send when."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from agents.bandit.contextual import Contextual
from agents.bandit.features import COUNTS
from agents.bandit.history import History
from agents.bandit.prior import teach
from agents.bandit.registry import build_policy
from agents.catalogue.file import load_catalogue
from agents.embedding import encoder_id
from agents.encoders import HashedEncoder
from agents.serving.recorded import RecordedPath, RecordedStep, Recording
from schemas.chat import ChatOptions
from schemas.control import Cancel
from schemas.query import Budget, Query
from schemas.record import encode
from schemas.reward import Feedback
from streams.services.decider import action_vectors
from streams.settings import Settings

DIMENSION: Final = 8
MODELS: Final = ("small", "large", "fresh", "far")
"""Names of the models. `fresh` is added at run time; `far` belongs to a group whose executor may be absent."""

_CATALOGUE: Final[dict[str, Any]] = {
    "name": "simulated",
    "hardware": {"name": "as an A800", "intensity": 156},
    "verifier": "judge",
    "cost_range": {"low": 1e9, "high": 1e12},
    "parallelism": ["1/1", "4/1", "4/2"],
    "defaults": {"models": {"sampling": {"temperature": 1.0, "step_tokens": 64, "depth_limit": 4}}},
}

Trait = Literal["mixed", "one question", "never right", "hostile", "choices"]
TRAITS: Final[tuple[Trait, ...]] = ("mixed", "mixed", "mixed", "one question", "never right", "hostile")

_POLICIES = (
    ("linucb",) * 6
    + ("greedy", "thompson", "knn", "random", "sliding-window", "discounted")
    + ("contextual",) * 4
)
_OPTIONS: Final[dict[str, dict[str, Any]]] = {"thompson": {"propensity_draws": 4}}


Bad = Literal["refuses", "slow", "empty", "dear"]
"""What is wrong with the model that should not be chosen: it refuses every request, always times out, returns no text,
or costs more than ten times as much without being more accurate."""

State = Literal["loading", "suspended", "failed"]

JUDGED_S: Final = 60.0
"""How long people have to grade an answer in worlds where people grade, in seconds."""

CHOOSING: Final = 150
"""Number of queries in a history whose choices are judged."""

SLOW_S: Final = 60.0
"""How long a step takes for a model that always times out, in seconds."""

_LEARNING = ("contextual", "contextual", "contextual", "linucb", "thompson", "greedy")


class KnownQuestion(NamedTuple):
    """A question and its right answer. An answer that is a fraction of x needs the grader; a whole number does not."""

    text: str
    reference: str
    answer: str


class Sent(NamedTuple):
    """One record sent by a client, with its time in seconds since the start, its topic and its contents."""

    at_s: float
    topic: str
    key: bytes
    value: bytes
    partition: int | None = None


@dataclass
class World:
    """A deployment and its traffic.

    Attributes:
        settings: Every worker's settings.
        trait: The character of the traffic.
        workers: Number of workers per service.
        groups: Executor groups that have an executor.
        recording: The models' outputs and the verifier's scores.
        questions: The questions, by text.
        sent: The records that clients send, in chronological order.
        wishing: Ids of queries that ask for something that may be unavailable.
        queries: Every readable Query, by id, with the time it is first sent, in seconds.
        until_s: When clients have sent their last record, in seconds.
        small: Whether to lower limits that are otherwise rarely reached (`faults.small`).
        deadly: For each query whose question ends processes, its id and the service whose processes it ends.
        states: Models that never become ready, with the state they report.
        bad: What is wrong with the model `large`, if choices are judged.
        open_rewards: Maximum number of rewards that may wait for feedback; None for no effective limit.
        unscored: Models that no verifier scores.
        lists: For each successive decider, the metadata keys it reads, with the values it knows.
        talks: Whether queries are turns of conversations.
    """

    settings: Settings
    trait: Trait
    workers: dict[str, int]
    groups: tuple[str, ...]
    recording: Recording
    questions: dict[str, KnownQuestion]
    sent: list[Sent] = field(default_factory=list)
    queries: dict[str, tuple[float, Query]] = field(default_factory=dict)
    wishing: set[str] = field(default_factory=set)
    until_s: float = 0.0
    small: bool = False
    deadly: dict[str, str] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    bad: Bad | None = None
    open_rewards: int | None = None
    unscored: frozenset[str] = frozenset()
    lists: tuple[dict[str, list[str]], ...] = ()
    talks: bool = False

    def right(self, query: Query, extracted: str | None) -> bool | None:
        """Return whether an answer is right, or None if the query has no reference."""
        if query.reference is None:
            return None
        return extracted is not None and _plain(extracted) == _plain(str(query.reference))


def _plain(answer: str) -> str:
    r"""Return the normal form of a whole number or a fraction of x.

    >>> _plain(r"\frac{3x}{7}"), _plain("3x/7"), _plain("12")
    ('3x/7', '3x/7', '12')
    """
    return answer.replace(r"\frac{", "").replace("}{", "/").replace("}", "")


def same(gold: str, answer: str) -> bool:
    """Return whether a grader considers two answers equal."""
    return _plain(gold) == _plain(answer)


def entry(name: str, unscored: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return a model's entry, for a catalogue or a control record."""
    group = "gpu" if name == "far" else "mini"
    scored = {"verifier": "none"} if name in unscored else {}
    return {"name": name, "group": group, **scored, **_checkpoint(100_000 * (1 + 2 * MODELS.index(name)))}


def _checkpoint(size: int) -> dict[str, Any]:
    shape = {"parameters": size, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16}
    return {"checkpoint": "none", "architecture": shape}


_JUDGE: Final = {"name": "judge", "family": "skywork", **_checkpoint(200_000)}


def drawn(seed: int, folder: Path) -> World:
    """Draw a world.

    Args:
        seed: Seed for everything in the world.
        folder: Folder for the world's catalogue, prior and caches.
    """
    # Later additions draw from separate random streams, so that existing seeds keep their worlds.
    more = random.Random(f"more {seed}")
    if more.random() < 0.025:
        return _choosing(more, folder)
    rng = random.Random(f"world {seed}")
    trait = rng.choice(TRAITS)
    far = trait == "hostile" or rng.random() < 0.2
    count = rng.randint(5, 30) if trait != "hostile" else rng.randint(4, 10)
    questions = _questions(rng, count, trait)
    habits = random.Random(f"habits {seed}")
    names: tuple[str, ...] = ("large",) if habits.random() < 0.2 else ("small", "large")
    names += ("far",) if far else ()
    judged = habits.random() < 0.3
    again = random.Random(f"attempts {seed}")
    unscored = frozenset({again.choice(("small", "large", "fresh"))} if again.random() < 0.25 else ())
    (folder / "catalogue.yaml").write_text(_catalogue(names, unscored))
    groups = ("mini", "gpu") if far and trait != "hostile" else ("mini",)
    workers = {name: 1 + (rng.random() < 0.3) for name in ("embedder", "decider", "verifier", "aggregator")}
    workers |= {"executor": 1 + (rng.random() < 0.3)}
    made = World(
        settings=_settings(rng, folder, trait),
        trait=trait,
        workers=workers,
        groups=groups,
        recording=Recording(_paths(rng, questions, trait)),
        questions={each.text: each for each in questions},
        unscored=unscored,
        lists=_lists(random.Random(f"categories {seed}")),
        # Drawn from its own random stream, named so that the seeds of `tests/simulate/without.py` keep their worlds.
        talks=random.Random(f"sessions, 160, {seed}").random() < 0.2,
    )
    made.settings = made.settings.replace(attempts=again.choice((1, 2, 2, 2, 2, 2)))
    if again.random() < 0.2:
        made.settings = _controlled(made.settings, f"{names[0]}/1/1/1")
    if judged:  # answers are graded by people, who are slow
        made.settings = made.settings.replace(feedback_wait_s=JUDGED_S)
    traffic = _Traffic(rng, made, questions, referenced=0.1 if judged else 0.7)
    traffic.send(count)
    _hardened(more, made, traffic)
    return made


def _hardened(rng: random.Random, world: World, traffic: _Traffic) -> None:
    """Draw extra difficulties for some worlds: low limits, a deadly question, a model that never becomes ready."""
    if rng.random() < 0.4:
        world.small = True
        world.settings = world.settings.replace(concurrency=rng.choice((1, 2, 4)))
    if world.trait == "hostile" and rng.random() < 0.5:
        world.states["far"] = rng.choice(("loading", "suspended", "failed"))
        world.groups = ("mini", "gpu")
        world.settings = world.settings.replace(concurrency=1)
        traffic.crowd(rng)
    elif rng.random() < 0.15:
        traffic.deadly(rng)
    if world.settings.queries.feedback_wait_s == JUDGED_S and rng.random() < 0.5:
        world.open_rewards = 4
        world.settings = world.settings.replace(
            feedback_wait_s=10 * JUDGED_S, max_open_rewards=world.open_rewards
        )
    traffic.ended()


def _choosing(rng: random.Random, folder: Path) -> World:
    """Draw a world whose only problem is that one of its two models is bad, so that its choices can be judged."""
    bad: Bad = rng.choice(("refuses", "slow", "empty", "dear"))
    questions = _questions(rng, 24, "mixed")[:12]
    large = entry("large") | _checkpoint(3_000_000)
    catalogue = {
        **_CATALOGUE,
        "parallelism": ["1/1"],
        "models": [entry("small"), large],
        "verifiers": [_JUDGE],
    }
    (folder / "catalogue.yaml").write_text(json.dumps(catalogue))
    settings = _settings(rng, folder, "hostile").replace(
        policy=(name := rng.choice(_LEARNING)),
        policy_options=_OPTIONS.get(name, {}),
        encoder="hashed",
        max_in_flight=256,
        timeout_s=40.0,
        feedback_wait_s=0.0,
    )
    made = World(
        settings=settings,
        trait="choices",
        workers=dict.fromkeys(("embedder", "decider", "verifier", "aggregator", "executor"), 1),
        groups=("mini",),
        recording=Recording(_paths(rng, questions, "choices")),
        questions={each.text: each for each in questions},
        bad=bad,
    )
    _Traffic(rng, made, questions, referenced=1.0).choose()
    return made


def _controlled(settings: Settings, action: str) -> Settings:
    """Return the settings with a control group that is assigned this action."""
    group = {"control_share": 0.4, "control_action": action, "control_salt": "s"}
    return settings.replace(policy_options={**settings.policy.options, **group})


def _catalogue(names: tuple[str, ...], unscored: frozenset[str]) -> str:
    models = [entry(name, unscored) for name in names]
    return json.dumps({**_CATALOGUE, "models": models, "verifiers": [_JUDGE]})


def _settings(rng: random.Random, folder: Path, trait: Trait) -> Settings:
    teaches_little = trait in ("one question", "never right")
    policy = "contextual" if teaches_little and rng.random() < 0.6 else rng.choice(_POLICIES)
    encoder: dict[str, Any] = {"encoder": "hashed"}
    if rng.random() < 0.5:
        encoder = {"encoder": "http", "encoder_url": "http://encoder", "encoder_model": "simulated"}
    prior = "none"
    if policy == "contextual" and trait == "mixed" and rng.random() < 0.3:
        prior = str(_prior(folder, encoder["encoder"] == "http"))
    return Settings().replace(
        prefix="s.",
        catalogue=str(folder / "catalogue.yaml"),
        state_dir=str(folder),
        encoder_dimension=DIMENSION,
        query_partitions=2,
        join_partitions=2,
        group_partitions=2,
        policy=policy,
        policy_options=_OPTIONS.get(policy, {}),
        prior=prior,
        warm_up=rng.choice((0, 2, 5)),
        snapshot_every=0 if trait == "hostile" else rng.choice((0, 0, 5, 12)),
        max_in_flight=rng.choice((4, 8)) if trait == "hostile" else rng.choice((3, 8, 256)),
        timeout_s=rng.choice((40.0, 120.0)),
        feedback_wait_s=rng.choice((0.0, 0.0, 20.0)),
        heartbeat_s=3.0,
        heartbeat_grace_s=5.0,
        session_timeout_s=15.0,
        **encoder,
    )


def _prior(folder: Path, http: bool) -> Path:
    """Write a prior from a synthetic history."""
    encoder = HashedEncoder(DIMENSION)
    identity = f"simulated@unversioned/{DIMENSION}" if http else encoder_id(encoder)
    catalogue = load_catalogue(folder / "catalogue.yaml")
    actions = action_vectors(catalogue, encoder, pairs=((1, 1), (4, 1), (4, 2)))
    policy = build_policy("contextual", query_dim=DIMENSION, action_dim=DIMENSION, encoder=identity)
    assert isinstance(policy, Contextual)
    policy.offer(actions)
    rng, n = np.random.default_rng(0), len(actions)
    history = History(
        queries=rng.normal(size=(12, DIMENSION + len(COUNTS))),
        question=np.repeat(np.arange(12), n),
        action=np.tile(np.arange(n), 12),
        correct=(rng.random(12 * n) < 0.5).astype(float),
        score=rng.random(12 * n),
        log_cost=rng.normal(22.0, 1.0, 12 * n),
        propensity=np.ones(12 * n),
    )
    path = folder / "prior.bin"
    path.write_bytes(teach(policy, history))
    return path


_ROUTES: Final = ("chat", "code", "search", "voice")


def _lists(rng: random.Random) -> tuple[dict[str, list[str]], ...]:
    """Draw the metadata keys that successive deciders read; in half of the worlds there are none."""
    if rng.random() < 0.5:
        return ()
    lists: list[dict[str, list[str]]] = [
        {"route": rng.sample(_ROUTES, rng.randint(1, 4)), **({"task": ["sum"]} if rng.random() < 0.5 else {})}
        for _ in range(rng.randint(1, 3))
    ]
    return (*lists, {}) if rng.random() < 0.3 else tuple(lists)


def _metadata(query_id: str) -> dict[str, Any]:
    """Draw a query's metadata: values that deciders know, other strings, and values that are not strings."""
    rng = random.Random(f"metadata {query_id}")
    kept = {"route": rng.choice((*_ROUTES, "other", 7)), "task": rng.choice(("sum", None)), "user": query_id}
    return {key: value for key, value in kept.items() if rng.random() < 0.8}


def _questions(rng: random.Random, count: int, trait: Trait) -> list[KnownQuestion]:
    found = []
    for number in range(1 if trait == "one question" else max(2, count // 2)):
        a, b = rng.randint(1, 9), rng.randint(2, 9)
        if rng.random() < 0.3:
            found.append(
                KnownQuestion(
                    f"What is {a} of {b + a}, number {number}?", f"{a}x/{a + b}", rf"\frac{{{a}x}}{{{a + b}}}"
                )
            )
        else:
            found.append(KnownQuestion(f"What is {a} + {b}, number {number}?", str(a + b), str(a + b)))
    if rng.random() < 0.1:
        huge = "word " * rng.choice((2_000, 40_000))
        found.append(KnownQuestion(huge + "?", "1", "1"))
    return found


def _paths(rng: random.Random, questions: list[KnownQuestion], trait: Trait) -> Iterator[RecordedPath]:
    """Yield each model's output for each question. Later models in `MODELS` are right more often.

    If choices are judged, all models are right on the same questions.
    """
    for question in questions:
        hard = trait == "never right" or rng.random() < 0.2
        alike = [rng.random() < 0.7 for _ in range(3)] if trait == "choices" else []
        for model in MODELS:
            for sample in range(3):
                right = (
                    alike[sample] if alike else not hard and rng.random() < 0.4 + 0.15 * MODELS.index(model)
                )
                thoughts = [
                    RecordedStep(
                        text=f"{model} {sample}.{at}\n\n", tokens=rng.randint(4, 20), score=rng.random()
                    )
                    for at in range(rng.randint(0, 2))
                ]
                said = question.answer if right else r"\frac{99x}{100}" if "/" in question.reference else "99"
                end = RecordedStep(
                    text=f"So {sample}: \\boxed{{{said}}}",
                    tokens=6,
                    score=0.9 if right else 0.4,
                    finish="eos",
                )
                yield RecordedPath(
                    question=question.text, model=model, path=sample, steps=(*thoughts, end), prompt_tokens=12
                )


def _sampling(name: str) -> ChatOptions | None:
    """Draw the sampling options a client asks for, from a separate random stream; most clients ask for none."""
    rng = random.Random(f"sampling {name}")
    asked = (
        ChatOptions(temperature=0.0),
        ChatOptions(temperature=0.5, top_p=0.9),
        ChatOptions(temperature=1.5),
    )
    return rng.choice(asked) if rng.random() < 0.15 else None


class _Traffic:
    """Draws the records that clients send and adds them to a world. A given share of the queries has a reference."""

    def __init__(
        self, rng: random.Random, world: World, questions: list[KnownQuestion], referenced: float
    ) -> None:
        self.rng, self.world, self.questions, self.referenced = rng, world, questions, referenced
        self.made = 0

    def send(self, count: int) -> None:
        """Send this many queries, and feedback on their Answers."""
        span_s = self.rng.choice((5.0, 20.0, 40.0))
        for _ in range(count):
            self._ask(self.rng.uniform(0.0, span_s))
        if self.world.trait == "hostile":
            self._attack(span_s)
        self.ended()

    def ended(self) -> None:
        """Sort the sent records by time."""
        self.world.sent.sort(key=lambda each: each.at_s)
        self.world.until_s = max(each.at_s for each in self.world.sent)

    def choose(self) -> None:
        """Send queries that leave every choice to the policy, so slowly that it learns from each before the next."""
        for at in range(CHOOSING):
            question = self.rng.choice(self.questions)
            query = Query(
                query_id=f"q{at}",
                text=question.text,
                reference=question.reference,
                tenant=self.rng.choice(("a", "b")),
            )
            self._query(2.0 * at, query)
        self.ended()

    def deadly(self, rng: random.Random) -> None:
        """Send a query whose question ends every process of a service that handles it."""
        service = rng.choice(("executor", "executor", "verifier"))
        query = Query(
            query_id="deadly",
            text=f"What ends the {service}?",
            timeout_s=rng.choice((60.0, 900.0)),
            tenant="b",
        )
        self.world.deadly[query.query_id] = service
        self._query(rng.uniform(0.0, self.world.until_s / 2), query)

    def crowd(self, rng: random.Random) -> None:
        """Send more queries for a model that is not ready than admission has slots, then some honest queries."""
        places = self.world.settings.queries.max_in_flight
        for at in range(2 * places):
            query = Query(
                query_id=f"crowd{at}",
                text=rng.choice(self.questions).text,
                allowed_models=("far",),
                timeout_s=900.0,
                tenant="evil",
            )
            self._query(0.01 * at, query)
            self.world.wishing.add(query.query_id)
        for at in range(24):
            query = Query(
                query_id=f"behind{at}",
                text=rng.choice(self.questions).text,
                allowed_models=("large",),
                tenant="a",
            )
            self._query(rng.uniform(1.0, self.world.until_s), query)

    def _ask(self, at_s: float) -> None:
        rng, question = self.rng, self.rng.choice(self.questions)
        self.made += 1
        fields: dict[str, Any] = {
            "query_id": f"q{self.made}",
            "text": question.text,
            "tenant": rng.choice(("a", "b")),
        }
        if self.world.lists:
            fields["metadata"] = _metadata(fields["query_id"])
        if self.world.talks:
            fields["session"] = random.Random(f"session {self.made}").choice((None, "s0", "s1"))
        if rng.random() < self.referenced or self.world.trait == "never right":
            fields["reference"] = question.reference
        if wishes := self._wishes():
            fields |= wishes
            self.world.wishing.add(fields["query_id"])
        if (options := _sampling(f"{self.made} {question.text}")) is not None:
            fields["options"] = options
        if self.world.trait == "hostile":
            fields["allowed_models"] = ("small", "large")
            self.world.wishing.add(fields["query_id"])  # one of these models may be removed
        self._query(at_s, Query(**fields))
        if rng.random() < 0.06:  # the same id once more
            self._put(at_s + rng.uniform(0.0, 10.0), "query", fields["query_id"], encode(Query(**fields)))
        if rng.random() < 0.03:
            self._put(at_s, "query", f"bad{self.made}", rng.choice((b"{", b"", encode(Query(**fields))[:-9])))
        if "reference" not in fields:
            self._feedback(at_s, fields["query_id"])
        if rng.random() < 0.04:
            cancel = Cancel(query_id=fields["query_id"], by="client")
            self._put(at_s + rng.uniform(0.0, 3.0), "cancel.mini", fields["query_id"], encode(cancel))

    def _wishes(self) -> dict[str, Any]:
        """Return the optional fields of a query; most have none."""
        wishes: tuple[dict[str, Any], ...] = (
            {"pin_action": "small/1/1/1"},
            {"pin_action": "nobody/1/1/1"},
            {"allowed_models": ("small",)},
            {"mean_cost": 3e9},
            {"accuracy": 0.9},
            {"n": 2},
            {"learn": False, "pin_action": "large/4/1/1"},
            {"budget": Budget(tokens=30)},
            {"max_tokens": 8},
            {"timeout_s": 15.0},
            {"objective": "thrifty"},
        )
        return self.rng.choice(wishes) if self.rng.random() < 0.35 else {}

    def _feedback(self, at_s: float, query_id: str) -> None:
        """Send feedback on a query: never, once or several times, in time or late, and not always truthful."""
        rng = self.rng
        while rng.random() < 0.5:
            told = encode(Feedback(query_id=query_id, correct=rng.random() < 0.5))
            wrong = rng.randrange(2) if rng.random() < 0.1 else None
            self._put(at_s + rng.choice((0.0, 2.0, 15.0, 60.0)), "feedback", query_id, told, wrong)

    def _attack(self, span_s: float) -> None:
        """Let one tenant fill admission with queries that no executor serves, and send false references."""
        rng = self.rng
        places = self.world.settings.queries.max_in_flight
        for at in range(places + 2):
            query = Query(
                query_id=f"evil{at}",
                text=rng.choice(self.questions).text,
                pin_action="far/1/1/1",
                timeout_s=900.0,
                tenant="evil",
            )
            self._query(0.01 * at, query)
            self.world.wishing.add(query.query_id)
        for at in range(rng.choice((0, 2, 3 * self.made))):
            query = Query(
                query_id=f"lie{at}",
                text=rng.choice(self.questions).text,
                pin_action="large/1/1/1",
                reference="-1",
                tenant="evil",
            )
            self._query(rng.uniform(0.0, span_s), query)

    def _query(self, at_s: float, query: Query) -> None:
        self.world.queries[query.query_id] = (at_s, query)
        self._put(at_s, "query", query.query_id, encode(query))

    def _put(self, at_s: float, topic: str, key: str, value: bytes, partition: int | None = None) -> None:
        self.world.sent.append(Sent(at_s, topic, key.encode(), value, partition))
