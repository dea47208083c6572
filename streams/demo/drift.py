"""The demo's second part: the policy's favourite model costs three times as much, and the policy is watched following.

`adapted_after` was defined before it was first measured: the number of queries, in the order of decisions after the
change, until the favourite's share of the last 20 choices is at most half its share of the first part. The 20 reach
back over the change, so a policy that never chooses it again needs about ten. It is null where that does not happen,
and that is no verdict: a model may be worth three times its price.

A choice is the model of a query that the policy decided itself. Twins, the warm-up, the control group and draws of the
exploration floor are none.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from schemas.query import Query
from streams.client import Ledger, Story
from streams.demo.sampling import thirds

FACTOR: Final = 3.0
"""By how much the favourite's price rises."""

WINDOW: Final = 20
"""Choices that a share is taken of."""

HALF: Final = 0.5


class Later(NamedTuple):
    """The second part: the model whose price has risen, and what is asked then."""

    model: str
    queries: list[Query]


def further(queries: Sequence[Query], count: int, seed: int) -> list[Query]:
    """Return questions of the first part again, under ids of their own, every level with the share it has there."""
    return [
        msgspec.structs.replace(
            query, query_id=f"{query.query_id}-drift", metadata={**query.metadata, "drift_of": query.query_id}
        )
        for query in thirds(queries, count, seed + 1)
    ]


def is_further(story: Story) -> bool:
    """Say whether a query belongs to the second part."""
    return story.decision is not None and "drift_of" in story.decision.query.metadata


def chosen(ledger: Ledger, ids: Iterable[str]) -> list[Story]:
    """Return the queries that the policy itself decided, in the order of decisions."""
    wanted = set(ids)
    stories = [s for s in ledger.stories.values() if s.query_id in wanted and s.decision]
    own = [s for s in stories if s.decision and s.decision.reason == "policy"]
    return sorted(own, key=lambda s: s.seq)


def favourite(stories: Sequence[Story]) -> str | None:
    """Return the model that was chosen most, of equals the one chosen first; None where nothing was chosen."""
    count = Counter(map(_model, stories))
    return count.most_common(1)[0][0] if count else None


def adapted_after(before: Sequence[str], after: Sequence[str], model: str) -> int | None:
    """Return how many queries the policy took to choose a model half as often; None where it never did.

    Args:
        before: The models chosen before its price rose, in order.
        after: Those chosen afterwards.
        model: The favourite.

    >>> adapted_after(["a"] * 30, ["a"] * 4 + ["b"] * 30, "a")
    14
    >>> adapted_after(["a", "b"] * 15, ["a", "b"] * 15, "a") is None
    True
    """
    share = before.count(model) / len(before)
    whole = [*before, *after]
    for n in range(1, len(after) + 1):
        last = whole[: len(before) + n][-WINDOW:]
        if last.count(model) / len(last) <= HALF * share:
            return n
    return None


def followed(ledger: Ledger, before: Iterable[str], after: Iterable[str], model: str) -> dict[str, Any]:
    """Return `adapted_after` and, as `drift`, what the policy made of the new price.

    `cost_ratio` is the mean cost afterwards over that of the first part; `cost_ratio_unchanged` is what it would have
    been with the choices of the first part.

    Args:
        ledger: The run's log.
        before: The ids of the first part's queries, without twins.
        after: Those of the second part.
        model: The favourite.
    """
    first, second = chosen(ledger, before), chosen(ledger, after)
    models = [_model(s) for s in first], [_model(s) for s in second]
    paid = sum(map(_cost, first)) / len(first)
    unchanged = sum(_cost(s) * (FACTOR if _model(s) == model else 1.0) for s in first) / len(first)
    now = sum(map(_cost, second)) / len(second) if second else 0.0
    last = models[1][-WINDOW:]
    return {
        "adapted_after": adapted_after(*models, model),
        "drift": {
            "model": model,
            "times": FACTOR,
            "queries": len(second),
            "share_before": models[0].count(model) / len(first),
            "share_after": last.count(model) / len(last) if last else None,
            "accuracy_before": _accuracy(first),
            "accuracy_after": _accuracy(second),
            "cost_ratio": now / paid if second and paid else None,
            "cost_ratio_unchanged": unchanged / paid if paid else None,
        },
    }


def sentence(report: dict[str, Any]) -> str:
    """Return what the policy made of the new price in a few sentences, whatever that was."""
    found, took = report["drift"], report["adapted_after"]
    if not found["queries"] or found["cost_ratio"] is None:
        return (
            f"Then {found['model']} cost {found['times']:g} times as much, and no further query was answered."
        )
    half = (
        f"After {took} queries it was chosen at most half as often"
        if took is not None
        else f"In {found['queries']} further queries it was never chosen half as often"
    )
    right = [found[f"accuracy_{when}"] for when in ("before", "after")]
    known = f" Accuracy {right[0]:.0%} before, {right[1]:.0%} after." if None not in right else ""
    share = f"{found['share_before']:.0%} of the questions"
    return (
        f"Then {found['model']}, chosen for {share}, cost {found['times']:g} times as much. {half}; of the last "
        f"{min(WINDOW, found['queries'])} choices it has {found['share_after']:.0%}. A query costs "
        f"{found['cost_ratio']:.2f} times as much as before; with the choices of before it would be "
        f"{found['cost_ratio_unchanged']:.2f} times.{known}"
    )


def _model(story: Story) -> str:
    assert story.decision is not None
    return story.decision.action.model


def _cost(story: Story) -> float:
    return story.eflops or 0.0


def _accuracy(stories: Sequence[Story]) -> float | None:
    right = [s.closing.correct or 0.0 for s in stories if s.closing is not None]
    return sum(right) / len(right) if right else None
