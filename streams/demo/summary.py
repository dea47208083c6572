"""The questions of a run, and its summary as JSON, both computed from its log."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from schemas.query import Query
from streams.client.events import Timelines
from streams.timeline import Timeline

# The selection and order of the questions.


def thirds(queries: Sequence[Query], count: int, seed: int) -> list[Query]:
    """Return `count` queries in random order, such that each third has the overall share of every level.

    >>> qs = [Query(query_id=f"{l}{i}", text="x", metadata={"level": l}) for l in "ab" for i in range(6)]
    >>> [sorted(q.metadata["level"] for q in thirds(qs, 12, 1)[t * 4 : t * 4 + 4]) for t in range(3)]
    [['a', 'a', 'b', 'b'], ['a', 'a', 'b', 'b'], ['a', 'a', 'b', 'b']]
    """
    rng = random.Random(seed)
    levels: dict[str, list[Query]] = {}
    for query in queries:
        levels.setdefault(str(query.metadata.get("level", "")), []).append(query)
    for group in levels.values():
        rng.shuffle(group)
    # Each level's questions are spread evenly over all questions, so that any prefix has nearly the same shares.
    spread = [((i + 0.5) / len(group), query) for group in levels.values() for i, query in enumerate(group)]
    dealt = [query for _, query in sorted(spread, key=lambda each: each[0])][:count]
    cuts = [round(len(dealt) * part / 3) for part in range(4)]
    ordered = []
    for begin, end in pairwise(cuts):
        part = dealt[begin:end]
        rng.shuffle(part)
        ordered += part
    return ordered


# The summary of a run, which is computed from its log and which the demo writes to summary.json.


def summarise(
    timelines: Timelines, sent: Iterable[str], *, broker: str, mode: str, wall_s: float
) -> dict[str, Any]:
    """Return the summary of a run.

    Thirds are those of the queries with a scalar reward, in the order of their decisions. `rewards` is the number of
    queries whose reward is closed.

    Args:
        timelines: The timelines of the run's queries.
        sent: The ids of the queries that were sent, without baselines.
        broker: Name and version of the broker.
        mode: Description of the objective.
        wall_s: Seconds from the first query to the last reward.
    """
    ids = list(sent)
    queries = [timelines.by_id[q] for q in ids if q in timelines.by_id]
    rewarded = sorted(
        (s for s in queries if s.decision and s.closing and s.closing.reward is not None),
        key=lambda s: s.seq,
    )
    third = max(1, len(rewarded) // 3)
    first, last = rewarded[:third], rewarded[-third:]
    answers = [s.answer for s in queries if s.answer]
    return {
        "broker": broker,
        "engine": _served(a.engine for a in answers),
        "verifier": _served(a.verifier for a in answers),
        "mode": mode,
        "queries": len(ids),
        "answers": len(answers),
        "unanswered": len(ids) - len(answers),
        "statuses": Counter(a.status for a in answers),
        "rewards": sum(s.closing is not None for s in queries),
        "dead_letters": len(timelines.dead_letters),
        "duplicates": sum(s.repeats for s in queries),
        "accuracy": _mean(_correct(queries)),
        "accuracy_last_third": _mean(_correct(last)),
        "facts": facts(queries),
        "mean_reward": _mean(_rewards(rewarded)),
        "mean_reward_first_third": _mean(_rewards(first)),
        "mean_reward_last_third": _mean(_rewards(last)),
        "mean_cost_eflops_first_third": _mean(s.eflops or 0.0 for s in first),
        "mean_cost_eflops_last_third": _mean(s.eflops or 0.0 for s in last),
        "distinct_actions": len({s.decision.action.id for s in queries if s.decision}),
        "tokens": sum(a.generated_tokens for a in answers),
        "drafts": sum(len(a.trace) for a in answers),
        "wall_s": round(wall_s, 2),
        # Baselines are queries, too, and their records are in the log.
        "bytes_per_query": round(timelines.bytes / max(1, len(timelines.by_id))),
        "latency_ms": latencies(queries),
    }


FACTS, KNOWS = "facts", "smollm2-135m"
"""The family of the questions about everyday facts, and the model that knows many of them."""


def facts(queries: Sequence[Timeline]) -> dict[str, float]:
    """Return how many of the closed queries were facts, went to the model that knows them, and were right there.

    The other questions are counted beside them.
    """
    done = [(s.decision, s.closing.correct or 0.0) for s in queries if s.decision and s.closing]
    asked = [(d.action.model == KNOWS, right) for d, right in done if d.query.metadata.get("family") == FACTS]
    sent = [right for there, right in asked if there]
    return {
        "facts": len(asked),
        "sent": len(sent),
        "sent_right": sum(sent),
        "others": len(done) - len(asked),
        "others_right": sum(right for _, right in done) - sum(right for _, right in asked),
    }


def facts_told(found: Mapping[str, float]) -> str:
    """Return what became of facts and of the other questions in one sentence; empty if there were none of either.

    >>> facts_told({"facts": 30, "sent": 24, "sent_right": 18, "others": 90, "others_right": 63})
    '80% of 30 facts went to smollm2-135m, which got 75% of them right. Of the other 90 questions, 70% were right.'
    """
    if not (found["facts"] and found["others"]):
        return ""
    right = f", which got {found['sent_right'] / found['sent']:.0%} of them right" if found["sent"] else ""
    return (
        f"{found['sent'] / found['facts']:.0%} of {found['facts']} facts went to {KNOWS}{right}. Of the other "
        f"{found['others']} questions, {found['others_right'] / found['others']:.0%} were right."
    )


def latencies(queries: Sequence[Timeline]) -> dict[str, dict[str, float]]:
    """Return the p50 and p95 of every stage's duration, in ms between append times on the broker."""
    samples: dict[str, list[float]] = {}

    def gap(name: str, timeline: Timeline, begin: str, end: str) -> None:
        if begin in timeline.at_ms and end in timeline.at_ms:
            samples.setdefault(name, []).append(timeline.at_ms[end] - timeline.at_ms[begin])

    for timeline in queries:
        gap("query_to_context", timeline, "query", "context")
        gap("context_to_decision", timeline, "context", "decision")
        gap("query_to_decision", timeline, "query", "decision")
        gap("decision_to_first_step", timeline, "decision", "step/1")
        for step in range(1, 1 + len({s.step for s in timeline.steps})):
            gap("step_to_verification", timeline, f"step/{step}", f"verification/{step}")
            gap("verification_to_next_step", timeline, f"verification/{step}", f"step/{step + 1}")
        gap("answer_to_reward", timeline, "answer", "reward/final")
        gap("query_to_answer", timeline, "query", "answer")
    return {
        name: {"p50": round(float(np.percentile(ms, 50)), 1), "p95": round(float(np.percentile(ms, 95)), 1)}
        for name, ms in samples.items()
    }


def _rewards(queries: Sequence[Timeline]) -> list[float]:
    return [s.closing.reward for s in queries if s.closing and s.closing.reward is not None]


def _correct(queries: Sequence[Timeline]) -> list[float]:
    return [s.closing.correct for s in queries if s.closing and s.closing.correct is not None]


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _served(values: Iterable[Any]) -> list[str]:
    return sorted({f"{v.name} {v.version}".strip() for v in values if v is not None})
