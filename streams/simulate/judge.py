"""Invariants at the end of a life. Violations that faults explain are excused, for the affected queries only."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from agents.decider.categories import NO_KEYS, ContextKeys, categories_of
from agents.decider.decider import Decider
from agents.decider.policy_fold import outcome_weights
from agents.decider.rows import REFIT_KEY, Row, decode_row
from agents.decider.shares import THINNED
from agents.decider.snapshot import SNAPSHOT_KEY
from agents.decider.verify import load_replay, mismatches
from schemas.answer import Answer
from schemas.control import Heartbeat
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query, QueryContext
from schemas.record import decode
from schemas.reward import Reward
from streams.audit.reading import Raw, Span
from streams.audit.run import audit
from streams.log.base import ConsumerRecord
from streams.runtime.handler_guard import LIMIT
from streams.runtime.memory_cluster import Cluster
from streams.services.decider import DeciderService, policy_of
from streams.simulate.attempts import Attempts
from streams.simulate.faults import Faults
from streams.simulate.life import LAST, Life, said

WAIT_S: Final = 120.0
"""The longest an honest query may wait for admission once the faults are over, in seconds."""

ROW_BYTES: Final = 4096
"""Maximum bytes of a query's row in the learner's log, however long its question is."""

DEATHS: Final = 6
"""Maximum deaths that one record may cause per worker, which suffice to find it among up to 27 records in flight."""

EARLY: Final = 0.85
"""Share of a query's timeout before which no answer may report a timeout; searches may use 0.9 of the timeout."""


class InMemoryLog:
    """The topics of an in-memory cluster, in the form that the audit reads."""

    def __init__(self, cluster: Cluster) -> None:
        self.broker = cluster.broker

    def spans(self, topics: Iterable[str]) -> dict[tuple[str, int], Span]:
        """Return the offsets that each partition holds."""
        return {
            (name, at): Span(self.broker.first(name, at), self.broker.end(name, at))
            for name in topics
            for at in range(self.broker.partitions(name))
        }

    def read(self, part: tuple[str, int], span: Span) -> Iterator[Raw]:
        """Yield the records of a span."""
        for r in self.broker.records(part[0]):
            if r.partition == part[1] and span.begin <= r.offset < span.end:
                yield Raw(r.offset, r.timestamp_ms, r.key, r.value)


def judged(life: Life) -> Iterator[str]:
    """Yield descriptions of what is wrong with an ended life."""
    cluster, topics = life.cluster, life.topics
    report = audit(InMemoryLog(cluster), cluster.settings, cluster.broker.now_ms())
    for each in report.discrepancies:
        if not any(life.faults.met(kind, each["query_id"]) for kind in _EXPLAINED.get(each["check"], ())):
            yield f"audit: {each['check']}: {each['query_id']} {each['what']}"
    for query in report.pending:
        # An operator may have retried the query, or it was decided again after a reset and already has its Reward.
        if query.query_id not in life.seen["refused"] and not life.faults.met("reset", query.query_id):
            yield f"pending: {query.query_id} waits for the {query.waits_for}"
    yield from _replayed(life)
    answers: defaultdict[str, list[tuple[ConsumerRecord, Answer]]] = defaultdict(list)
    for record in sorted(life.records(topics.answer), key=lambda record: record.offset):
        answer = decode(record.value, Answer)
        answers[answer.query_id].append((record, answer))
    first = {query_id: of[0] for query_id, of in answers.items()}
    for at in range(LAST):
        if (last := first.get(f"last{at}")) is not None and last[1].status != "ok":
            yield f"answered {last[1].status} though nothing is wrong: last{at}: {last[1].error}"
    yield from _graded(life, answers)
    yield from _in_time(life, first)
    yield from _admitted(life)
    yield from _refused(life)
    yield from _taught(life)
    yield from Attempts(life).wrong()
    yield from _outlived(life)
    yield from _chosen(life)
    yield from _shown(life)
    yield from _kept(life)
    for row in cluster.broker.records(life.log):
        of_query = not (row.key or b"").startswith(REFIT_KEY)
        if row.value is not None and len(row.value) > ROW_BYTES and of_query:
            yield f"a row of {len(row.value)} bytes: {(row.key or b'').decode()}"


def _replayed(life: Life) -> Iterator[str]:
    """Yield decisions that cannot be reproduced from the log."""
    settings = life.world.settings
    log, snapshots = life.broker.changelog(life.log, 0), life.snapshots()
    for worker in life.cluster.workers:
        if isinstance(service := worker.built, DeciderService) and life.seen["decision"]:
            policy = policy_of(settings, service.encoder)
            try:
                rows, after = load_replay(policy, {**log, **snapshots})
                found = list(mismatches(policy, rows, settings.policy.seed, after))
            except Exception as error:
                yield f"the log cannot be replayed: {said(error)}"
                return
            yield from (
                f"not reproduced: {each.query_id} {each.field}: {each.logged} {each.replayed}"
                for each in found
            )
            return


def _graded(life: Life, answers: Mapping[str, Sequence[tuple[ConsumerRecord, Answer]]]) -> Iterator[str]:
    """Yield wrong grades, unless the grader lied. A missing grade is allowed."""
    given_up = {
        (letter.origin.partition, letter.origin.offset)
        for record in life.records(life.topics.dead_letter)
        if (letter := decode(record.value, DeadLetter)).origin.topic == life.topics.answer
    }
    for record in life.records(life.topics.reward):
        reward = decode(record.value, Reward)
        if not reward.grader or reward.query_id not in life.world.queries:
            continue
        if life.faults.met("grader lies", reward.query_id):
            continue
        query = life.world.queries[reward.query_id][1]
        # The grade may belong to the first Answer that was not dead-lettered, or to an earlier one, which may have been
        # graded before it was dead-lettered.
        of = []
        for answered, answer in answers.get(reward.query_id, ()):
            if answer.status == reward.status:
                of.append(answer.extracted)
            if (answered.partition, answered.offset) not in given_up:
                break
        # If there is none, the Answer was dead-lettered after three errors, and the Reward is for the expiry of its
        # query, so nothing is learned from it.
        if of and all(reward.correct != float(bool(life.world.right(query, text))) for text in of):
            said = f"{reward.correct} for {' or '.join(map(repr, of))}, right is {query.reference!r}"
            yield f"graded wrong: {reward.query_id}: {said}"


def _in_time(life: Life, answers: dict[str, tuple[ConsumerRecord, Answer]]) -> Iterator[str]:
    """Yield answers that report a timeout too early."""
    appended: dict[str, tuple[int, float | None]] = {}
    for record in life.records(life.topics.decision):
        decision = decode(record.value, Decision)
        # After a reset, a query that is sent again is decided again; its first Answer belongs to its first Decision.
        appended.setdefault(decision.query_id, (decision.appended_ms, decision.query.timeout_s))
    for query_id, (record, answer) in answers.items():
        out_of_time = answer.status == "expired" or "deadline" in (answer.error or "").lower()
        if not out_of_time or query_id not in appended:
            continue
        since_ms, timeout_s = appended[query_id]
        took_s, timeout_s = (
            (record.timestamp_ms - since_ms) / 1000,
            timeout_s or life.world.settings.queries.timeout_s,
        )
        if took_s < EARLY * timeout_s:
            said = f"after {took_s:.1f} s of {timeout_s:.0f}: {answer.status}, {answer.error}"
            yield f"out of time too early: {query_id} {said}"


def _admitted(life: Life) -> Iterator[str]:
    """Yield honest queries that waited too long after the last fault."""
    admitted: dict[str, int] = {}
    for record in life.records(life.topics.context):
        admitted.setdefault(decode(record.value, QueryContext).query_id, record.timestamp_ms)
    began_ms = life.broker.now_ms() - int(1000 * asyncio.get_running_loop().time())
    for query_id, (at_s, query) in life.world.queries.items():
        if query.tenant == "evil" or query_id not in admitted:
            continue
        waited_s = (admitted[query_id] - began_ms) / 1000 - max(at_s, life.calm_s)
        if waited_s > WAIT_S:
            yield f"waited {waited_s:.0f} s for admission: {query_id}"


def _outlived(life: Life) -> Iterator[str]:
    """Yield records of deadly queries that ended more processes than needed to isolate them."""
    for query_id, service in life.world.deadly.items():
        most = DEATHS * (life.world.workers[service] + 1)  # another worker may have joined
        for place, deaths in life.faults.deadly.get(query_id, {}).items():
            if deaths > most:
                yield f"ended {deaths} processes of the {service}: {query_id} at {place}"


def misled(life: Life) -> tuple[int, int]:
    """Return how many choices in the last third picked the bad model, and how many choices that third contains."""
    if life.world.bad is None:
        return 0, 0
    found = {
        decision.query_id: decision
        for record in life.records(life.topics.decision)
        if (decision := decode(record.value, Decision)).query_id.startswith("q") and decision.attempt == 1
    }
    last = sorted(found.values(), key=lambda decision: decision.seq)[-len(found) // 3 :]
    return sum(decision.action.model == "large" for decision in last), len(last)


MET: Final = (
    "model loading",
    "model suspended",
    "model failed",
    "no place left",
    "window full",
    "reward closed early",
    "refit in parts",
    "snapshot in chunks",
    "process killed",
    "decided again",
    "answered again",
    "mixed verifiers",
    "categories",
    "categories left out",
    "session kept",
)
"""The names of the states and limits that histories may reach; see `met`."""


def met(life: Life) -> Iterator[str]:
    """Yield the names of the states and limits that a life reached."""
    yield from {
        f"model {health.state}"
        for record in life.records(life.topics.heartbeat)
        for health in decode(record.value, Heartbeat).health
        if health.state != "ready"
    }
    errors = {decode(record.value, DeadLetter).error for record in life.records(life.topics.dead_letter)}
    rewards = (decode(record.value, Reward) for record in life.records(life.topics.reward))
    decisions = [decode(record.value, Decision) for record in life.records(life.topics.decision)]
    answers = (decode(record.value, Answer) for record in life.records(life.topics.answer))
    keys = {record.key or b"" for record in life.records(life.topics.snapshot)}
    refits = {record.key or b"" for record in life.broker.records(life.log)}
    again = any(each.attempt > 1 for each in decisions)
    for name, is_met in (
        ("no place left", "AdmissionRejected" in errors),
        ("process killed", "KilledProcess" in errors),
        ("window full", life.window_full),
        ("reward closed early", any(reward.closed_early for reward in rewards)),
        ("refit in parts", any(key.startswith(REFIT_KEY) and key.endswith(b"/1") for key in refits)),
        ("decided again", again),
        ("answered again", any(each.attempt > 1 and each.status == "ok" for each in answers)),
        ("categories", any(each.features for each in decisions)),
        ("categories left out", any(decider.policy.left_out() for decider in _learners(life))),
        ("session kept", any(each.reason == "session" for each in decisions)),
        ("mixed verifiers", any(each.verified == "some" for each in decisions)),
        ("snapshot in chunks", any(key.startswith(SNAPSHOT_KEY) and key.endswith(b"/1") for key in keys)),
    ):
        if is_met:
            yield name


def _learners(life: Life) -> Iterator[Decider]:
    for worker in life.cluster.workers:
        if isinstance(service := worker.built, DeciderService) and service.decider is not None:
            yield service.decider


def _shown(life: Life) -> Iterator[str]:
    """Yield Decisions whose categories fit no decider's list, and rows with categories other than their Decision's."""
    lists = [ContextKeys.of(each) for each in life.world.lists] or [NO_KEYS]
    for record in life.records(life.topics.decision):
        decision = decode(record.value, Decision)
        if decision.features not in (wanted := [categories_of(decision.query, keys) for keys in lists]):
            yield f"categories: {decision.query_id} has {decision.features}, not one of {wanted}"
    for record in life.broker.records(life.log):
        row = None if record.value is None else decode_row(record.key or b"", record.value)
        if isinstance(row, Row) and row.features != (said := decode(bytes(row.decision), Decision).features):
            yield f"categories: the row of {row.query_id} has {row.features}, its Decision {said}"


def _kept(life: Life) -> Iterator[str]:
    """Yield turns that keep a configuration other than their session's last one, or that were drawn or paced."""
    if any(life.faults.met("reset", query_id) for query_id in life.seen["decision"]):
        return  # sequence numbers start over
    if any(kind in ("compact", "repair") for kind, _ in life.faults.hits):
        return  # the row of an earlier turn may have been removed
    found = {}
    for record in life.broker.records(life.log):
        row = None if record.value is None else decode_row(record.key or b"", record.value)
        if isinstance(row, Row):
            found[row.name] = row
    last: dict[str, tuple[str, int]] = {}
    for _, batch in groupby(sorted(found.values(), key=attrgetter("seq")), key=attrgetter("batch")):
        turns = [(row, decode(bytes(row.decision), Decision)) for row in batch]
        for row, made in turns:
            if made.reason != "session":
                continue
            action, at_ms = last.get(made.session, ("", 0))
            late = made.appended_ms - at_ms > 1000 * life.world.settings.queries.session_s
            if row.action != action or late:
                yield f"session: {row.query_id} keeps {row.action}, its session ran {action} at {at_ms}"
            if row.paced or made.randomised or made.propensity is not None:
                yield f"session: {row.query_id} was drawn or paced"
        last |= {made.session: (row.action, made.appended_ms) for row, made in turns if made.session}


def _chosen(life: Life) -> Iterator[str]:
    """Yield a failure if a bad model receives most of the choices; smaller shares are judged over many seeds."""
    bad, choices = misled(life)
    # For a model that is too expensive, the share is only reported (`coverage`).
    kind, policy = life.world.bad, life.world.settings.policy.name
    if kind != "dear" and 2 * bad > choices:
        yield f"chosen badly: {policy} chose what {kind} for {bad} of the last {choices} queries"


def _taught(life: Life) -> Iterator[str]:
    """Yield outcomes that were learned although their tenant had taught more than all others and was not thinned."""
    if life.snapshots():
        return  # rows may have left the log, or earlier outcomes may count
    rows = (decode_row(key, value) for key, value in life.broker.changelog(life.log, 0).items())
    weight: Counter[str] = Counter()
    unlearned: Counter[str] = Counter()  # outcomes since the last one that was learned
    for tenant, learned in outcome_weights(row for row in rows if isinstance(row, Row)):
        others = weight.total() - weight[tenant]
        most = tenant and others > weight[""] and weight[tenant] > others
        if most and learned and unlearned[tenant] < THINNED - 1:
            yield f"taught too much: {tenant!r}: {weight[tenant]} outcomes, all others {others}"
        weight[tenant] += learned
        unlearned[tenant] = 0 if learned else unlearned[tenant] + 1


_EXPLAINED: Final = {
    "row_embedding": ("encoder lies",),
    "answers_differ": ("engine lies", "engine wrong", "attempt fails", "verifier lies", "reset"),
    "decisions_differ": ("reset",),
    "row_of_another_decision": ("reset",),
    "reward_of_another_decision": ("reset",),
    "rewards_differ": ("suspend",),
    "reward_of_another_answer": ("suspend",),
    "reward_kinds": ("suspend",),
}
"""Audit checks, with the faults that explain their failure: a dependency gave two answers to one question, the broker
accepted a Reward from an aggregator whose successor had sent another one, or a query was sent again after a reset."""

_EXPECTED: Final = {
    "NotEmbeddedInTime": ("encoder down", "encoder wrong"),
    "SearchError": ("engine wrong", "verifier wrong"),
    "InvalidField": ("engine wrong", "verifier wrong", "encoder wrong"),
}
"""Dead letters' errors, with the kinds of fault that explain them for the affected queries."""

_DOWN: Final = ("engine down", "verifier down")
"""Kinds of fault that may kill an engine independently of its requests."""

_CLIENTS: Final = frozenset({"DuplicateQuery", "OrphanFeedback"})
"""Errors that clients cause."""

_WISHES: Final = frozenset(
    {"UnservedObjective", "ObjectiveError", "ActionError", "UnavailableModel", "AdmissionRejected"}
)
"""Errors that refuse a query because it asks for something that is temporarily unavailable."""


def _refused(life: Life) -> Iterator[str]:
    """Yield dead letters that nothing explains."""
    for record in life.records(life.topics.dead_letter):
        letter = decode(record.value, DeadLetter)
        query_id = letter.query_id or ""
        asked = life.world.queries.get(query_id)
        if letter.origin.topic == life.topics.query and asked is None:
            continue  # an unreadable record
        if letter.error in _WISHES and query_id in life.world.wishing:
            continue
        if letter.error == "AdmissionRejected" and asked is not None and _away(asked[1], life.faults):
            continue
        if letter.error not in _CLIENTS and not _explained(letter, life.faults):
            yield f"given up: {letter.error} at {letter.origin} of {query_id}: {letter.reason[:200]}"


def _away(query: Query, faults: Faults) -> bool:
    """Return whether a query allows only a model that was unavailable for a while, or suspended for its failures."""
    asked = (query.pinned.model,) if query.pinned else query.allowed_models
    return asked == ("large",) and any(
        faults.hits[kind, "executor"] for kind in ("model away", "attempt fails")
    )


def _explained(letter: DeadLetter, faults: Faults) -> bool:
    """Return whether faults of a record or its query explain its dead letter."""
    origin = letter.origin
    place = f"{origin.topic}/{origin.partition}/{origin.offset}"
    match letter.error:
        case "Injected":
            return faults.raised[place] >= LIMIT
        case "KilledProcess" if letter.query_id in faults.deadly:
            return True
        case "KilledProcess":
            # A query that runs alone as a suspect, because of a deadly one, is blamed if an engine dies meanwhile, or
            # if its process is killed.
            fell = any(faults.met(kind, letter.query_id or "") for kind in _DOWN) or faults.witnessed[place]
            if faults.deadly and fell:
                return True
            return faults.raised[place] >= LIMIT or faults.witnessed[place] >= LIMIT
    return any(faults.met(kind, letter.query_id or "") for kind in _EXPECTED.get(letter.error, ()))
