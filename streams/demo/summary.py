"""A run in numbers, from its log: what the demo writes as summary.json."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from streams.client import Ledger, Story


def summarise(
    ledger: Ledger, sent: Iterable[str], *, broker: str, mode: str, wall_s: float
) -> dict[str, Any]:
    """Return the summary of a run.

    Thirds are by the order of decisions, over queries with a scalar reward. `rewards` counts queries whose
    reward is closed.

    Args:
        ledger: The run's log.
        sent: The query_ids that were sent.
        broker: Name and version.
        mode: The objective.
        wall_s: From the first query sent to the last reward.
    """
    ids = list(sent)
    stories = [ledger.stories[q] for q in ids if q in ledger.stories]
    rewarded = sorted(
        (s for s in stories if s.decision and s.closing and s.closing.reward is not None),
        key=lambda s: s.seq,
    )
    third = max(1, len(rewarded) // 3)
    first, last = rewarded[:third], rewarded[-third:]
    graded = [s for s in stories if s.closing and s.closing.correct is not None]
    answers = [s.answer for s in stories if s.answer]
    return {
        "broker": broker,
        "engine": _served(a.engine for a in answers),
        "verifier": _served(a.verifier for a in answers),
        "mode": mode,
        "warm_up": sum(_reason(s) == "warm-up" for s in stories),
        "queries": len(ids),
        "answers": len(answers),
        "unanswered": len(ids) - len(answers),
        "statuses": _counted(a.status for a in answers),
        "rewards": sum(s.closing is not None for s in stories),
        "dead_letters": len(ledger.dead_letters),
        "duplicates": sum(s.repeats for s in stories),
        "accuracy": _mean(s.closing.correct for s in graded if s.closing),
        "accuracy_last_third": _mean(
            s.closing.correct for s in last if s.closing and s.closing.correct is not None
        ),
        "mean_reward": _mean(map(_reward, rewarded)),
        "mean_reward_warmup": _mean(_reward(s) for s in rewarded if _reason(s) == "warm-up"),
        "mean_reward_policy": _mean(_reward(s) for s in rewarded if _reason(s) == "policy"),
        "mean_reward_first_third": _mean(map(_reward, first)),
        "mean_reward_last_third": _mean(map(_reward, last)),
        "mean_cost_eflops_first_third": _mean(map(_cost, first)),
        "mean_cost_eflops_last_third": _mean(map(_cost, last)),
        "distinct_actions": len({s.decision.action.id for s in stories if s.decision}),
        "tokens": sum(a.generated_tokens for a in answers),
        "drafts": sum(len(a.trace) for a in answers),
        "wall_s": round(wall_s, 2),
        "bytes_per_query": round(ledger.bytes / max(1, len(ids))),
        "latency_ms": latencies(stories),
    }


def latencies(stories: Sequence[Story]) -> dict[str, dict[str, float]]:
    """Return p50 and p95 of every stage, in ms between append times on the broker."""
    samples: dict[str, list[float]] = {}

    def gap(name: str, story: Story, begin: str, end: str) -> None:
        if begin in story.at_ms and end in story.at_ms:
            samples.setdefault(name, []).append(story.at_ms[end] - story.at_ms[begin])

    for story in stories:
        gap("query_to_context", story, "query", "context")
        gap("context_to_decision", story, "context", "decision")
        gap("query_to_decision", story, "query", "decision")
        gap("decision_to_first_step", story, "decision", "step/1")
        for step in range(1, 1 + len({s.step for s in story.steps})):
            gap("step_to_verification", story, f"step/{step}", f"verification/{step}")
            gap("verification_to_next_step", story, f"verification/{step}", f"step/{step + 1}")
        gap("answer_to_reward", story, "answer", "reward/final")
        gap("query_to_answer", story, "query", "answer")
    return {
        name: {"p50": round(float(np.percentile(ms, 50)), 1), "p95": round(float(np.percentile(ms, 95)), 1)}
        for name, ms in samples.items()
    }


def _reward(story: Story) -> float:
    assert story.closing is not None
    assert story.closing.reward is not None
    return story.closing.reward


def _cost(story: Story) -> float:
    return story.eflops or 0.0


def _reason(story: Story) -> str:
    return story.decision.reason if story.decision else ""


def _mean(values: Iterable[Any]) -> float | None:
    known = [float(v) for v in values]
    return fmean(known) if known else None


def _counted(values: Iterable[str]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


def _served(values: Iterable[Any]) -> list[str]:
    return sorted({f"{v.name} {v.version}".strip() for v in values if v is not None})
