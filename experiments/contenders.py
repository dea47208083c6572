"""Who competes: the paper's policies in their faithful form, its ablations, and our own, from the shipped generic prior or another."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from agents.bandit import variances
from agents.bandit.contextual import Contextual
from agents.bandit.features import COUNTS, FeatureMap, FeatureSettings
from agents.bandit.linucb import LinUCB, LinUCBSettings
from agents.bandit.policy import UNPRICED, ActionVector, Policy
from agents.bandit.prior import teach
from agents.bandit.registry import build_policy
from experiments.outcomes import Array, BanditWorld
from experiments.prior import table_history
from experiments.yardstick import split

Make = Callable[[BanditWorld, int], Policy]
"""From a world and a seed to a policy without experience."""

DEFAULT = "contextual"
"""The service's default, by the name of its factory; it reads surface counts (`BanditWorld.with_counts`)."""


def _made(name: str, **options: object) -> Make:
    """Return the service's own factory for a policy and its options, over a world's vectors."""

    def make(world: BanditWorld, seed: int) -> Policy:
        seeded = {"network_seed": seed} if name in ("mlp", "neural-ucb") else {}
        return build_policy(
            name,
            {**options, **seeded},
            # A policy that reads surface counts adds their number itself.
            query_dim=world.queries.shape[1] - (len(COUNTS) if name == DEFAULT else 0),
            action_dim=len(world.vectors[0].embedding),
        )

    return make


class Coordinates(LinUCB):
    """LinUCB whose action features are the description's embedding and, beside it, plain coordinates.

    How large the model is among its family, and the logarithms of how wide the search is: under a small encoder
    descriptions of neighbours hardly differ, though what they cost and achieve changes smoothly with these.
    """

    def __init__(self, world: BanditWorld, alpha: float) -> None:
        self._plain = dict(
            zip((a.arm_id for a in world.outcomes.arms), plain_coordinates(world), strict=True)
        )
        sizes = FeatureSettings(
            query_dim=world.queries.shape[1], action_dim=len(world.vectors[0].embedding) + COORDINATES
        )
        super().__init__(FeatureMap(sizes), LinUCBSettings(alpha=alpha), name="coordinates")

    def offer(self, actions: Sequence[ActionVector], price_factors: Mapping[str, float] = UNPRICED) -> None:
        """Choose from these actions, their coordinates appended to their embeddings."""
        longer = [np.concatenate([a.embedding, SHARE * self._plain[a.action_id]]) for a in actions]
        super().offer([replace(a, embedding=e) for a, e in zip(actions, longer, strict=True)], price_factors)


COORDINATES, SHARE = 7, 0.5  # their number, and their weight beside an embedding of unit length


def plain_coordinates(world: BanditWorld) -> Array:
    """Return 1, size, size², width, width², drafts a step and size·width of every arm, each in [0, 1].

    Size is the model's place in its family, which the catalogue orders; width is log₂(QP·CP)/6. Where no arm
    searches there is no family, and all sizes are 0.
    """
    arms = world.outcomes.arms
    models = list(dict.fromkeys(arm.model for arm in arms))
    family = any(arm.qp * arm.cp > 1 for arm in arms)
    rows = []
    for arm in arms:
        x = models.index(arm.model) / max(len(models) - 1, 1) if family else 0.0
        c, n = np.log2(arm.cp) / 6, np.log2(arm.qp * arm.cp) / 6
        rows.append([1.0, x, x * x, n, n * n, c, x * n])
    return np.array(rows)


PAPER: Mapping[str, Make] = {
    "random": _made("random"),
    "greedy": _made("greedy", reward="scalar"),
    "mlp": _made("mlp"),
    "knn": _made("knn"),
    "neural_ucb": _made("neural-ucb"),
    "ts": _made("thompson", reward="scalar", propensity_draws=0),
    "uniscale": _made("linucb", reward="scalar"),
}
NETWORKS = ("mlp", "neural_ucb", "neural_ucb_per_width")  # 1,000 iterations a round: minutes a run

ABLATIONS: Mapping[str, Make] = {
    "uniscale_one_hot": _made("linucb", reward="scalar", action_features="one-hot"),
    "uniscale_alpha_0": _made("linucb", reward="scalar", alpha=0.0),
    "uniscale_alpha_10": _made("linucb", reward="scalar", alpha=10.0),
    "neural_ucb_per_width": _made("neural-ucb", per_width=True),
}

OWN: Mapping[str, Make] = {
    "terms": _made("linucb"),
    "decided": _made("linucb", widths="decided"),
    "centred": _made("linucb", action_features="centred"),
    "centred_model": _made("linucb", action_features="centred", interactions="model"),
    "centred_bilinear": _made("linucb", action_features="centred", interactions="bilinear"),
    "coordinates": lambda world, seed: Coordinates(world, 1.0),
    "coordinates_cautious": lambda world, seed: Coordinates(world, 0.5),
    "centred_cautious": _made("linucb", action_features="centred", alpha=0.25),
}

SERVICE: Mapping[str, Make] = {"default": _made(DEFAULT)}


def with_prior(world: BanditWorld, history: Sequence[int]) -> bytes:
    """Return the default's prior from history, every arm's outcomes known.

    Args:
        world: With counts.
        history: Its questions.
    """
    policy = SERVICE["default"](world, 0)
    assert isinstance(policy, Contextual)
    policy.offer(world.vectors)
    return teach(policy, table_history(world.outcomes, world.queries, history))


ALL: Mapping[str, Make] = {**PAPER, **ABLATIONS, **OWN, **SERVICE}


# What the blocks of the policy's coefficients are worth on one table: the generic prior, estimated from histories.
#
# The shipped values (`agents.bandit.variances.USUAL`) were rounded by hand from such estimates. With those of all
# tables but one in their place, that one is what a stranger's fleet is: nothing of it went into the prior (leave one
# out).

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
