"""The simplest competitors: a ridge regression an arm, fitted on history; one of two goes on from its own choices.

They read the encoder's vector and the surface counts, and take the arm of the best predicted accuracy less the price
times the predicted cost. Nothing of them is the product's, whose learners they are held against.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.model_selection import KFold

from agents.bandit.features import COUNTS
from experiments.outcomes import Array, BanditWorld
from experiments.ridge import INNER, by_leaving_one_out, strength_left_out

REFIT = 100  # outcomes of its own choices


@dataclass(frozen=True)
class Fitted:
    """What the questions of history teach of the arms.

    Attributes:
        features: Of all questions of the world, those of history standardised: shape (Q, d).
        correct: Means over samples, shape (Q, A), and
        log_cost: logarithms of the mean cost.
        history: The questions fitted on.
    """

    features: Array
    correct: Array
    log_cost: Array
    history: tuple[int, ...]

    @classmethod
    def of(cls, world: BanditWorld, history: Sequence[int]) -> "Fitted":
        """Return the features as history alone scales them; the world is one with surface counts."""
        vector, surface = np.split(world.queries, [world.queries.shape[1] - len(COUNTS)], axis=1)
        seen = surface[list(history)]
        spread = seen.std(axis=0)
        # Together the counts vary as much as one of them: the vector has length 1.
        scaled = (surface - seen.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / len(COUNTS) ** 0.5
        o = world.outcomes
        return cls(
            np.concatenate([vector, scaled], axis=1),
            o.correct.mean(axis=0),
            np.log(o.cost.mean(axis=0)),
            tuple(history),
        )

    def predicted(self, questions: Sequence[int]) -> tuple[Array, Array]:
        """Return the accuracy and the cost of every arm on other questions, shape (n, A) each."""
        seen, fitted, new = self.features, list(self.history), list(questions)
        accuracy = by_leaving_one_out(seen[fitted], self.correct[fitted], seen[new])
        return accuracy, np.exp(by_leaving_one_out(seen[fitted], self.log_cost[fitted], seen[new]))

    def left_out(self) -> tuple[Array, Array]:
        """Return the same of history's own questions, each predicted from other folds."""
        shape = (len(self.history), self.correct.shape[1])
        accuracy, cost = np.empty(shape), np.empty(shape)
        own = np.array(self.history)
        for fitted, judged in KFold(INNER, shuffle=True, random_state=1).split(own):
            part = Fitted(self.features, self.correct, self.log_cost, tuple(own[fitted].tolist()))
            accuracy[judged], cost[judged] = part.predicted(own[judged].tolist())
        return accuracy, cost


def best_arms(accuracy: Array, cost: Array, price: float) -> list[int]:
    """Return the arm of each question at a price of linear cost."""
    chosen: list[int] = (accuracy - price * cost).argmax(axis=1).tolist()
    return chosen


def solved_prices(fitted: Fitted, best: int, shares: Sequence[float]) -> list[float]:
    """Return, for each share, the highest price at which history's questions still reach it, each left out once.

    Args:
        fitted: On history.
        best: The arm whose accuracy on history is all (a share of 1).
        shares: Of that accuracy.

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
    """The same regressions, refitted on history and the outcomes of their own choices after every hundred of these.

    Args:
        fitted: On history.
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
        # The constant is not held towards zero; a trace of strength keeps the system solvable.
        self._free = np.concatenate([[1e-9], np.ones(seen.shape[1])])
        self._weights = np.empty_like(self._right)
        for term in range(len(self._weights)):
            # On history every arm has the same questions.
            self._weights[term] = self._solved(self._gram[0], self._right[term], term)

    def _solved(self, gram: Array, right: Array, term: int) -> Array:
        factor = cho_factor(gram + np.diag(self._strengths[term] * self._free), check_finite=False)
        return np.asarray(cho_solve(factor, right, check_finite=False))

    def play(
        self, order: Sequence[int], price: float, outcome: Callable[[int, int], tuple[float, float]]
    ) -> list[int]:
        """Return the arm taken in every round, learning on the way; each call begins at what history taught.

        Args:
            order: The question of each round.
            price: Of linear cost.
            outcome: From a question and an arm to correctness and log cost, as they come out.
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
