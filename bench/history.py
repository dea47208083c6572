"""A complete history of queries, generated record by record with the services' pure code, without broker or engine.

Searches are random, but everything else is real: the policy decides and learns, and the join computes rewards. Of every
ten queries, seven are graded against their reference, one by a client, one is not graded, and one fails.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agents.catalogue.action_space import uis_space
from agents.catalogue.control_state import ControlState
from agents.catalogue.cost_model import CostModel, cost_of
from agents.catalogue.file import load_catalogue
from agents.decider.decider import Decider
from agents.decider.eligibility import DecisionEnvironment
from agents.embedding import ArrivedQuery, embed, encoder_id
from agents.encoders import encoder_of
from agents.reward.join import on
from agents.reward.join_row import JoinRow, ScoredAnswer, encode_row
from agents.reward.transition import Arrival, Timeouts
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.forest import Draft, Limits
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode, encode
from schemas.reward import Due, Feedback, Reward
from schemas.search import Served
from schemas.spent import Spent
from streams.services.decider import action_vectors, policy_of
from streams.settings import Settings
from streams.topics import SHARD, Topics

_BATCH = 32
_WAIT_MS = 1000


class Written(NamedTuple):
    """A record to append. Its offset is the number of earlier records in its partition."""

    topic: str
    partition: int
    key: bytes
    value: bytes
    timestamp_ms: int


class SyntheticHistory:
    """The records of a number of queries, in an order that a running system could have written them in.

    Args:
        settings: The settings, of which prefix, catalogue, encoder, policy and seed are used. Each topic has one
            partition.
        began_ms: The time of the first query, ms since the epoch; another query follows every ten milliseconds.
    """

    def __init__(self, settings: Settings, began_ms: int) -> None:
        self.settings, self.topics, self.now_ms = settings, Topics(settings), began_ms
        self.catalogue = load_catalogue(Path(settings.catalogue))
        self.cost_model = CostModel.of(self.catalogue)
        self.encoder = encoder_of(settings.encoder)
        self.decider = Decider(
            policy_of(settings, self.encoder), seed=settings.policy.seed, encoder=encoder_id(self.encoder)
        )
        self.environment = DecisionEnvironment(ControlState.of(self.catalogue), uis_space(self.catalogue))
        self.timeouts = Timeouts(timeout_ms=int(settings.queries.timeout_s * 1000), feedback_ms=_WAIT_MS)
        self.rng = np.random.default_rng(settings.policy.seed)
        self._ends: dict[str, int] = {}
        self._rows: dict[str, bytes] = {}
        self._snapshot_at = 0

    def records(self, queries: int) -> Iterator[Written]:
        """Yield the records of this many queries."""
        learner = self.topics.changelog("decider", "pending")
        for key, value in self.decider.offer(action_vectors(self.catalogue, self.encoder)):
            yield self._put(learner, key, value)
        for start in range(0, queries, _BATCH):
            asked: list[tuple[QueryContext, Origin]] = []
            for number in range(start, min(start + _BATCH, queries)):
                yield from self._asked(number, asked)
            decided = self.decider.decide(asked, self._rows.get, self.environment)
            for each in decided:
                assert each.row is not None, each.error
                self._rows[each.query_id] = each.row[1]
                yield self._put(learner, *each.row)
            rewards: list[tuple[Reward, int]] = []
            for number, each in enumerate(decided, start):
                assert each.value is not None
                decision = decode(each.value, Decision)
                yield self._put(self.topics.decision, each.query_id.encode(), each.value)
                yield from self._searched(number, decision, rewards)
            for learned in self.decider.learn(rewards, self._rows.get):
                for row in learned.rows:
                    yield self._put(learner, *row)
            self._rows.clear()
            every = self.settings.policy.snapshot_every
            if every and self.decider.seq - self._snapshot_at >= every:
                self._snapshot_at = self.decider.seq
                for key, value in self.decider.snapshot():
                    yield self._put(self.topics.snapshot, key, value)

    def _asked(self, number: int, asked: list[tuple[QueryContext, Origin]]) -> Iterator[Written]:
        self.now_ms += 10
        reference = str(number % 97) if number % 10 < 7 else None
        text = f"Question {number}: how many are there of the {number % 97} together, all told? " * 3
        query = Query(query_id=f"h{number}", text=text, reference=reference)
        written = self._put(self.topics.query, query.query_id.encode(), encode(query))
        yield written
        origin = Origin(topic=written.topic, partition=0, offset=self._ends[written.topic] - 1)
        (context,) = embed([ArrivedQuery(query, origin, self.now_ms)], encoder=self.encoder)
        yield self._put(self.topics.context, SHARD, encode(context))
        topic = self.topics.context
        asked.append((context, Origin(topic=topic, partition=0, offset=self._ends[topic] - 1)))

    def _searched(
        self, number: int, decision: Decision, rewards: list[tuple[Reward, int]]
    ) -> Iterator[Written]:
        """Yield a query's Answer, the feedback on it, and the records that the join writes."""
        answer = self._answer(number, decision)
        yield self._put(self.topics.answer, answer.query_id.encode(), encode(answer))
        records: list[tuple[Decision | Answer | Feedback | Due, ScoredAnswer | None]] = [(decision, None)]
        records.append((answer, self._scored(decision, answer)))
        if number % 10 == 7:
            feedback = Feedback(query_id=answer.query_id, correct=bool(self.rng.random() < 0.5))
            yield self._put(self.topics.feedback, answer.query_id.encode(), encode(feedback))
            records.append((feedback, None))
        elif number % 10 == 8:
            deadline_ms = self.now_ms + _WAIT_MS
            records.append((Due(query_id=answer.query_id, kind="feedback", deadline_ms=deadline_ms), None))
        row: JoinRow | None = None
        for record, scored in records:
            at_ms = record.deadline_ms if isinstance(record, Due) else self.now_ms
            transition = on(row, Arrival(record, at_ms), self.timeouts, scored)
            for out in transition.out:
                if isinstance(out, Reward):
                    yield self._put(self.topics.reward, SHARD, encode(out))
                    rewards.append((out, self._ends[self.topics.reward] - 1))
            if (row := transition.row) is not None:
                changelog = self.topics.changelog("aggregator", "join")
                yield self._put(changelog, answer.query_id.encode(), encode_row(row))

    def _answer(self, number: int, decision: Decision) -> Answer:
        if number % 10 == 9:
            return Answer(
                query_id=decision.query_id,
                status="failed",
                by="executor",
                action=decision.action,
                group=decision.group,
                seq=decision.seq,
                error="EngineFault: drawn by lot",
            )
        width, depth = min(4, decision.action.qp * decision.action.cp), int(self.rng.integers(1, 5))
        tokens, scores = self.rng.integers(4, 40, depth * width), self.rng.uniform(0.2, 0.95, depth * width)
        trace = tuple(
            Draft(
                parent=max(-1, at - width),
                depth=at // width + 1,
                tokens=int(tokens[at]),
                slot=at % width,
                finish="eos" if at // width == depth - 1 else "separator",
                text="A step.\n\n" if not at % width else "",
                score=float(scores[at]),
                fate="finished" if at // width == depth - 1 else "kept",
            )
            for at in range(depth * width)
        )
        path = tuple(range(0, depth * width, width))
        right = self.rng.random() < 0.6
        said = str(number % 97 if right else number % 97 + 1)
        return Answer(
            query_id=decision.query_id,
            status="ok",
            by="executor",
            action=decision.action,
            group=decision.group,
            seq=decision.seq,
            text="A step.\n\n" * depth + f"So \\boxed{{{said}}}",
            complete=True,
            extracted=said,
            score=sum(trace[at].score or 0.0 for at in path) / depth,
            path=path,
            trace=trace,
            limits=Limits(depth_limit=10, step_tokens=64),
            prompt_tokens=40,
            depth=depth,
            steps=depth,
            completed=width,
            spent=Spent(verify_s=float(self.rng.random())),
            verifier=Served(name="drawn", model=self.catalogue.verifier),
        )

    def _scored(self, decision: Decision, answer: Answer) -> ScoredAnswer:
        correct = None
        if decision.query.reference is not None:
            correct = float(answer.extracted == decision.query.reference)
        score = answer.score if answer.text is not None else None
        return ScoredAnswer(
            status=answer.status,
            score=score,
            price=cost_of(answer, self.cost_model),
            correct=correct,
            grader="drawn" if correct is not None else "",
        )

    def _put(self, topic: str, key: bytes, value: bytes) -> Written:
        self._ends[topic] = self._ends.get(topic, 0) + 1
        return Written(topic, 0, key, value, self.now_ms)
