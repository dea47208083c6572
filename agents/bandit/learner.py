"""Code shared by all policies: choices from predictions, stored observations, and serialised state."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np

from agents.bandit.errors import CorruptState
from agents.bandit.features import FeatureMap
from agents.bandit.policy import (
    UNPRICED,
    ActionVector,
    Candidate,
    Choice,
    Context,
    Contribution,
    Drift,
    Matrix,
    Objective,
    Observation,
    Pending,
    Policy,
    Prediction,
    Reason,
    Refits,
    TargetSolver,
    Traits,
    Vector,
    check_outcome,
    generator,
)
from schemas.prices import Rate

# From a prediction to a choice: seeded tie-breaking, exact propensities and runners-up.

TIE: Final = 1e-12
"""Scores that differ by less than this, relative to the largest, count as equal: float64 rounding in a sum of a few
thousand terms is no larger. A larger value would randomise real preferences; with a smaller one, the order of summation
would decide."""

RUNNERS_UP: Final = 3


def tied(score: Vector) -> np.ndarray:
    """Return the indices of the scores that equal the maximum.

    >>> tied(np.array([1.0, 3.0, 3.0])).tolist()
    [1, 2]
    """
    top = score.max()
    return np.flatnonzero(score >= top - TIE * max(1.0, abs(float(top))))


def pick(score: Vector, seed: int, query_id: str, purpose: str = "tie") -> tuple[int, Vector]:
    """Return the index of the maximum, with seeded random tie-breaking, and the probability of each index."""
    best = tied(score)
    probability = np.zeros(len(score))
    probability[best] = 1.0 / len(best)
    if len(best) == 1:
        return int(best[0]), probability
    return int(generator(seed, query_id, purpose).choice(best)), probability


def estimate(hits: np.ndarray, chosen: int, draws: int) -> Vector:
    """Return Monte Carlo probabilities from per-action counts, counting the choice itself as one more draw.

    This keeps the chosen action's propensity above zero; the bias is below 1 / (draws + 1).
    """
    counts = hits.astype(np.float64)
    counts[chosen] += 1.0
    return counts / (draws + 1)


def standard_error(probability: float, draws: int) -> float:
    """Return the standard error of a Monte Carlo frequency; 0.0 for an exact probability (no draws)."""
    return math.sqrt(probability * (1.0 - probability) / draws) if draws else 0.0


def ranked(query_id: str, action_ids: Sequence[str], mean: Vector, width: Vector, seed: int) -> Prediction:
    """Return the prediction for a policy that chooses the action with the highest mean + width."""
    score = mean + width
    chosen, probability = pick(score, seed, query_id)
    return Prediction(query_id, action_ids, mean, width, score, chosen, probability)


def choose(
    policy: Policy, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
) -> list[Choice]:
    """Choose one action per context. All choices use the same, unchanging state."""
    return [choice(each, policy.version) for each in predictions(policy, contexts, objectives, seed)]


def predictions(
    policy: Policy, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
) -> list[Prediction]:
    """Return a policy's predictions. They choose the baseline until any answer's correctness is known."""
    found = policy.predict(contexts, objectives, seed)
    if policy.graded:
        return found
    return [_at_baseline(of, context.baseline) for of, context in zip(found, contexts, strict=True)]


def _at_baseline(of: Prediction, baseline: str) -> Prediction:
    """Return the prediction with the baseline chosen; unchanged if the baseline is unavailable or the only action."""
    ids = list(of.action_ids)
    if baseline not in ids or len(ids) == 1:
        return of
    at, probability = ids.index(baseline), np.zeros(len(ids))
    probability[at] = 1.0
    drawn = redrawn(of, at, probability, 0.0, "baseline")
    return replace(drawn, draws=0, cohort="policy", randomised=False)


def redrawn(
    of: Prediction, chosen: int, probability: Vector | None, error: float, reason: Reason
) -> Prediction:
    """Return a prediction with a new draw. If it is a different action, the predicted terms are dropped."""
    predicted = of.predicted if chosen == of.chosen else None
    return replace(
        of, chosen=chosen, probability=probability, error=error, reason=reason, predicted=predicted
    )


def choice(of: Prediction, version: int) -> Choice:
    """Return the choice made by a prediction, with every term that explains it."""
    i = of.chosen
    order = np.argsort(of.score)[::-1] if len(of.score) <= RUNNERS_UP + 1 else _leaders(of.score)
    terms = None if of.terms is None else of.terms()
    others = [
        Candidate(
            of.action_ids[j],
            float(of.mean[j]),
            float(of.width[j]),
            float(of.score[j]),
            None if terms is None else (float(terms[j, 0]), float(terms[j, 1]), float(terms[j, 2])),
        )
        for j in order
        if j != i
    ]
    return Choice(
        query_id=of.query_id,
        action_id=of.action_ids[i],
        mean=float(of.mean[i]),
        width=float(of.width[i]),
        score=float(of.score[i]),
        runners_up=tuple(others[:RUNNERS_UP]),
        propensity=None if of.probability is None else float(of.probability[i]),
        candidates=len(of.action_ids),
        propensity_draws=of.draws,
        propensity_error=of.error,
        predicted=of.predicted,
        version=version,
        reason=of.reason,
        cohort=of.cohort,
        randomised=of.randomised,
    )


def _leaders(score: Vector) -> np.ndarray:
    top = np.argpartition(score, -(RUNNERS_UP + 1))[-(RUNNERS_UP + 1) :]
    return top[np.argsort(score[top])[::-1]]


# A policy's state as bytes: magic, SHA-256, header, arrays.
#
# The digest covers everything after it, so a truncated or altered state is rejected before any number in it is used.
# The header contains the format version, the kind of policy and its settings, so a state never loads into a policy with
# different settings.

MAGIC: Final = b"USPOLICY"
FORMAT: Final = 2
_HEAD: Final = len(MAGIC) + 32


def pack(kind: str, settings: dict[str, Any], meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Serialise plain values and arrays.

    Args:
        kind: The policy's name.
        settings: Settings that must match when the state is loaded.
        meta: The state's JSON values.
        arrays: The state's arrays, of any numeric type.
    """
    entries, parts, offset = [], [], 0
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        entries.append({"name": name, "dtype": array.dtype.str, "shape": list(array.shape), "offset": offset})
        parts.append(raw)
        offset += len(raw)
    header = msgspec.json.encode(
        {
            "format": FORMAT,
            "kind": kind,
            "settings": settings,
            "meta": meta,
            "arrays": entries,
            "payload": offset,
        }
    )
    body = b"".join([struct.pack("<I", len(header)), header, *parts])
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes, kind: str, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (meta, arrays) from a complete, unaltered state of this kind with these settings.

    Raises:
        CorruptState: The bytes are not such a state; the message names the difference.
    """
    head, payload = _opened(data)
    for what, has, needs in (
        ("state format", head["format"], FORMAT),
        ("state kind", head["kind"], kind),
        ("state settings", head["settings"], plain(settings)),
    ):
        if has != needs:
            raise CorruptState(what, has, needs)
    arrays = {}
    for entry in head["arrays"]:
        dtype = np.dtype(entry["dtype"])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        flat = np.frombuffer(payload, dtype=dtype, count=count, offset=entry["offset"])
        arrays[entry["name"]] = flat.reshape(entry["shape"]).copy()
    return head["meta"], arrays


def header(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind and settings in any policy's complete, unaltered state.

    Raises:
        CorruptState: The bytes are not such a state.
    """
    head, _ = _opened(data)
    return head["kind"], head["settings"]


def values(data: bytes) -> dict[str, Any]:
    """Return the plain values in any policy's complete, unaltered state.

    Raises:
        CorruptState: The bytes are not such a state.
    """
    return dict(_opened(data)[0]["meta"])


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings after a round trip through JSON, so that tuples compare equal to lists."""
    return dict(msgspec.json.decode(msgspec.json.encode(settings)))


def _opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptState("state magic", data[: len(MAGIC)], MAGIC)
    body = data[_HEAD:]
    found, wanted = hashlib.sha256(body).hexdigest(), data[len(MAGIC) : _HEAD].hex()
    if found != wanted:
        raise CorruptState("state sha256", found, wanted)
    (length,) = struct.unpack_from("<I", body)
    return msgspec.json.decode(body[4 : 4 + length]), body[4 + length :]


# All past observations, for the policies that reuse them: k-NN, MLP and NeuralUCB.
#
# These learn the paper's scalar reward: Eq. 4's r under the objective in force when the decision was made.


class ReplayBuffer:
    """Rows (s_q, action, r) in the order they were learned. A correction replaces r in its row."""

    def __init__(self, query_dim: int) -> None:
        self.ids: list[str] = []
        self.index: dict[str, int] = {}
        self._queries: Matrix = np.zeros((64, query_dim))
        self._places = np.zeros(64, dtype=np.intp)
        self._rewards: Vector = np.zeros(64)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    @property
    def queries(self) -> Matrix:
        """Return every row's s_q, shape (n, query_dim)."""
        return self._queries[: len(self)]

    @property
    def places(self) -> np.ndarray:
        """Return the feature map's index for every row's action, shape (n,)."""
        return self._places[: len(self)]

    @property
    def rewards(self) -> Vector:
        """Return every row's r, shape (n,)."""
        return self._rewards[: len(self)]

    def append(self, features: FeatureMap, observations: Sequence[Observation]) -> None:
        """Add validated rows."""
        for o in observations:
            check_outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
        queries = features.queries([(o.observation_id, o.embedding) for o in observations])
        places = [features.position(o.observation_id, o.action_id) for o in observations]
        n, m = len(self), len(observations)
        while n + m > len(self._places):
            self._queries = np.concatenate([self._queries, np.zeros_like(self._queries)])
            self._places = np.concatenate([self._places, np.zeros_like(self._places)])
            self._rewards = np.concatenate([self._rewards, np.zeros_like(self._rewards)])
        self._queries[n : n + m], self._places[n : n + m] = queries, places
        self._rewards[n : n + m] = [o.objective.reward(o.entered, o.score, o.log_cost) for o in observations]
        for o in observations:
            self.index[o.observation_id] = len(self.ids)
            self.ids.append(o.observation_id)

    def correct(self, features: FeatureMap, observations: Sequence[Observation]) -> None:
        """Replace the rewards of stored rows with those computed from the true Correct."""
        features.queries([(o.observation_id, o.embedding) for o in observations])
        for o in observations:
            check_outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
            if (row := self.index.get(o.observation_id)) is not None:
                self._rewards[row] = o.objective.reward(o.entered, o.score, o.log_cost)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays) that `restore` rebuilds the rows from."""
        arrays = {"queries": self.queries, "places": self.places.astype("<i8"), "rewards": self.rewards}
        return {"ids": self.ids}, arrays

    def restore(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore the rows saved by `snapshot`."""
        self.ids = list(meta["ids"])
        self.index = {observation_id: i for i, observation_id in enumerate(self.ids)}
        capacity = max(64, len(self.ids))
        self._queries = np.zeros((capacity, arrays["queries"].shape[1]))
        self._places, self._rewards = np.zeros(capacity, dtype=np.intp), np.zeros(capacity)
        n = len(self.ids)
        self._queries[:n], self._places[:n] = arrays["queries"], arrays["places"]
        self._rewards[:n] = arrays["rewards"]


# Base class for policies: features, counters, saving and loading.
#
# A subclass defines how to predict (`predict_one`, or `predict` for a whole batch), how to learn from observations
# (`take`, `amend`), and which state to save (`saved`, `restored`).


class Learner:
    """Base class for policies on joint features x = [s_q; f_a]. It implements the `Policy` protocol.

    Attributes:
        name: The policy's name in Decisions and saved states.
        features: The known actions, and the map to x.
    """

    name: str
    traits = Traits()
    pacer: TargetSolver | None = None

    def __init__(self, features: FeatureMap) -> None:
        self.features = features
        self.refits = Refits()
        self._updates = 0
        self._corrections = 0
        self._failures = 0  # number of updates that were failures

    @property
    def graded(self) -> bool:
        """Return whether any answer's correctness has been learned."""
        return self.version > self._failures

    @property
    def version(self) -> int:
        """Return the number of rewards and corrections applied."""
        return self._updates + self._corrections

    def untried(self, models: Iterable[str]) -> set[str]:
        """Return an empty set: the policy does not try models on purpose."""
        return set()

    def offer(
        self,
        actions: Sequence[ActionVector],
        price_factors: Mapping[str, Rate] = UNPRICED,
        newcomers: Iterable[str] = (),
    ) -> None:
        """Set the available actions from now on, replacing the previous set.

        Learned costs include each action's price factor. Everything learned from removed actions is kept, and their
        outstanding rewards are still learned.
        """
        before = self.features.active.copy()
        kept = self.features.offer(actions)
        if any(now > then for now, then in zip_longest(self.features.active, before, fillvalue=False)):
            self.grown(kept)

    def predict(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Prediction]:
        """Predict the reward of every allowed action for every context."""
        queries = self.features.queries([(c.query_id, c.embedding) for c in contexts])
        return [
            self.predict_one(query, context, seed) for query, context in zip(queries, contexts, strict=True)
        ]

    def distrust_scores(self, seq: int) -> None:
        """Do nothing, because the policy never relearns a model's accuracy."""

    def drifted(self) -> Mapping[str, Drift]:
        """Return an empty mapping: the policy does not compare outcomes with its predictions."""
        return {}

    def left_out(self) -> Sequence[str]:
        """Return an empty sequence: the policy does not use categories."""
        return ()

    def explain(self, context: Context, action_id: str) -> Sequence[Contribution]:
        """Return an empty sequence: the joint x has no separate parts."""
        return ()

    def decided(self, decisions: Sequence[Pending]) -> None:
        """Do nothing: a decision affects later ones only through its reward."""

    def learn(self, outcomes: Sequence[Observation]) -> None:
        """Learn outcomes in order. Consecutive outcomes of the same kind are learned together."""
        for kind, group in groupby(outcomes, key=attrgetter("kind")):
            alike = list(group)
            self._failures += len(alike) if kind == "failure" else 0
            match kind:
                case "reward" | "failure":  # a failure's `log_cost` is the upper bound
                    self.take(alike)
                    self._updates += len(alike)
                case "correction":
                    self.amend(alike)
                    self._corrections += len(alike)
                case "cost":
                    self.take_costs(alike)

    def state(self) -> bytes:
        """Serialise everything learned, with a format version and a checksum."""
        features, arrays = self.features.snapshot()
        meta, more = self.saved()
        counters = {"updates": self._updates, "corrections": self._corrections}
        if self._failures:  # states saved by earlier releases have no "failures"
            counters["failures"] = self._failures
        return pack(self.name, self.identity(), {"features": features} | counters | meta, arrays | more)

    def load(self, data: bytes) -> None:
        """Restore a state that a policy with the same settings serialised.

        Raises:
            CorruptState: The state is truncated or altered, or has a different version, policy, dimension or setting.
        """
        meta, arrays = unpack(data, self.name, self.identity())
        self.features.restore(meta["features"], arrays)
        self._updates, self._corrections = meta["updates"], meta["corrections"]
        self._failures = meta.get("failures", 0)
        self.restored(meta, arrays)

    def identity(self) -> dict[str, Any]:
        """Return the settings that must match when a state is loaded."""
        return {"features": asdict(self.features.settings)}

    def grown(self, kept: Sequence[int]) -> None:
        """Adapt after actions were added to the feature map or became available again.

        Args:
            kept: The new position of each old column of f_a.
        """

    def predict_one(self, query: Vector, context: Context, seed: int) -> Prediction:
        """Predict for one context. Policies that override `predict` need not implement this.

        Args:
            query: The validated s_q, shape (query_dim,).
            context: The context.
            seed: Seed for random choices.
        """
        raise NotImplementedError

    def take(self, observations: Sequence[Observation]) -> None:
        """Validate observations and learn from them."""
        raise NotImplementedError

    def amend(self, observations: Sequence[Observation]) -> None:
        """Validate corrections and apply them."""
        raise NotImplementedError

    def take_costs(self, observations: Sequence[Observation]) -> None:
        """Abandon the decisions. All of an outcome's terms share one update, so costs cannot be learned alone."""
        self.decided(
            [Pending(o.observation_id, o.embedding, o.action_id, abandoned=True) for o in observations]
        )

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the state's plain values and arrays, without features and counters."""
        return {}, {}

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore what `saved` returned; features and counters are already restored."""
