"""Invariants of further attempts: which queries get one, what it chooses, and that every attempt's cost is included."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agents.catalogue.cost_model import cost_of
from agents.catalogue.file import load_catalogue
from agents.decider.rows import Row, decode_row
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.record import decode, quick_id
from schemas.reward import Reward
from streams.simulate.life import Life

MILD: Final = frozenset(
    {"attempt fails", "commit lost", "twice", "grader slow", "grader lies", "grader down"}
)
"""Kinds of faults that still let every model that is not itself failing take another attempt."""

TIME_MS: Final = 10_000
"""If a query's search has at least this much time left, in ms, there is enough for another attempt."""

FOLLOWED_MS: Final = 60_000
"""Something must follow a failed attempt within this time, whatever happens to the decider meanwhile, in ms."""


class Attempts:
    """The attempts in a life's records, and checks on them.

    Args:
        life: A life that has ended.
    """

    def __init__(self, life: Life) -> None:
        self.life = life
        topics = life.topics
        self.decisions = [decode(each.value, Decision) for each in life.records(topics.decision)]
        self.by_seq = {(each.query_id, each.seq): each for each in self.decisions}
        failures = life.records(topics.attempt_failed)
        self.failures = {each.offset: decode(each.value, AttemptFailed) for each in failures}
        self.failed_ms = {each.offset: each.timestamp_ms for each in failures}
        letters = [decode(each.value, DeadLetter) for each in life.records(topics.dead_letter)]
        origins = (each.origin for each in letters)
        given_up = {(each.partition, each.offset) for each in origins if each.topic == topics.answer}
        self.undecided = {each.query_id for each in letters if each.origin.topic == topics.decision}
        self.answers: dict[str, tuple[int, Answer]] = {}
        self.given_up: set[str] = set()
        for each in sorted(life.records(topics.answer), key=lambda each: each.offset):
            answer = decode(each.value, Answer)
            if (each.partition, each.offset) in given_up:
                self.given_up.add(answer.query_id)
            else:
                self.answers.setdefault(answer.query_id, (each.timestamp_ms, answer))

    def wrong(self) -> Iterator[str]:
        """Yield descriptions of what is wrong with the attempts."""
        if self.failures and self.life.world.settings.queries.attempts == 1:
            yield f"attempts failed although each query has one: {next(iter(self.failures.values())).query_id}"
        yield from self._decided()
        yield from self._counted()
        yield from self._charged()
        yield from self._passed_over()
        yield from self._unfollowed()

    def _decided(self) -> Iterator[str]:
        """Yield further attempts that a query should not have, or that inherit or choose something they should not."""
        most = self.life.world.settings.queries.attempts
        failed = {(each.query_id, each.attempt, each.answer.seq) for each in self.failures.values()}
        for made in self.decisions:
            if made.attempt == 1:
                continue
            models, last = {each.action.model for each in made.earlier}, made.earlier[-1]
            before = self.by_seq.get((made.query_id, last.seq))
            for what, is_wrong in (
                (f"of {most}", made.attempt > most),
                ("of a pinned query", made.query.pinned is not None),
                (
                    "lacks an earlier one",
                    [each.attempt for each in made.earlier] != list(range(1, made.attempt)),
                ),
                ("follows one that did not fail", (made.query_id, last.attempt, last.seq) not in failed),
                ("asks a model that failed", made.action.model in models | set(made.excluded)),
                ("does not exclude a model that failed", not models <= set(made.excluded)),
                ("is drawn", made.randomised or made.reason == "control"),
                ("is in another cohort", before is not None and made.cohort != before.cohort),
                ("has another objective", before is not None and made.objective != before.objective),
            ):
                if is_wrong:
                    yield f"attempt {made.attempt} {what}: {made.query_id} chose {made.action.id}"

    def _counted(self) -> Iterator[str]:
        """Yield Rewards that are not for the first Answer, or that leave out the cost of earlier attempts."""
        costs: defaultdict[tuple[str, int, int | None], list[float]] = defaultdict(list)
        for failed in self.failures.values():
            costs[failed.query_id, failed.attempt, failed.answer.seq] += self._cost(failed.answer)
        for record in self.life.records(self.life.topics.reward):
            reward = decode(record.value, Reward)
            _, answer = self.answers.get(reward.query_id, (0, None))
            # The difference is explained by an abandoned Decision, or a process that slept while another took over.
            explained = self.life.faults.met("suspend", reward.query_id) or reward.query_id in self.undecided
            if answer is not None and answer.seq is not None and not explained:
                same = reward.status != answer.status or (reward.attempt, reward.seq) == (
                    answer.attempt,
                    answer.seq,
                )
                if not same:
                    yield f"rewards attempt {reward.attempt}, answered by {answer.attempt}: {reward.query_id}"
            for each in reward.earlier:
                known = costs[reward.query_id, each.attempt, each.seq]
                if known and not any(math.isclose(each.cost, cost) for cost in known):
                    said = f"{each.cost:g} in place of {known}"
                    yield f"the cost of attempt {each.attempt} is not counted: {reward.query_id}: {said}"

    def _charged(self) -> Iterator[str]:
        """Yield learner rows that were ended by a failed attempt but not charged its cost."""
        for key, value in self.life.broker.changelog(self.life.log, 0).items():
            row = decode_row(key, value)
            if not isinstance(row, Row) or row.failure_offset < 0:
                continue
            known = self._cost(self.failures[row.failure_offset].answer)
            if known and not math.isclose(row.paid, known[0]):
                yield f"attempt {row.attempt} cost {known[0]:g} and is charged {row.paid:g}: {row.query_id}"

    def _cost(self, answer: Answer) -> list[float]:
        """Return an attempt's cost according to its trace; an empty list if its model is no longer known."""
        cost_model = self.life.cluster.workers[0].control.cost_model
        try:
            cost = cost_of(answer, cost_model)
        except UniscaleError:
            return []
        return [0.0 if cost is None else cost.cost]

    def _passed_over(self) -> Iterator[str]:
        """Yield queries that failed although a different model could have answered in time."""
        life, world = self.life, self.life.world
        hits = {kind for kind, _ in life.faults.hits}
        if world.settings.queries.attempts == 1 or hits - MILD or world.states or world.deadly or world.bad:
            return
        hows = {
            fault.how.partition(" ")[0] for fault in life.faults.schedule if fault.kind == "attempt fails"
        }
        catalogue = load_catalogue(Path(world.settings.catalogue))
        able = {each.name for each in catalogue.models if each.group in world.groups} - hows
        if "every" in hows:
            return
        again = {each.query_id for each in self.decisions if each.attempt > 1}
        for failed in self.failures.values():
            answered_ms, answer = self.answers.get(failed.query_id, (0, None))
            made = self.by_seq[failed.query_id, failed.answer.seq or 0]
            query = made.query
            if failed.query_id in again or answer is None or answer.status != "failed" or answer.seq is None:
                continue
            models = able - {made.action.model} - {*made.short_models, *made.unable_models}
            models &= set(query.allowed_models or models)
            timeout_s = query.timeout_s or world.settings.queries.timeout_s
            in_time = answered_ms + TIME_MS < made.appended_ms + 900 * timeout_s
            if models and in_time and query.pinned is None and query.budget is None:
                yield f"not asked again, though {', '.join(sorted(models))} could answer: {failed.query_id}"

    def _unfollowed(self) -> Iterator[str]:
        """Yield failed attempts that nothing followed, so their query expired."""
        if any(kind.startswith("encoder") for kind, _ in self.life.faults.hits):
            return  # the decider waits for the encoder, too
        last = {each.query_id: each.attempt for each in sorted(self.decisions, key=lambda each: each.attempt)}
        # Without the Context, a redelivered failure is not decided again.
        there = {quick_id(each.value) for each in self.life.broker.records(self.life.topics.context)}
        for offset, failed in self.failures.items():
            if failed.query_id not in there:
                continue
            answered_ms, answer = self.answers.get(failed.query_id, (0, None))
            expired = (
                answer is not None and answer.status == "expired" and last[failed.query_id] == failed.attempt
            )
            if (
                expired
                and failed.query_id not in self.given_up
                and answered_ms - self.failed_ms[offset] > FOLLOWED_MS
            ):
                yield f"nothing followed the failed attempt {failed.attempt}, and it expired: {failed.query_id}"
