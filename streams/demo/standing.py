"""How the policy and its baselines stand while a run goes on."""

from collections.abc import Mapping, Sequence

import msgspec

from schemas.reward import Reward
from streams.demo.paired import Outcome


class Standing(msgspec.Struct, frozen=True):
    """What is known of one party so far.

    Attributes:
        name: The party: the policy, or a baseline in words.
        asked: Number of questions that it gets.
        closed: Number of these whose Reward has closed.
        right: Share of these that were right; None before the first.
        cost: What they cost, times what the main baseline's answers to the same questions did; None before there are
            both, and without baselines.
    """

    name: str
    asked: int
    closed: int
    right: float | None
    cost: float | None


def standings(
    parties: Mapping[str, Sequence[str]], rewards: Mapping[str, Reward | Outcome]
) -> list[Standing]:
    """Return how each party stands.

    Args:
        parties: The ids of each party's queries, all in the same order of questions: the policy, then its baselines,
            the main one first.
        rewards: The closing Reward of each query that has one, and the recorded outcomes.
    """
    base = next(iter([*parties.values()][1:]), [])
    found = []
    for name, ids in parties.items():
        closed = [rewards[query_id] for query_id in ids if query_id in rewards]
        both = [
            (rewards[own].cost or 0.0, rewards[other].cost or 0.0)
            for own, other in zip(ids, base, strict=False)
            if own in rewards and other in rewards
        ]
        paid, base_paid = (sum(costs) for costs in zip(*both, strict=True)) if both else (0.0, 0.0)
        found.append(
            Standing(
                name,
                asked=len(ids),
                closed=len(closed),
                right=sum(each.correct or 0.0 for each in closed) / len(closed) if closed else None,
                cost=paid / base_paid if base_paid else None,
            )
        )
    return found
