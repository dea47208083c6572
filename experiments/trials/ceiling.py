"""The ceiling of context: the best policy that was fitted on every outcome of other questions.

Each kind predicts correctness and linear cost of every arm on a question that it was not fitted on (five folds of the
live questions, history always among the fitted), and takes, at each price λ, the arm of largest accuracy less λ
times cost. No learner that sees only the outcomes of its own choices should be expected to be better.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold

from agents.decider.surface import counts
from experiments.measures.frontier import Points, Yardstick
from experiments.outcomes.world import Array, World
from experiments.ridge import by_folds
from experiments.trials.contenders import plain_coordinates

FOLDS = 5
PLAIN = 8  # principal directions of the question, where arms are pooled
FOR_TREES = 16
PRICES = np.concatenate([[0.0], np.logspace(-4, 4, 81)])
"""Of linear cost: accuracy (1 = all) for the cost of the arm that was best on history."""
TOLD = 10.0  # of indicators, beside vectors of length 1: a hundredth of their penalty
CHEAPER, DEARER = 0.2, 5.0  # how far a question may be thought from an arm's mean cost


@dataclass(frozen=True)
class Ceiling:
    """The best kind, and its points on the live questions."""

    kind: str
    points: Points


def ceiling(
    world: World,
    history: Sequence[int],
    live: Sequence[int],
    yardstick: Yardstick,
    *,
    told: Sequence[str] | None = None,
    trees: bool = False,
) -> Ceiling:
    """Return the kind whose points are cheapest at equal accuracy on the live questions, hindsight included.

    Args:
        world: All questions.
        history: Indices of those always fitted on, and
        live: of those judged.
        yardstick: On the live questions.
        told: What else is known of each question of the world: its level, its family.
        trees: Whether boosted trees compete (minutes).
    """
    found: list[tuple[tuple[float, float], str, Points]] = []
    for kind, predictions in _predictions(world, history, live, told, trees):
        points = _points(world, live, predictions, float(yardstick.arms.cost[yardstick.best].mean()))
        judged = Yardstick(yardstick.arms, yardstick.best, draws=0)
        ratios = judged.ratios(points)[0, :-1]
        worth = float(np.log(ratios).mean()) if len(ratios) else 0.0
        found.append(((worth, -float(points.accuracy.mean(axis=1).max())), kind, points))
    _, kind, points = min(found, key=lambda each: each[0])
    return Ceiling(kind, points)


Predicted = tuple[Array, Array]


def _predictions(
    world: World, history: Sequence[int], live: Sequence[int], told: Sequence[str] | None, trees: bool
) -> Iterator[tuple[str, Predicted]]:
    """Yield each kind's predicted accuracy and cost of the live questions, shape (L, A) each."""
    o = world.outcomes
    right, cost = o.correct.mean(axis=0), o.cost.mean(axis=0)
    surface = _standard(np.array([counts(each.text) for each in o.questions]))
    arms = plain_coordinates(world)
    searched = bool(np.ptp(arms[:, 1:], axis=0).any())
    few = PCA(min(PLAIN, *world.queries.shape), random_state=0).fit_transform(world.queries)
    # Who is told something may leave it: knowing more is never worse.
    knowing = [("", np.zeros((len(right), 0)))]
    if told is not None:
        known = _indicators(told)
        knowing.append((" and told", known))
        yield "told", _crossed(known, None, right, cost, history, live)
    for more, known in knowing:
        kinds: dict[str, tuple[Array, Array | None]] = {
            "vector": (np.concatenate([world.queries, known], axis=1), None),
            "vector and counts": (np.concatenate([world.queries, known, surface], axis=1), None),
        }
        if searched:
            kinds["pooled"] = (np.concatenate([few, surface, known], axis=1), arms)
        for kind, (features, coordinates) in kinds.items():
            yield kind + more, _crossed(features, coordinates, right, cost, history, live)
        if trees:
            features = np.concatenate([world.queries, surface, known], axis=1)
            yield "trees" + more, _trees(features, right, cost, history, live)


def _folds(history: Sequence[int], live: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Yield (fitted, judged): indices of the world, and places among the live ones."""
    own, before = np.array(live), np.array(history, dtype=int)
    for fitted, judged in KFold(FOLDS, shuffle=True, random_state=0).split(own):
        yield np.concatenate([before, own[fitted]]), judged


def _crossed(
    features: Array,
    arms: Array | None,
    right: Array,
    cost: Array,
    history: Sequence[int],
    live: Sequence[int],
) -> Predicted:
    accuracy, paid = np.empty((len(live), right.shape[1])), np.empty((len(live), right.shape[1]))
    own = np.array(live)
    for fitted, judged in _folds(history, live):
        new = features[own[judged]]
        usual = cost[fitted].mean(axis=0)
        accuracy[judged] = by_folds(features[fitted], right[fitted], new, arms)
        relative = by_folds(features[fitted], cost[fitted] / usual, new, arms)
        paid[judged] = usual * np.clip(relative, CHEAPER, DEARER)
    return accuracy, paid


def _trees(
    features: Array, right: Array, cost: Array, history: Sequence[int], live: Sequence[int]
) -> Predicted:
    """Return predictions of boosted trees over question and arm; costs are each arm's mean."""
    own, count = np.array(live), right.shape[1]
    accuracy, paid = np.empty((len(live), count)), np.empty((len(live), count))
    for fitted, judged in _folds(history, live):
        few = PCA(min(FOR_TREES, len(fitted) - 1, features.shape[1]), random_state=0).fit(features[fitted])
        mean = right[fitted].mean(axis=0)
        model = HistGradientBoostingRegressor(
            max_iter=150, max_leaf_nodes=15, learning_rate=0.08, random_state=0
        )
        arms = np.stack([np.arange(count), mean], axis=1)
        model.fit(_joined(few.transform(features[fitted]), arms), right[fitted].ravel())
        predicted = model.predict(_joined(few.transform(features[own[judged]]), arms))
        accuracy[judged] = np.asarray(predicted).reshape(len(judged), -1)
        paid[judged] = cost[fitted].mean(axis=0)
    return accuracy, paid


def _joined(queries: Array, arms: Array) -> Array:
    left = np.repeat(queries, len(arms), axis=0)
    return np.concatenate([left, np.tile(arms, (len(queries), 1))], axis=1)


def _points(world: World, live: Sequence[int], predicted: Predicted, unit: float) -> Points:
    o, own = world.outcomes, list(live)
    right, cost = o.correct[:, own].mean(axis=0), o.cost[:, own].mean(axis=0)
    rows = np.arange(len(own))
    taken = np.unique([(predicted[0] - p * predicted[1] / unit).argmax(axis=1) for p in PRICES], axis=0)
    return Points(
        np.array([right[rows, each] for each in taken]), np.array([cost[rows, each] for each in taken])
    )


def _standard(columns: Array) -> Array:
    """Return columns of mean 0 that together vary as much as one."""
    spread = columns.std(axis=0)
    return np.asarray(
        (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / columns.shape[1] ** 0.5
    )


def _indicators(told: Sequence[str]) -> Array:
    """Return a column a name, so long that ridge hardly shrinks what is known."""
    names = sorted(set(told))
    return np.array([[TOLD * (each == name) for name in names] for each in told])
