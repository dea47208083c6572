"""What the blocks of the policy's coefficients are worth on one table: the generic prior, estimated from histories.

The shipped values (`agents.bandit.variances.USUAL`) were rounded by hand from such estimates. With those of all tables
but one in their place, that one is what a stranger's fleet is: nothing of it went into the prior (leave one out).
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from agents.bandit import variances
from agents.bandit.contextual import Contextual
from experiments.contenders import SERVICE
from experiments.outcomes import BanditWorld
from experiments.prior import table_history
from experiments.yardstick import split

FEW = 200  # questions that know no supervised directions yet; all of history does where it has more

Usual = Mapping[str, tuple[float, float]]
"""Of each kind of block the variances of accuracy and of cost, as in `variances.USUAL`."""


def estimated(world: BanditWorld) -> Usual:
    """Return the variances that the history of a table has, from 200 of its questions and from all: geometric means.

    Args:
        world: Without surface counts; of its live questions nothing is used.
    """
    world = world.with_counts()
    history, _ = split([each.question_id for each in world.outcomes.questions])
    few = np.random.default_rng(0).permutation(history)[:FEW].tolist()
    logs: dict[str, list[np.ndarray]] = {}
    for questions in (history, few):
        policy = SERVICE["default"](world, 0)
        assert isinstance(policy, Contextual)
        policy.offer(world.vectors)
        policy.relearn(table_history(world.outcomes, world.queries, questions))
        right, paid = policy.estimates.right.variances, policy.estimates.paid.variances
        for block, variance in right.items():
            logs.setdefault(variances.usual_block(block), []).append(np.log([variance, paid[block]]))
    return {name: tuple(np.exp(np.mean(found, axis=0)).tolist()) for name, found in logs.items()}


def combined(tables: Sequence[Usual]) -> Usual:
    """Return the geometric means over tables; a block that none of them has stays as shipped."""
    found = {name: [table[name] for table in tables if name in table] for name in variances.USUAL}
    return {
        name: tuple(np.exp(np.mean(np.log(rows), axis=0)).tolist()) if rows else variances.USUAL[name]
        for name, rows in found.items()
    }


@contextlib.contextmanager
def in_place(usual: Usual | None) -> Iterator[None]:
    """Let policies of this process begin from other usual variances; None leaves the shipped ones."""
    shipped = variances.USUAL
    variances.USUAL = usual or shipped  # type: ignore[misc]  # final for everyone but the lab, which judges it
    try:
        yield
    finally:
        variances.USUAL = shipped  # type: ignore[misc]
