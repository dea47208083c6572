"""A decider with its table as a dict: it decides, learns, is snapshotted, dies and recovers without a runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.bandit.features import FeatureMap, FeatureSettings
from agents.bandit.linucb import LinUCB
from agents.bandit.policy import ActionVector, Context, Policy
from agents.catalogue.action_space import PAIRS, ActionSpace, uis_space
from agents.catalogue.control_state import ControlState
from agents.catalogue.file import load_catalogue
from agents.decider import snapshot
from agents.decider.decider import Decider, LearnResult
from agents.decider.decisions import DecisionResult
from agents.decider.eligibility import DecisionEnvironment
from agents.decider.rows import Row, decode_row
from agents.decider.snapshot import START_KEY, is_record, manifests, start_of
from schemas.decision import Decision
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode
from schemas.reward import Kind, Reward
from tests.support.records import paid, reward_for
from tests.support.worlds import QUALITY, unit

CATALOGUES = Path(__file__).parents[2] / "infra" / "catalogue"


MakePolicy = Callable[[FeatureMap], Policy]


class Log(dict[bytes, bytes]):
    """A compacted log: the newest value of each key, and the offset at which it was written."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.end = len(self)
        self.offsets = dict(zip(self, range(self.end), strict=True))

    def __setitem__(self, key: bytes, value: bytes) -> None:
        super().__setitem__(key, value)
        self.offsets[key] = self.end
        self.end += 1

    def __ior__(self, other: Any) -> Log:  # type: ignore[override,misc]
        for key, value in dict(other).items():
            self[key] = value
        return self

    def since(self, offset: int) -> list[tuple[bytes, bytes]]:
        return [(key, value) for key, value in self.items() if self.offsets[key] >= offset]


class Shard:
    """A decider with its table as a dict, as the wiring runs it: rows are written before anything counts."""

    def __init__(
        self,
        make_policy: MakePolicy,
        seed: int = 0,
        *,
        pairs: Sequence[tuple[int, int]] = PAIRS,
        models: int = 1,
        **options: Any,
    ) -> None:
        self.make_policy, self.options = make_policy, options
        self.rng = np.random.default_rng(seed)
        self.catalogue = load_catalogue(CATALOGUES / "qwen3.yaml")
        self.space = uis_space(self.catalogue, pairs).restrict(set(self.catalogue.model_names[:models]))
        self.table = Log()
        self.environment = DecisionEnvironment(ControlState.of(self.catalogue), self.space)
        self.vectors: dict[str, ActionVector] = {}
        self.price_factors: dict[str, float] = {}
        self.mixed = False
        self.asked = self.rewarded = 0
        self.decider = self.fresh()
        self.offer()

    def policy(self, **features: Any) -> Policy:
        return self.make_policy(FeatureMap(FeatureSettings(12, 10, query_rank=3, **features)))

    @property
    def linucb(self) -> LinUCB:
        """The policy, where it is LinUCB."""
        assert isinstance(self.decider.policy, LinUCB)
        return self.decider.policy

    def fresh(self) -> Decider:
        return Decider(self.policy(), seed=7, **self.options)

    def offer(self) -> None:
        for action in self.space:
            if action.id not in self.vectors:
                row = unit(self.rng.normal(size=10) + 2.0)
                size = float(self.catalogue.model(action.model).parameters)
                self.vectors[action.id] = ActionVector(action.id, action.model, row, size)
        vectors = [self.vectors[action.id] for action in self.space]
        self.table |= self.decider.offer(vectors, self.price_factors, mixed=self.mixed)

    def reprice(self, factor: float) -> None:
        """Let an eFLOP cost so much on the first model."""
        self.price_factors = {self.space.models[0]: factor} if factor != 1.0 else {}
        self.offer()

    def mix(self, mixed: bool = True) -> None:
        """Let no one verifier score all models, or one again."""
        self.mixed = mixed
        self.offer()

    def use(self, space: ActionSpace) -> None:
        self.space = space
        self.environment = DecisionEnvironment(self.environment.control, space, self.environment.living)
        self.offer()

    def row(self, query_id: str) -> bytes | None:
        return self.table.get(query_id.encode())

    def entry(self, query_id: str) -> Row:
        """Return the row of a decided query, read."""
        row = decode_row(query_id.encode(), self.table[query_id.encode()])
        assert isinstance(row, Row)
        return row

    def context(self, query_id: str | None = None, **query: Any) -> tuple[QueryContext, Origin]:
        at, self.asked = self.asked, self.asked + 1
        record = QueryContext(
            query=Query(**{"query_id": query_id or f"q{at}", "text": "1 + 1?", **query}),
            embedding=unit(self.rng.normal(size=12)).astype("<f4").tobytes(),
            encoder=self.options.get("encoder", ""),
            origin=Origin(topic="query", partition=0, offset=at),
        )
        return record, Origin(topic="context", partition=0, offset=at)

    def ask(self, *contexts: tuple[QueryContext, Origin]) -> list[DecisionResult]:
        made = self.decider.decide(contexts, self.row, self.environment)
        self.table |= [d.row for d in made if d.row]
        return made

    def reward(self, decided: DecisionResult, kind: Kind = "final", **changes: Any) -> tuple[Reward, int]:
        decision = decode(decided.value, Decision)
        terms: dict[str, Any] = {
            "correct": float(self.rng.random() < 0.5) if kind in ("final", "correction") else None,
            "score": float(self.rng.random()),
            "log_cost": float(self.rng.uniform(28.0, 35.0)),
            "status": "ok",
        }
        at, self.rewarded = self.rewarded, self.rewarded + 1
        price = None
        if (factor := decision.price_factor) != 1.0:
            terms["log_cost"] += float(np.log(factor))
            price = paid(float(np.exp(terms["log_cost"])), factor)
        return reward_for(decision, kind, **{"price": price, **terms, **changes}), at

    def tell(self, *rewards: tuple[Reward, int]) -> list[LearnResult]:
        learned = self.decider.learn(rewards, self.row)
        self.table |= [row for one in learned for row in one.rows]
        return learned

    def snapshot(self, chunk_bytes: int = 4096) -> list[tuple[bytes, bytes | None]]:
        """Return the writes of a snapshot and of what it makes superfluous, in order, as the wiring makes them."""
        rows = [(k, v, decode_row(k, v)) for k, v in self.table.items() if not is_record(k)]
        carried, ended = snapshot.carry(rows, self.table.end, self.decider.ended, value=self.table.get)
        writes = self.decider.snapshot(chunk_bytes, carried=carried, present=self.table)
        known = manifests(self.table | dict(writes))
        if (floor := snapshot.floor_of(known)) is None:
            return list(writes)
        drops = [key for key, last in ended.items() if last <= floor.version]
        start = (START_KEY, str(floor.log_offset).encode())
        gone = snapshot.obsolete(self.table | dict(writes), known)
        return [*writes, *((key, None) for key in drops), start, *((key, None) for key in gone)]

    def apply(self, writes: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in writes:
            if value is None:
                del self.table[key]
            else:
                self.table[key] = value

    def crash(self) -> Any:
        """Lose the process, keep the log, recover from where the snapshots say."""
        self.decider = self.fresh()
        snapshots = {k: v for k, v in self.table.items() if is_record(k)}
        since = [(k, v) for k, v in self.table.since(start_of(snapshots)) if k not in snapshots]
        found = self.decider.recover(since, snapshots.items())
        self.offer()
        return found

    def same_as(self, other: Decider) -> None:
        """Demand that a decider scores as this shard's does."""
        rng = np.random.default_rng(5)
        dim = 21 if other.policy.traits.surface else 12
        contexts = [Context(f"probe{i}", unit(rng.normal(size=dim))) for i in range(5)]
        mine, others = (d.policy.predict(contexts, [QUALITY] * 5, 1) for d in (self.decider, other))
        for one, two in zip(mine, others, strict=True):
            assert list(one.action_ids) == list(two.action_ids)
            assert np.abs(one.score - two.score).max() <= 1e-9 * max(1.0, np.abs(one.score).max())
        assert (self.decider.seq, self.decider.clock) == (other.seq, other.clock)
        assert self.decider.policy.version == other.policy.version
