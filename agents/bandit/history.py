"""The contextual policy's estimates from a history of outcomes, and its refit schedule."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np

from agents.bandit.contextual_features import ContextualFeatures, QueryTransform, bounded, count_axes
from agents.bandit.errors import InvalidObservation
from agents.bandit.features import COUNTS
from agents.bandit.policy import Matrix, Observation, Refits, Vector

# A history is a table of outcomes, with one configuration's outcome on one question per row.
#
# Either every configuration answered every question, or the rows are logged decisions, each with one configuration and
# its propensity. Each outcome is one observation, but a rare action's may be weighted as several.

MOST_WEIGHT: Final = 10.0
"""Upper bound on 1/propensity, so that a rare action's rows do not dominate."""


@dataclass(frozen=True)
class History:
    """A history: one outcome per row.

    Attributes:
        queries: Each question's embedding and surface counts, shape (Q, d).
        question: Index of the row's question, shape (m,).
        action: Index of the row's action among the policy's, shape (m,).
        correct, score, log_cost: The terms, shape (m,). If costs are in USD, `log_cost` is ln(generated tokens).
        log_prompt: ln(prompt tokens) if costs are in USD, shape (m,); otherwise empty.
        propensity: Probability that the action was drawn, shape (m,); all ones for a full table.
        tenants: The tenant of each row; empty for a table, which belongs to no tenant.
        failed: Whether the model returned no text, making `log_cost` meaningless, shape (m,); always False in a table.
        categories: Each question's categories, as `key=value` strings; empty if no question has any.
    """

    queries: Matrix
    question: np.ndarray
    action: np.ndarray
    correct: Vector
    score: Vector
    log_cost: Vector
    propensity: Vector
    tenants: Sequence[str] = ()
    failed: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, bool))
    log_prompt: Vector = dataclasses.field(default_factory=lambda: np.zeros(0))
    categories: Sequence[tuple[str, ...]] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Reject values that would corrupt A or B; the message names the field."""
        for name in ("correct", "score", "propensity"):
            values = getattr(self, name)
            if not (np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all()):
                raise InvalidObservation("history", name, "outside 0 to 1", "correct the table")
        if not np.isfinite(self.log_cost).all() or not np.isfinite(self.queries).all():
            raise InvalidObservation("history", "log_cost", "not finite", "give what each search cost")
        if not (self.propensity > 0).all():
            raise InvalidObservation("history", "propensity", 0.0, "log with exploration, above 0 everywhere")
        if not len(self.failed):
            object.__setattr__(self, "failed", np.zeros(len(self.question), bool))

    @property
    def full(self) -> bool:
        """Return whether it is a full table: each question has as many rows of each action as any other."""
        pairs, counts = np.unique(np.stack([self.question, self.action]), axis=1, return_counts=True)
        asked, tried = (len(np.unique(each)) for each in pairs)
        return tried > 1 and len(counts) == asked * tried and counts.min() == counts.max()

    @property
    def priced(self) -> History:
        """Return the rows whose cost is meaningful, without tenants; the questions stay the same."""
        return self.of_rows(~self.failed) if self.failed.any() else self

    def of_rows(self, kept: np.ndarray) -> History:
        """Return some of the rows, without tenants; the questions stay the same.

        Args:
            kept: Whether each row is kept, shape (m,).
        """
        names = ("question", "action", "correct", "score", "log_cost", "propensity", "failed")
        rows = {name: getattr(self, name)[kept] for name in names}
        if len(self.log_prompt):
            rows["log_prompt"] = self.log_prompt[kept]
        return History(self.queries, **rows, categories=self.categories)

    def outcomes_by_category(self) -> dict[str, int]:
        """Return the number of rows in each category."""
        if not self.categories:
            return {}
        counts = np.bincount(self.question, minlength=len(self.categories)).tolist()
        found: Counter[str] = Counter()
        for own, count in zip(self.categories, counts, strict=True):
            found.update(dict.fromkeys(own, count))
        return dict(found)

    @property
    def weights(self) -> Vector:
        """Return each row's inverse-propensity weight, 1 on average."""
        inverse = np.minimum(1.0 / self.propensity, MOST_WEIGHT)
        return np.asarray(inverse / inverse.mean())

    @property
    def digest(self) -> str:
        """Return a digest that identifies the history behind an estimate and is the same on every machine.

        It is computed in single precision, because the last bit of a logarithm may differ between machines.
        """
        told = hashlib.blake2b(digest_size=16)
        for places in (self.question, self.action):
            told.update(places.astype("<i8").tobytes())
        for terms in (
            self.correct, self.score, self.log_cost, self.propensity, self.queries, self.log_prompt,
        ):  # fmt: skip
            told.update(terms.astype("<f4").tobytes())
        if any(self.categories):
            told.update(repr([list(each) for each in self.categories]).encode())
        return told.hexdigest()


# Features estimated from a history: each action's anchor, and the query directions.
#
# An action's anchor is its mean cost. With little history, the directions are principal components of a Gaussian kernel
# on the embeddings, which assumes only that similar questions have similar outcomes. Once there are more questions than
# a query has coordinates, a reduced-rank ridge regression does better. From the embedding, counts and kernel, it
# predicts how a question departs from the usual accuracy and cost, separately for each action feature. Kernel
# components fill the remaining directions. The directions used for a question in the history are fitted without it;
# otherwise, memorising the question would look like skill. They are also fitted without the same text in other
# categories, whose outcomes would tell those of this question, so that nothing would be left for categories to explain.

LANDMARKS: Final = 256
"""Maximum number of questions that a query is compared with."""

FEW: Final = 10
"""Minimum number of distinct questions for fitting directions."""

RIDGES: Final = tuple(10.0 ** (k / 2) for k in range(-4, 9))
"""Candidate λ values for the directions. Generalised cross-validation chooses one for accuracy and one for cost."""

DOUBT: Final = (1.0, 10.0)
"""With this many rows, a model's observed mean cost, or an action's relative to its model, weighs as much as the
guess."""


def set_anchors(features: ContextualFeatures, history: History) -> None:
    """Set each action's anchor to its mean cost, shrunk towards its model's, which is in turn shrunk towards a guess.

    Unknown model sizes are inferred from these costs.
    """
    n = len(features.ids)
    guess = np.array([features.guess(action) for action in range(n)])
    features.anchors, features.scale, features.scales = _anchored(
        features, history, history.log_cost, guess, features.anchors
    )
    if features.in_tokens:
        guess = np.array([features.guess_prompt(action) for action in range(n)])
        features.prompts, features.prompt_scale, features.prompt_scales = _anchored(
            features, history, history.log_prompt, guess, features.prompts
        )
    features.measure()


def _anchored(
    features: ContextualFeatures, history: History, log_cost: Vector, guess: Vector, before: Vector
) -> tuple[Vector, float, dict[str, float]]:
    """Return the anchors, the default correction factor for guesses, and the factors for models with outcomes.

    Args:
        features: The actions.
        history: Rows with a known cost.
        log_cost: The rows' log costs, shape (m,).
        guess: The guess for each action, shape (n,).
        before: The previous anchors, shape (n,).
    """
    n, anchors = len(features.ids), before.copy()
    weights = 1.0 / history.propensity
    cost = np.exp(log_cost - np.log(guess[history.action]))  # in units of the guess
    counts = np.bincount(history.action, minlength=n)
    found = np.bincount(history.action, weights * cost, n)
    whole = np.bincount(history.action, weights, n)
    usual = math.exp(float(np.average(np.log(found[counts > 0] / whole[counts > 0]))))
    scales: dict[str, float] = {}
    of_models, of_actions = DOUBT
    models = np.array(features.models)
    for model in dict.fromkeys(features.models):
        own = models == model
        scale = usual
        if seen := int(counts[own].sum()):
            apart = math.log(found[own].sum() / whole[own].sum() / usual)
            scale *= math.exp(seen / (seen + of_models) * apart)
            scales[model] = scale
        for action in np.flatnonzero(own):
            trust = counts[action] / (counts[action] + of_actions)
            apart = math.log(found[action] / whole[action] / scale) if trust else 0.0
            anchors[action] = guess[action] * scale * math.exp(trust * apart)
    return anchors, usual, scales


def fit_directions(features: ContextualFeatures, history: History, targets: Matrix) -> Matrix:
    """Fit the directions; return z of each question in the history, with directions fitted without it.

    With fewer than `FEW` questions, the transform is left unchanged: coordinates that hardly vary among a handful of
    questions would be scaled up without bound, and every later question would be clipped.

    Args:
        features: The features whose transform is replaced.
        history: The history that contains the questions.
        targets: Each row's accuracy, and its log cost in units of the anchors, shape (m, 2).

    Returns:
        Shape (Q, rank).
    """
    queries = history.queries
    if len(queries) < FEW:
        return np.array([features.transform.of(query) for query in queries])
    dim = queries.shape[1]
    embedded = dim - len(COUNTS)
    offset, spread = queries.mean(axis=0), queries.std(axis=0)
    scale = np.maximum(spread, SMALL)
    # All dimensions of the embedding share one scale.
    scale[:embedded] = max(float(np.sqrt(np.mean(spread[:embedded] ** 2))), SMALL)
    surface, most = features.room()
    counts = count_axes(scale[embedded:], dim, surface)
    landmarks, kappa, similar, whiten = _kernel(queries[:, :embedded], scale[0])
    inputs = np.hstack(
        [(queries - offset) / scale, math.sqrt(embedded) * similar]
    )  # the kernel part is as long as the embedding
    learned, held_out = np.zeros((0, inputs.shape[1])), np.zeros((len(queries), 0))
    if len(queries) > dim:
        learned, held_out = _supervised(
            inputs, _departures(features, history, targets), most, _Twins(history)
        )
    principal = np.eye(min(most - len(learned), similar.shape[1]), similar.shape[1])
    axes = np.vstack([counts, learned[:, :dim] / scale, np.zeros((len(principal), dim))])
    weights = np.vstack([math.sqrt(embedded) * learned[:, dim:], principal]) @ whiten
    features.transform = QueryTransform(offset, axes, landmarks, kappa, weights, len(learned))
    counted = (queries - offset) @ counts.T
    return bounded(np.hstack([counted, held_out, similar[:, : len(principal)]]), len(counts))


def _kernel(embedded: Matrix, scale: float) -> tuple[Matrix, float, Matrix, Matrix]:
    """Return the landmarks, κ, the questions' kernel principal components, and their weights, shape (k, m).

    κ is chosen so that similarity falls to 1/e at a question's typical distance from the mean.

    Args:
        embedded: The questions' embeddings, shape (Q, d).
        scale: The embeddings' spread along one coordinate.
    """
    kappa = 1.0 / (scale**2 * embedded.shape[1])
    kept = np.linspace(0, len(embedded) - 1, min(len(embedded), LANDMARKS)).round().astype(int)
    landmarks = embedded[kept].astype(np.float32).astype(np.float64)  # as a snapshot stores them
    apart = np.maximum(
        np.sum(embedded**2, axis=1)[:, None] + np.sum(landmarks**2, axis=1) - 2.0 * embedded @ landmarks.T,
        0.0,
    )
    similarity = np.exp(-kappa * apart)  # (Q, m)
    sizes, vectors = np.linalg.eigh(similarity[kept])
    firm = sizes > SMALL * sizes[-1]
    whiten = (vectors[:, firm] / np.sqrt(sizes[firm])).T[::-1]  # in descending order
    return landmarks, kappa, similarity @ whiten.T, whiten


SMALL: Final = 1e-6
"""Lower bound on spreads used as divisors."""


class _Twins:
    """For each question, itself and its twins: the questions with the same text in other categories.

    Attributes:
        sizes: The number of questions in each set, shape (Q,).
    """

    def __init__(self, history: History) -> None:
        texts = [query.tobytes() for query in history.queries]
        self._of_text = _places(texts)
        self._of_question = _places(list(zip(texts, history.categories or repeat(()), strict=False)))
        self.sizes = self._sums(np.ones((len(texts), 1)))[:, 0]

    def means(self, values: Matrix) -> Matrix:
        """Return each set's mean of the questions' values, shape (Q, ·)."""
        return self._sums(values) / self.sizes[:, None]

    def _sums(self, values: Matrix) -> Matrix:
        text, question = np.zeros_like(values), np.zeros_like(values)
        np.add.at(text, self._of_text, values)
        np.add.at(question, self._of_question, values)
        return np.asarray(values + (text[self._of_text] - question[self._of_question]))


def _places(keys: Iterable[Hashable]) -> np.ndarray:
    """Return the place of each key among the different ones."""
    places: dict[Hashable, int] = {}
    return np.array([places.setdefault(key, len(places)) for key in keys], np.intp)


def _supervised(inputs: Matrix, wanted: Sequence[Matrix], most: int, twins: _Twins) -> tuple[Matrix, Matrix]:
    """Return the leading directions of the fitted values, shape (k, d), and each question's held-out coordinates.

    The coordinate vectors have unit RMS length.

    Args:
        inputs: Standardised queries, shape (Q, d).
        wanted: The values to predict for each question: matrices of shape (Q, ·), each fitted with its own λ.
        most: Maximum number of directions.
        twins: The questions that are held out together.
    """
    # The principal axes come from the inputs' Gram matrix, since an SVD of the inputs takes three times as long.
    squares, axes = np.linalg.eigh(inputs.T @ inputs)
    squares, along = np.maximum(squares, 0.0), inputs @ axes
    parts = along**2
    fitted, held_out, coefficients = [], [], []
    for observed in wanted:
        moments = along.T @ observed
        ridge = _chosen_ridge(squares, moments, observed)
        weights = moments / (squares + ridge)[:, None]
        fit = along @ weights
        own = parts @ (1.0 / (squares + ridge))  # leverage of each question
        fitted.append(fit)
        # Without k questions of the same inputs, whose mean is ȳ: ȳ - (ȳ - f) / (1 - k·h).
        mean = twins.means(observed)
        held_out.append(mean - (mean - fit) / (1.0 - twins.sizes * own)[:, None])
        coefficients.append(axes @ weights)
    _, lengths, leading = np.linalg.svd(np.concatenate(fitted, axis=1), full_matrices=False)
    rank = min(max(most, 0), int(np.sum(lengths > SMALL * max(float(lengths[0]), SMALL))))
    chosen = leading[:rank].T
    coordinates = np.concatenate(held_out, axis=1) @ chosen
    length = max(float(np.sqrt(np.mean(np.sum(coordinates**2, axis=1)))) if rank else 0.0, SMALL)
    return (np.concatenate(coefficients, axis=1) @ chosen).T / length, coordinates / length


def _departures(features: ContextualFeatures, history: History, targets: Matrix) -> list[Matrix]:
    """Return how each question's accuracies and costs depart from the average, along every action feature.

    There is one matrix of shape (Q, ·) per term and kind of feature, in units of the term's spread. A model that did
    not answer a question contributes nothing to that question's row.
    """
    n, questions = len(features.ids), len(history.queries)
    sides = features.sides[history.action]  # (m, J)
    # An action without any rows must not affect the others.
    seen = np.flatnonzero(sides.any(axis=0))
    sides, kinds = sides[:, seen], [features.names[j].split(" ")[0] for j in seen]
    lengths = np.zeros((questions, len(seen)))
    np.add.at(lengths, history.question, sides**2 * history.weights[:, None])
    found = []
    for observed in targets.T:
        weights = 1.0 / history.propensity
        whole = np.maximum(np.bincount(history.action, weights, n), 1e-300)
        usual = np.bincount(history.action, weights * observed, n) / whole
        rest = (observed - usual[history.action]) * history.weights
        along = np.zeros_like(lengths)
        np.add.at(along, history.question, rest[:, None] * sides)
        along /= np.where(lengths > 0.0, lengths, 1.0)
        along -= along.mean(axis=0)
        if (spread := float(along.std())) > SMALL:
            of_kind = {kind: [k == kind for k in kinds] for kind in dict.fromkeys(kinds)}
            found += [along[:, own] / spread for own in of_kind.values()]
    return found or [np.zeros((questions, 1))]


def _chosen_ridge(squares: Vector, moments: Matrix, wanted: Matrix) -> float:
    """Return the λ with the smallest generalised cross-validation error.

    Args:
        squares: Squared singular values of the inputs.
        moments: Products of the inputs' principal components with the targets.
        wanted: The targets, shape (Q, ·).
    """
    n, whole, lengths = len(wanted), float(np.sum(wanted**2)), np.sum(moments**2, axis=1)
    errors = []
    for ridge in RIDGES:
        shrunk = 1.0 / (squares + ridge)
        # The explained share of each component is 2·kept - kept², where kept = s²/(s² + λ).
        error = whole - float(lengths @ (shrunk * (1.0 + ridge * shrunk)))
        errors.append(error / max(n - 1 - float(squares @ shrunk), SMALL) ** 2)
    return float(RIDGES[int(np.argmin(errors))])


# The refit schedule: when a policy without a prior estimates directions, anchors and variances from its own outcomes.
#
# The policy keeps these outcomes. Each time their number has doubled, it is refitted to all of them as a `History`.

REFITS: Final = (10, 20, 40, 80, 160, 320, 640, 1280, 2560)
"""A policy without a prior is refitted at these numbers of outcomes. After the last refit, no outcomes are kept."""


class RefitSchedule(Refits):
    """The remaining refits, and the outcomes kept for them.

    Args:
        at: The numbers of outcomes that trigger a refit, ascending; empty for a policy with a prior, which keeps no
            outcomes.

    Attributes:
        learned: The number of outcomes the policy has learned.
    """

    def __init__(self, at: Sequence[int] = REFITS) -> None:
        super().__init__()
        self.at = tuple(at)
        self.learned = 0
        self._knows_categories = False
        # Query, action, Correct, Score, ln(eFLOPs) or ln(tokens) (NaN if the model failed), tenant, categories.
        self._kept: dict[str, tuple[Any, ...]] = {}

    def due(self, outcomes: int) -> bool:
        """Return whether a refit, or an estimate of category variances, is due within this many more outcomes."""
        if self.at:
            return len(self._kept) + outcomes >= self.at[0]
        return self.of_categories(outcomes)

    def of_categories(self, outcomes: int) -> bool:
        """Return whether a separate estimate of the categories' variances is due within this many more outcomes.

        Only a prior without categories requires this. Otherwise each refit estimates them along with all others.
        """
        if self.at or self._knows_categories:
            return False
        return any(self.learned < at <= self.learned + outcomes for at in REFITS)

    def by_prior(self, *, with_categories: bool) -> None:
        """Cancel all refits because a history has been learned, with or without categories."""
        self.at, self._knows_categories = (), with_categories

    def take(self, o: Observation, query: Vector, at: int, took: Sequence[float]) -> History | None:
        """Keep an outcome; if a refit is due, return all outcomes kept so far.

        A refit is skipped if some outcomes are failures and fewer than `FEW` have a cost.

        Args:
            o: The outcome.
            query: The query's embedding and surface counts.
            at: Index of the outcome's action.
            took: ln(eFLOPs) without the price factor, or ln(generated tokens) and ln(prompt tokens); NaN for a failure.
        """
        if not self.at:
            return None
        self._kept[o.observation_id] = (query, at, o.entered, o.score, *took, o.tenant, o.categories)
        if len(self._kept) < self.at[0]:
            return None
        *columns, tenants, asked = zip(*self._kept.values(), strict=True)
        queries, actions, correct, score, costs, *prompts = map(np.array, columns)
        failed = np.isnan(costs)
        self.at = self.at[1:]
        if not self.at:
            self._kept = {}
        if failed.any() and np.sum(~failed) < FEW:
            return None
        # Repeated queries count as one question, so that a transform fitted without it has seen none of its answers.
        question = _places((query.tobytes(), own) for query, own in zip(queries, asked, strict=True))
        _, first = np.unique(question, return_index=True)
        ones = np.ones(len(question))
        costs, *prompts = (np.where(failed, 0.0, each) for each in (costs, *prompts))
        shown = [asked[at] for at in first] if any(asked) else ()
        found = (queries[first], question, actions, correct, score, costs, ones, tenants, failed)
        return History(*found, *prompts, categories=shown)

    def correct(self, o: Observation) -> None:
        """Replace Correct in a kept outcome."""
        if (kept := self._kept.get(o.observation_id)) is not None:
            self._kept[o.observation_id] = (kept[0], kept[1], o.entered, *kept[3:])

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays) that `restore` continues from."""
        kept = list(self._kept.values())
        arrays = {
            "memory.queries": np.array([row[0] for row in kept], dtype="<f4"),
            "memory.actions": np.array([row[1] for row in kept], dtype="<i8"),
            "memory.terms": np.array([row[2:-2] for row in kept] or np.zeros((0, 3)), dtype=np.float64),
        }
        meta: dict[str, Any] = {
            "refits": list(self.at),
            "memory": {name: row[-2] for name, row in self._kept.items()},
        }
        if any(row[-1] for row in kept):  # states saved by earlier releases have no categories
            meta["memory_categories"] = {name: row[-1] for name, row in self._kept.items() if row[-1]}
        if self._knows_categories:
            meta["knows_categories"] = True
        return meta, arrays

    def restore(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore what `snapshot` returned."""
        self.at = tuple(meta["refits"])
        self._knows_categories = meta.get("knows_categories", False)
        asked = meta.get("memory_categories", {})
        rows = zip(
            meta["memory"].items(),
            arrays["memory.queries"].astype(np.float64),
            arrays["memory.actions"].tolist(),
            arrays["memory.terms"].tolist(),
            strict=True,
        )
        self._kept = {
            name: (query, action, *terms, tenant, tuple(asked.get(name, ())))
            for (name, tenant), query, action, terms in rows
        }
