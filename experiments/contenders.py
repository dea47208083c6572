"""The policies being compared: the paper's in faithful form, its ablations, our own, and simple baselines."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.model_selection import KFold

from agents.bandit import variances
from agents.bandit.contextual import Contextual
from agents.bandit.features import COUNTS, FeatureMap, FeatureSettings
from agents.bandit.linucb import LinUCB, LinUCBSettings
from agents.bandit.policy import UNPRICED, ActionVector, Policy
from agents.bandit.prior import teach
from agents.bandit.registry import build_policy
from experiments.outcomes import Array, BanditWorld
from experiments.prior import table_history
from experiments.ridge import INNER, by_leaving_one_out, strength_left_out
from experiments.yardstick import split
from schemas.prices import Rate

Make = Callable[[BanditWorld, int], Policy]
"""Makes a new policy from a world and a seed."""

DEFAULT = "contextual"
"""The service's default policy, which reads surface counts (`BanditWorld.with_counts`)."""


def _made(name: str, **options: object) -> Make:
    """Return a function that builds one of the service's policies with these options for a given world."""

    def make(world: BanditWorld, seed: int) -> Policy:
        seeded = {"network_seed": seed} if name in ("mlp", "neural-ucb") else {}
        return build_policy(
            name,
            {**options, **seeded},
            # A policy that reads surface counts adds the number of counts to `query_dim` itself.
            query_dim=world.queries.shape[1] - (len(COUNTS) if name == DEFAULT else 0),
            action_dim=len(world.vectors[0].embedding),
        )

    return make


class Coordinates(LinUCB):
    """LinUCB with the description's embedding and explicit coordinates as action features.

    The coordinates describe the model's size rank and the logarithm of the search width. A small encoder hardly
    distinguishes the descriptions of neighbouring actions, but cost and accuracy vary smoothly with the coordinates.
    """

    def __init__(self, world: BanditWorld, alpha: float) -> None:
        self._plain = dict(
            zip((a.arm_id for a in world.outcomes.arms), plain_coordinates(world), strict=True)
        )
        sizes = FeatureSettings(
            query_dim=world.queries.shape[1], action_dim=len(world.vectors[0].embedding) + COORDINATES
        )
        super().__init__(FeatureMap(sizes), LinUCBSettings(alpha=alpha), name="coordinates")

    def offer(
        self,
        actions: Sequence[ActionVector],
        price_factors: Mapping[str, Rate] = UNPRICED,
        newcomers: Iterable[str] = (),
    ) -> None:
        """Make these actions available, with their coordinates appended to their embeddings."""
        longer = [np.concatenate([a.embedding, SHARE * self._plain[a.action_id]]) for a in actions]
        renewed = [replace(a, embedding=e) for a, e in zip(actions, longer, strict=True)]
        super().offer(renewed, price_factors, newcomers)


COORDINATES, SHARE = 7, 0.5  # number of coordinates, and their weight relative to a unit embedding


def plain_coordinates(world: BanditWorld) -> Array:
    """Return (1, size, size², width, width², drafts, size·width) for every arm, each in [0, 1].

    Size is the model's scaled rank in the arms' order, width is log₂(QP·CP)/6, and drafts is log₂(CP)/6. If no arm
    searches, all sizes are 0.
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
NETWORKS = ("mlp", "neural_ucb", "neural_ucb_per_width")  # 1,000 iterations per round take minutes per run

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
    """Return a prior for the default policy, made from every arm's outcomes on history.

    Args:
        world: The world, with surface counts.
        history: Indices of the history questions.
    """
    policy = SERVICE["default"](world, 0)
    assert isinstance(policy, Contextual)
    policy.offer(world.vectors)
    return teach(policy, table_history(world.outcomes, world.queries, history, world.categories))


ALL: Mapping[str, Make] = {**PAPER, **ABLATIONS, **OWN, **SERVICE}


# The generic prior: variances for the blocks of the policy's coefficients, estimated from the tables' histories.
#
# The shipped values (`agents.bandit.variances.USUAL`) were rounded by hand from such estimates. Replacing them with
# estimates from all tables but one simulates an unseen fleet on the remaining table (leave one out).

FEW = 200  # questions in the first estimate: too few for supervised directions; the second uses all questions

Usual = Mapping[str, tuple[float, float]]
"""The variances of accuracy and of cost for each kind of block, as in `variances.USUAL`."""


def estimated(world: BanditWorld) -> Usual:
    """Return the variances on a table's history: geometric means of an estimate from 200 questions and one from all.

    Args:
        world: The world, without surface counts; its live questions are not used.
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
    """Return the geometric means over tables; blocks that are in no table keep the shipped values."""
    found = {name: [table[name] for table in tables if name in table] for name in variances.USUAL}
    return {
        name: tuple(np.exp(np.mean(np.log(rows), axis=0)).tolist()) if rows else variances.USUAL[name]
        for name, rows in found.items()
    }


@contextlib.contextmanager
def in_place(usual: Usual | None) -> Iterator[None]:
    """During the block, replace the usual variances of this process's policies; None keeps the shipped ones."""
    shipped = variances.USUAL
    variances.USUAL = usual or shipped  # type: ignore[misc]  # final except in the lab, which evaluates it
    try:
        yield
    finally:
        variances.USUAL = shipped  # type: ignore[misc]


# The simplest baselines: one ridge regression per arm, fitted on history; the online one also learns from its choices.
#
# They read the encoder's vector and the surface counts, and choose the arm with the highest predicted accuracy minus
# price times predicted cost. They share no code with the product's learners that they are compared with.

REFIT = 100  # outcomes between refits


@dataclass(frozen=True)
class Fitted:
    """One ridge regression per arm, fitted on history.

    Attributes:
        features: Features of all questions, standardised on history, shape (Q, d).
        correct: Correctness, averaged over samples, shape (Q, A).
        log_cost: Logarithms of the mean cost, shape (Q, A).
        history: Indices of the questions they are fitted on.
    """

    features: Array
    correct: Array
    log_cost: Array
    history: tuple[int, ...]

    @classmethod
    def of(cls, world: BanditWorld, history: Sequence[int]) -> "Fitted":
        """Return the regressions for a world with surface counts; only history determines how features are scaled.

        Categories are also features.
        """
        vector, surface = np.split(world.queries, [world.queries.shape[1] - len(COUNTS)], axis=1)
        seen = surface[list(history)]
        spread = seen.std(axis=0)
        # Scale the counts to a total variance of 1, like the embedding of length 1.
        scaled = (surface - seen.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / len(COUNTS) ** 0.5
        o = world.outcomes
        # One indicator column per category, which is 1 for its questions.
        known = sorted({each for own in world.categories for each in own})
        shown = np.array([[each in own for each in known] for own in world.categories], dtype=float)
        parts = [vector, scaled, *([shown] if known else [])]
        return cls(
            np.concatenate(parts, axis=1),
            o.correct.mean(axis=0),
            np.log(o.cost.mean(axis=0)),
            tuple(history),
        )

    def predicted(self, questions: Sequence[int]) -> tuple[Array, Array]:
        """Return every arm's predicted accuracy and cost on other questions, shape (n, A) each."""
        seen, fitted, new = self.features, list(self.history), list(questions)
        accuracy = by_leaving_one_out(seen[fitted], self.correct[fitted], seen[new])
        return accuracy, np.exp(by_leaving_one_out(seen[fitted], self.log_cost[fitted], seen[new]))

    def left_out(self) -> tuple[Array, Array]:
        """Return every arm's accuracy and cost on the history questions, each predicted from the other folds."""
        shape = (len(self.history), self.correct.shape[1])
        accuracy, cost = np.empty(shape), np.empty(shape)
        own = np.array(self.history)
        for fitted, judged in KFold(INNER, shuffle=True, random_state=1).split(own):
            part = Fitted(self.features, self.correct, self.log_cost, tuple(own[fitted].tolist()))
            accuracy[judged], cost[judged] = part.predicted(own[judged].tolist())
        return accuracy, cost


def best_arms(accuracy: Array, cost: Array, price: float) -> list[int]:
    """Return the best arm for each question at a price of linear cost."""
    chosen: list[int] = (accuracy - price * cost).argmax(axis=1).tolist()
    return chosen


def solved_prices(fitted: Fitted, best: int, shares: Sequence[float]) -> list[float]:
    """For each share of an arm's accuracy, return the highest price at which cross-fitted choices still reach it.

    Args:
        fitted: The regressions, fitted on history.
        best: The arm whose accuracy on history is the reference.
        shares: The shares of that accuracy to reach on history.

    Returns:
        Prices per unit of cost; 0 for a share that no price reaches.
    """
    own = list(fitted.history)
    accuracy, cost = fitted.left_out()
    right, all_of_it = fitted.correct[own], float(fitted.correct[own, best].mean())
    rows = np.arange(len(own))
    unit = float(np.exp(fitted.log_cost[own, best]).mean())
    ladder = np.logspace(-5, 4, 181) / unit
    reached = [float(right[rows, best_arms(accuracy, cost, price)].mean()) / all_of_it for price in ladder]
    return [max((p for p, r in zip(ladder, reached, strict=True) if r >= q), default=0.0) for q in shares]


class OnlineRidge:
    """The regressions of `Fitted`, refitted after every hundred choices on history and the outcomes of those choices.

    Args:
        fitted: The regressions, fitted on history.
    """

    def __init__(self, fitted: Fitted) -> None:
        own = list(fitted.history)
        seen = fitted.features[own]
        self._rows = np.concatenate([np.ones((len(fitted.features), 1)), fitted.features], axis=1)
        self._strengths = (
            strength_left_out(seen, fitted.correct[own]),
            strength_left_out(seen, fitted.log_cost[own]),
        )
        x = self._rows[own]
        arms = fitted.correct.shape[1]
        self._gram = np.repeat((x.T @ x)[None], arms, axis=0)
        self._right = np.stack([x.T @ fitted.correct[own], x.T @ fitted.log_cost[own]])  # (2, d + 1, A)
        # The constant's penalty is only large enough to keep the system solvable.
        self._free = np.concatenate([[1e-9], np.ones(seen.shape[1])])
        self._weights = np.empty_like(self._right)
        for term in range(len(self._weights)):
            # On history, every arm has an outcome for every question, so all arms share one Gram matrix.
            self._weights[term] = self._solved(self._gram[0], self._right[term], term)

    def _solved(self, gram: Array, right: Array, term: int) -> Array:
        factor = cho_factor(gram + np.diag(self._strengths[term] * self._free), check_finite=False)
        return np.asarray(cho_solve(factor, right, check_finite=False))

    def play(
        self, order: Sequence[int], price: float, outcome: Callable[[int, int], tuple[float, float]]
    ) -> list[int]:
        """Return the arm chosen in every round while learning; each call starts from the fit on history.

        Args:
            order: The question of each round.
            price: The price of linear cost.
            outcome: Returns the realised correctness and log cost for a question and an arm.
        """
        gram, right, weights = self._gram.copy(), self._right.copy(), self._weights.copy()
        taken: list[int] = []
        for start in range(0, len(order), REFIT):
            block = np.array(order[start : start + REFIT])
            x = self._rows[block]
            arms = np.array(best_arms(x @ weights[0], np.exp(x @ weights[1]), price))
            taken += arms.tolist()
            for arm in np.unique(arms).tolist():
                own = arms == arm
                came_out = np.array([outcome(question, arm) for question in block[own].tolist()])
                gram[arm] += x[own].T @ x[own]
                right[:, :, arm] += came_out.T @ x[own]
                for term in range(len(weights)):
                    weights[term, :, arm] = self._solved(gram[arm], right[term, :, arm], term)
        return taken
