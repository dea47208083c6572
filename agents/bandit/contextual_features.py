"""The contextual policy's features, x = g_a ⊗ z_q, and the blocks that group their columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from agents.bandit.features import COUNTS, FeatureMap, FeatureSettings, checked
from agents.bandit.policy import ActionVector, Matrix, Vector
from schemas.action import Action
from schemas.errors import InvalidField
from schemas.objective import CostUnit

MOST_COLUMNS: Final = 500
"""Maximum number of columns in x for the first catalogue's actions. At this size, a decision and its update take a
millisecond, and a snapshot takes four megabytes. The more models there are, the shorter z is."""

MOST_WITH_CATEGORIES: Final = 800
"""Maximum number of columns in x, including those for categories. It keeps snapshots below 16 MB."""

MARGIN: Final = (2, 10)
"""(factor, addend): a category takes over the columns of another with n outcomes once it has more than
factor · n + addend outcomes."""

COUNTED: Final = 4096
"""When the categories' outcome counts reach this total, all are halved, so that unused categories make room."""

FEWEST_DIRECTIONS: Final = 8
"""Minimum number of directions in z, however many models there are. With none, all queries would look alike."""

GROWTH: Final = (0.75, 0.5)
"""Typical cost exponents: cost grows roughly as parameters**0.75 and paths**0.5. Growth in paths is sublinear because
paths share the prompt and often end early."""

GROWTH_OF_TOKENS: Final = (0.0, 1.0)
"""The same exponents, for generated tokens: their number grows with the paths but not with the model size."""

LONGEST: Final = 3.0
"""Maximum norm of z's directions, whose average norm is 1. It keeps one question from weighing as much as twenty."""

STORED: Final = ("ids", "models", "active", "sizes", "names", "size_range", "first_shape", "scale", "scales")
"""Attributes of `ContextualFeatures` that a snapshot stores as plain values."""

FITTED: Final = ("ids", "names", "size_range", "scale", "scales")
"""The attributes in `STORED` that are learned from a history."""

OF_PROMPTS: Final = ("prompt_scale", "prompt_scales")
"""Further attributes for `STORED` and `FITTED` if costs are in USD."""

# Mean and standard deviation of the counts' logarithms over GSM8K's training questions. They are fixed, and provide
# a scale for a learner without a history. In order: numbers, digits, words, letters, sentences, lines, symbols,
# capitals, longest number.
_USUAL: Final = np.array([1.38, 1.81, 3.77, 5.1, 1.46, 0.69, 0.53, 1.72, 1.18])
_SPREAD: Final = np.array([0.41, 0.52, 0.36, 0.4, 0.27, 0.3, 0.61, 0.4, 0.33])


class ContextualFeatures(FeatureMap):
    """The known actions with their features, and the query transform.

    z_q = [1, the surface counts, directions (`QueryTransform`)]. g_a = [1, the plain coordinates in which actions are
    known to differ (model size, search width, drafts per step), an indicator for each model, and an indicator for each
    search shape]. Efforts of one model share its indicator, and each has another of its own. Every feature of the
    action is multiplied by every feature of the query. How much a product matters is not fixed here: each column
    belongs to a block, and the variance of each block is estimated (`agents.bandit.variances`).

    New actions may bring new features, which append columns. Existing columns keep their order and meaning.

    A query may also have categories (`key=value`). Each category has its own columns, which come last: x = [g_a ⊗ z_q;
    h_a ⊗ c_q], where h_a is g_a without the shapes, and c_q is 1 for the query's categories. A category gets its
    columns at the first decision that includes it. If there are too many, the categories with the fewest outcomes lose
    theirs.

    Args:
        settings: `query_dim` covers the embedding and the surface counts; `query_rank` is the maximum length of z
            without its constant.
        unit: Unit of costs. If it is USD, billed tokens are learned instead of costs, and anchors count generated
            tokens.

    Attributes:
        sides: G, shape (n, J): every action's features.
        names: Names of the J features: `one`, a coordinate, `model …`, `shape …`, `effort …`.
        anchors: Reference cost of each action, shape (n,). Costs are measured in multiples of it, so that expensive
            and cheap actions share a scale.
        scale, scales: Correction factors for guessed costs: a default, and one for each model with known costs. They
            give an action the same anchor whether it was added before or after its model's costs were known.
        prompts, prompt_scale, prompt_scales: In USD, the anchors and correction factors for prompt tokens.
        sizes: Number of parameters of each action's model; 0 if it is not known.
        bases: The name that the efforts of each action's model share; empty for models without efforts.
        size_range: Smallest and largest logarithm of a known or inferred size.
        first_shape: The shape shared by all initial actions; empty if they have several.
        transform: Maps a query to z. It may be replaced only when everything learned is discarded.
        categories: The K categories with columns, in column order.
        outcomes: Number of outcomes in each category, halved from time to time (`COUNTED`).
    """

    def __init__(self, settings: FeatureSettings, unit: CostUnit = "eflops") -> None:
        super().__init__(settings)
        self.in_tokens = unit == "usd"
        self.names: list[str] = []
        self.sizes: list[float] = []
        self.bases: list[str] = []
        self.anchors: Vector = np.zeros(0)
        self.scale, self.scales = 1.0, dict[str, float]()
        self.prompts: Vector = np.zeros(0)
        self.prompt_scale, self.prompt_scales = 1.0, dict[str, float]()
        self.size_range, self.first_shape = (0.0, 0.0), ""
        self.transform = QueryTransform.usual(settings.query_dim, settings.query_rank)
        self.categories: list[str] = []
        self.outcomes: dict[str, int] = {}

    @property
    def rank(self) -> int:
        """Return the length of z, including its constant but excluding categories."""
        return self.transform.rank

    @property
    def plain_dim(self) -> int:
        """Return the number of columns in x that do not belong to categories; these come first."""
        return len(self.names) * self.rank

    @property
    def dim(self) -> int:
        """Return D, the length of x."""
        return self.plain_dim + len(self.crossed) * len(self.categories)

    @property
    def crossed(self) -> list[int]:
        """Return the indices of the features multiplied by categories: all except the shapes."""
        return [at for at, name in enumerate(self.names) if _kind(name) != "shape"]

    @property
    def column_blocks(self) -> list[str]:
        """Return the block that each column of x belongs to, shape (D,), such as `model × counts`."""
        plain = [f"{_kind(name)} × {part}" for name in self.names for part in self.transform.parts]
        crossed = [_kind(self.names[at]) for at in self.crossed]
        return plain + [f"{kind} × category" for kind in crossed for _ in self.categories]

    @property
    def leaves(self) -> np.ndarray:
        """Return each model's columns as a row, shape (M, r), or each shape's if those are more in total.

        An action has one model and one shape, so no x has non-zero values in the columns of two rows.
        """
        of: dict[str, list[list[int]]] = {"model": [], "shape": []}
        count, crossed = len(self.categories), {at: place for place, at in enumerate(self.crossed)}
        for at, name in enumerate(self.names):
            if (kind := _kind(name)) in of:
                own = [*range(at * self.rank, (at + 1) * self.rank)]
                if at in crossed:
                    first = self.plain_dim + crossed[at] * count
                    own += range(first, first + count)
                of[kind].append(own)
        return np.array(max(of.values(), key=lambda rows: sum(map(len, rows))), np.intp)

    @property
    def columns(self) -> list[tuple[str, int | str]]:
        """Return each column's identity, shape (D,): a feature, and a coordinate of z or a category."""
        crossed = ((self.names[at], category) for at in self.crossed for category in self.categories)
        return [*((name, part) for name in self.names for part in range(self.rank)), *crossed]

    def queries(self, pairs: Sequence[tuple[str, Vector]]) -> Matrix:
        """Return the validated vectors from (id, vector) pairs as rows. The embedding in each must not be zero."""
        out = super().queries(pairs)
        for (subject, _), row in zip(pairs, out, strict=True):
            checked(subject, row[: -len(COUNTS)], len(row) - len(COUNTS), "embedding")
        return out

    def short(self, query: Vector, categories: Sequence[str] = ()) -> Vector:
        """Return [z; c] for one validated query, shape (rank + K,), bit-identical to its value in a batch."""
        z = self.transform.of(query)
        return np.concatenate([z, self.coded([categories])[0]]) if self.categories else z

    def coded(self, asked: Sequence[Sequence[str]]) -> Matrix:
        """Return c for queries with these categories, shape (Q, K). Categories without columns are left out."""
        place = {category: at for at, category in enumerate(self.categories)}
        found = np.zeros((len(asked), len(place)))
        for row, categories in zip(found, asked, strict=True):
            row[[place[each] for each in categories if each in place]] = 1.0
        return found

    def with_categories(self, z: Matrix, asked: Sequence[Sequence[str]]) -> Matrix:
        """Append c to each query's z, shape (Q, rank), and return [z; c], shape (Q, rank + K)."""
        return np.hstack([z, self.coded(asked)]) if self.categories else z

    def project(self, z: Vector, theta: Matrix) -> Matrix:
        """Return each feature's contribution to xᵀΘ for one query.

        Args:
            z: [z; c] for the query, shape (rank + K,).
            theta: Θ, shape (D, T).

        Returns:
            Shape (J, T): `sides @ project(z, Θ)` is xᵀΘ for every action.
        """
        rank, plain = self.rank, self.plain_dim
        found = np.asarray(z[:rank] @ theta[:plain].reshape(len(self.names), rank, -1))
        if len(z) > rank and z[rank:].any():
            found[self.crossed] += z[rank:] @ theta[plain:].reshape(len(self.crossed), len(z) - rank, -1)
        return found

    def predict(self, window: Matrix, theta: Vector, sides: Matrix) -> Matrix:
        """Return xᵀθ for every (query, action) pair, shape (m, n).

        Args:
            window: [z; c] for each query, shape (m, rank + K).
            theta: θ, shape (D,).
            sides: The actions' features, shape (n, J).
        """
        rank, plain = self.rank, self.plain_dim
        found = window[:, :rank] @ theta[:plain].reshape(len(self.names), rank).T @ sides.T
        if self.categories:
            own = theta[plain:].reshape(len(self.crossed), len(self.categories))
            found += window[:, rank:] @ own.T @ sides[:, self.crossed].T
        return np.asarray(found)

    def compress(self, z: Vector, half: Matrix) -> Matrix:
        """Return one query's matrix Q, shape (J, J), such that g_aᵀQg_a = xᵀA⁻¹x for every action.

        Args:
            z: [z; c] for the query, shape (rank + K,).
            half: The lower triangle of A⁻¹, with zeros above, shape (D, D).
        """
        j, rank, plain = len(self.names), self.rank, self.plain_dim
        z, shown = z[:rank], np.flatnonzero(z[rank:])
        own = half[:plain, :plain]
        # (J, rank, J, rank) multiplied by z from both sides. Adding the transpose completes the upper triangle but
        # counts the diagonal twice.
        met = z @ (own.reshape(-1, rank) @ z).reshape(j, rank, j)
        met = np.asarray(met + met.T - np.diag(np.diagonal(own).reshape(j, rank) @ z**2))
        if len(shown):
            count, crossed = len(self.categories), self.crossed
            places = plain + (np.arange(len(crossed))[:, None] * count + shown).ravel()  # (H, shown), flat
            of_plain = (
                half[places, :plain].reshape(len(crossed), len(shown), j, rank).sum(axis=1) @ z
            )  # (H, J)
            among = half[np.ix_(places, places)]
            among = among + among.T - np.diag(np.diagonal(among))
            met[crossed] += of_plain
            met[:, crossed] += of_plain.T
            met[np.ix_(crossed, crossed)] += among.reshape(len(crossed), len(shown), len(crossed), -1).sum(
                axis=(1, 3)
            )
        return np.asarray(met)

    def row(self, z: Vector, action: int) -> Vector:
        """Return x for one query and one action, shape (D,)."""
        return np.asarray(self.rows(z[None], np.array([action]))[0])

    def rows(self, z: Matrix, actions: np.ndarray) -> Matrix:
        """Return x for each (query, action) pair, shape (m, D). `z` is each query's [z; c], shape (m, rank + K)."""
        sides, rank = self.sides[actions], self.rank
        found = np.asarray((sides[:, :, None] * z[:, None, :rank]).reshape(len(z), -1))
        if not self.categories:
            return found
        crossed = (sides[:, self.crossed, None] * z[:, None, rank:]).reshape(len(z), -1)
        return np.concatenate([found, crossed], axis=1)

    def enter(self, shown: Sequence[str]) -> bool:
        """Assign columns to a decision's categories while there is room; return whether the columns have changed.

        Once there is no room, a category takes over the columns of the one with the fewest outcomes as soon as it
        clearly has more (`MARGIN`). The result depends only on the available actions and on the sequence of decisions
        and outcomes so far.
        """
        before, room = self.categories, self.room_for_categories()
        for category in shown:
            self.outcomes.setdefault(category, 0)
            if category in self.categories:
                continue
            if len(self.categories) < room:
                self.categories = [*self.categories, category]
            elif self.categories:
                least = min(self.categories, key=self.outcomes.__getitem__)
                if self.outcomes[category] > MARGIN[0] * self.outcomes[least] + MARGIN[1]:
                    self.categories = [*(each for each in self.categories if each != least), category]
        while len(self.categories) > room:
            least = min(reversed(self.categories), key=self.outcomes.__getitem__)
            self.categories = [each for each in self.categories if each != least]
        return self.categories is not before

    def count(self, shown: Sequence[str], outcomes: int = 1) -> None:
        """Add to the categories' outcome counts."""
        for category in shown:
            self.outcomes[category] = self.outcomes.get(category, 0) + outcomes
        if shown and sum(self.outcomes.values()) >= COUNTED:
            halved = {category: number // 2 for category, number in self.outcomes.items()}
            self.outcomes = {c: n for c, n in halved.items() if n or c in self.categories}

    def choose_categories(self, numbers: Mapping[str, int]) -> None:
        """Assign columns to the categories with the most outcomes. Everything learned must be discarded as well."""
        most = sorted(numbers, key=lambda category: (-numbers[category], category))
        self.categories = most[: self.room_for_categories()]
        self.outcomes = {category: numbers[category] for category in most}

    @property
    def left_out(self) -> list[str]:
        """Return the categories that there is no room for."""
        return [category for category in self.outcomes if category not in self.categories]

    def room_for_categories(self) -> int:
        """Return how many categories may have columns, given the available actions.

        Other actions' features do not count, because during a recovery all actions in the log are known from the start.
        """
        on = {at for at, active in enumerate(self.active) if active} or range(len(self.ids))
        usual = sum(_kind(name) not in ("model", "shape", "effort") for name in self.names)
        models = len({name for at in on for name in self._of_model(at)})
        shapes = len({_shape(self.ids[at]) for at in on} - {self.first_shape})
        return max(
            0, (MOST_WITH_CATEGORIES - (usual + models + shapes) * self.rank) // max(usual + models, 1)
        )

    def room(self) -> tuple[int, int]:
        """Return the number of counts and the number of directions that z may have within the limit on x's columns.

        Counts are dropped first, because directions are fitted to how models differ and may include the counts.
        """
        most = max(MOST_COLUMNS // max(len(self.names), 1) - 1, FEWEST_DIRECTIONS)
        most = min(self.settings.query_rank, most)
        counts = min(len(COUNTS), max(most - FEWEST_DIRECTIONS, 0))
        return counts, most - counts

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays) that `restore` rebuilds this map from exactly."""
        meta = {name: getattr(self, name) for name in self._names(STORED)}
        if self.outcomes:  # states saved by earlier releases have neither key
            meta |= {"categories": self.categories, "outcomes": self.outcomes}
        if any(self.bases):  # likewise
            meta["bases"] = self.bases
        return meta, {"sides": self.sides} | self._anchors() | self.transform.snapshot()

    def restore(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore the map saved by `snapshot`."""
        self._take_back(meta, self._names(STORED))
        self.bases = list(meta.get("bases") or [""] * len(self.ids))
        self.sides, self.anchors = arrays["sides"], arrays["anchors"]
        self.prompts = arrays.get("prompts", self.prompts)
        self.transform = QueryTransform.restored(arrays)
        self.categories, self.outcomes = list(meta.get("categories", ())), dict(meta.get("outcomes", {}))

    def fitted(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays) of everything learned from a history, for `refit`."""
        meta = {name: getattr(self, name) for name in self._names(FITTED)}
        return meta, self._anchors() | self.transform.snapshot()

    def _names(self, of: tuple[str, ...]) -> tuple[str, ...]:
        return (*of, *OF_PROMPTS) if self.in_tokens else of

    def _anchors(self) -> dict[str, np.ndarray]:
        return {"anchors": self.anchors} | ({"prompts": self.prompts} if self.in_tokens else {})

    def refit(self, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bool:
        """Restore a `fitted` result. Return False if its actions are not the first of those now known."""
        ids, names = meta["ids"], meta["names"]
        if self.ids[: len(ids)] != ids or not set(names) <= set(self.names):
            return False
        # A recovery adds all later actions at once, so its features may have another order than the live run's.
        self.names = [*names, *(name for name in self.names if name not in names)]
        self.scale, self.scales, self.size_range = meta["scale"], meta["scales"], meta["size_range"]
        self.anchors = np.concatenate([arrays["anchors"], self._guesses(len(ids))])
        if self.in_tokens:
            self.prompt_scale, self.prompt_scales = meta["prompt_scale"], meta["prompt_scales"]
            self.prompts = np.concatenate([arrays["prompts"], self._prompt_guesses(len(ids))])
        self.transform = QueryTransform.restored(arrays)
        self.sides = self._sides()
        return True

    def _register(self, actions: list[ActionVector], units: Matrix) -> None:
        first = not self.ids
        self._append(actions)
        self.sizes += [action.size for action in actions]
        self.bases += [action.base for action in actions]
        if first:
            self._set_size_range()
            self.names = ["one", *self._varying()]
            shapes = set(map(_shape, self.ids))
            self.first_shape = shapes.pop() if len(shapes) == 1 else ""
        of_models = [self._of_model(at) for at in range(len(self.ids))]
        found = [model for model, *_ in of_models]
        # If all initial actions have one shape, it is the reference and has no column, so earlier rows stay valid.
        found += [f"shape {s}" for s in dict.fromkeys(map(_shape, self.ids)) if s != self.first_shape]
        found += [effort for _, *own in of_models for effort in own]
        self.names += [name for name in dict.fromkeys(found) if name not in self.names]
        self.sides = self._sides()
        self.anchors = np.concatenate([self.anchors, self._guesses(len(self.anchors))])
        if self.in_tokens:
            self.prompts = np.concatenate([self.prompts, self._prompt_guesses(len(self.prompts))])

    def _of_model(self, at: int) -> list[str]:
        """Return the indicators of an action's model, the last of which is its own."""
        model, base = self.models[at], self.bases[at]
        return [f"model {base}", f"effort {model}"] if base else [f"model {model}"]

    def own_column(self, model: str) -> int:
        """Return the column of a model's own indicator, which no other model shares, times z's constant."""
        return self.names.index(self._of_model(self.models.index(model))[-1]) * self.rank

    def _guesses(self, first: int) -> list[float]:
        """Return guessed anchors for the actions from index `first` on."""
        scales = [self.scales.get(model, self.scale) for model in self.models]
        return [self.guess(at) * scales[at] for at in range(first, len(self.ids))]

    def _prompt_guesses(self, first: int) -> list[float]:
        scales = [self.prompt_scales.get(model, self.prompt_scale) for model in self.models]
        return [self.guess_prompt(at) * scales[at] for at in range(first, len(self.ids))]

    def _varying(self) -> list[str]:
        """Return the plain coordinates that differ among the initial actions. A constant one would be redundant."""
        widths = [_widths(action_id) for action_id in self.ids]
        found = []
        # Unknown sizes are inferred from costs later (`measure`).
        readable = not self.in_tokens and sum(size <= 0 for size in self.sizes) > 1
        if sized := self.size_range[0] < self.size_range[1] or readable:
            found.append("size")
        if wide := len({qp * cp for qp, cp in widths}) > 1:
            found.append("width")
        if len({cp for _, cp in widths}) > 1:
            found.append("drafts")
        return [*found, "size·width"] if sized and wide else found

    def _sides(self) -> Matrix:
        """Return G, shape (n, J)."""
        rows = [self._features(at, log_size) for at, log_size in enumerate(self._log_sizes())]
        return np.array(rows).reshape(len(self.ids), -1)

    def _features(self, at: int, log_size: float | None) -> list[float]:
        low, high = self.size_range
        # If neither size nor cost is known, only the indicator can express how the model differs from the average.
        size = 0.0 if log_size is None or low == high else 2.0 * (log_size - low) / (high - low) - 1.0
        qp, cp = _widths(self.ids[at])
        width, drafts = math.log2(qp * cp) / 3.0 - 1.0, math.log2(cp) / 3.0 - 1.0
        plain = {
            "one": 1.0,
            "size": size,
            "width": width,
            "drafts": drafts,
            "size·width": size * width,
            f"shape {_shape(self.ids[at])}": 1.0,
            **dict.fromkeys(self._of_model(at), 1.0),
        }
        return [plain.get(name, 0.0) for name in self.names]

    def measure(self) -> None:
        """Infer unknown model sizes from search costs (`scales`). Call this only before relearning.

        For a hosted model, the price indicates the size as well as any published figure does.
        """
        self._set_size_range()
        self.sides = self._sides()

    def _set_size_range(self) -> None:
        known = [size for size in self._log_sizes() if size is not None]
        self.size_range = (min(known, default=0.0), max(known, default=0.0))

    def _log_sizes(self) -> list[float | None]:
        """Return ln(parameters) for each action's model, inferred from its costs if the size is unknown.

        An entry is None if neither is known. If costs are in USD, nothing is inferred, because generated tokens do not
        indicate the size.
        """
        if self.in_tokens:
            return [math.log(size) if size > 0 else None for size in self.sizes]
        sized = dict(zip(self.models, self.sizes, strict=True))
        usual = [math.log(scale) for model, scale in self.scales.items() if sized[model] > 0]
        mean = sum(usual) / len(usual) if usual else 0.0
        read = {model: (math.log(scale) - mean) / GROWTH[0] for model, scale in self.scales.items()}
        pairs = zip(self.models, self.sizes, strict=True)
        return [math.log(size) if size > 0 else read.get(model) for model, size in pairs]

    def guess(self, at: int) -> float:
        """Return a guess at an action's cost, based on parameters and paths, up to a common factor."""
        qp, cp = _widths(self.ids[at])
        of_size, of_paths = GROWTH_OF_TOKENS if self.in_tokens else GROWTH
        return float(max(self.sizes[at], 1.0) ** of_size * (qp * cp) ** of_paths)

    def guess_prompt(self, at: int) -> float:
        """Return a guess at the number of prompt tokens billed for an action, up to a common factor.

        A chat endpoint receives the prompt once per answer, whereas other engines read it once for all answers.
        """
        qp, cp = _widths(self.ids[at])
        return float((qp * cp) ** GROWTH[1])


@dataclass(frozen=True)
class QueryTransform:
    """Maps a query (its embedding followed by its surface counts) to z = [1, counts, directions].

    A direction is an axis of the query itself, or a weighted sum of its similarities to the landmarks, which are past
    questions: k(q, l) = exp(-κ |q - l|²) for their embeddings (Nyström approximation of a Gaussian kernel). A question
    unlike any landmark has zeros in the latter directions and gets the average prediction.

    Attributes:
        offset: Vector subtracted from a query, shape (query_dim,).
        axes: The counts' axes, followed by the directions', shape (rank - 1, query_dim).
        landmarks: Embeddings of the landmarks, with float32 values, shape (m, d).
        kappa: κ.
        weights: Weights of the similarities in each direction, shape (directions, m).
        learned: Number of directions fitted to outcomes; these come first.
    """

    offset: Vector
    axes: Matrix
    landmarks: Matrix
    kappa: float
    weights: Matrix
    learned: int = 0

    @classmethod
    def usual(cls, dim: int, most: int) -> QueryTransform:
        """Return the default transform for a learner with no history: z contains only the first `most` counts."""
        embedded = dim - len(COUNTS)
        offset = np.concatenate([np.zeros(embedded), _USUAL])
        return cls(offset, count_axes(_SPREAD, dim, most), np.zeros((0, embedded)), 1.0, np.zeros((0, 0)))

    @property
    def rank(self) -> int:
        """Return the length of z, including its constant."""
        return 1 + len(self.axes)

    @property
    def parts(self) -> list[str]:
        """Return the kind of each coordinate of z: `constant`, `counts`, `directions` (learned) or `kernel`."""
        counts = len(self.axes) - len(self.weights)
        rest = len(self.weights) - self.learned
        return ["constant", *["counts"] * counts, *["directions"] * self.learned, *["kernel"] * rest]

    def of(self, query: Vector) -> Vector:
        """Return z for one query, shape (rank,)."""
        z = self.axes @ (query - self.offset)
        if len(self.weights):
            embedding = query[: -len(COUNTS)]
            apart = (
                self._lengths - 2.0 * (self.landmarks @ embedding) + embedding @ embedding
            )  # |q - l|², (m,)
            z[-len(self.weights) :] += self.weights @ np.exp(-self.kappa * np.maximum(apart, 0.0))
        return bounded(z, len(self.axes) - len(self.weights))

    @cached_property
    def _lengths(self) -> Vector:
        return np.asarray(np.sum(self.landmarks**2, axis=1))

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return arrays that `restored` makes the same transform from."""
        return {
            "transform.offset": self.offset,
            "transform.axes": self.axes,
            "transform.landmarks": self.landmarks.astype("<f4"),
            "transform.weights": self.weights,
            "transform.plain": np.array([self.kappa, self.learned]),
        }

    @classmethod
    def restored(cls, arrays: Mapping[str, np.ndarray]) -> QueryTransform:
        """Return the transform saved by `snapshot`."""
        kappa, learned = arrays["transform.plain"].tolist()
        landmarks = arrays["transform.landmarks"].astype(np.float64)
        offset, axes, weights = (arrays[f"transform.{name}"] for name in ("offset", "axes", "weights"))
        return cls(offset, axes, landmarks, kappa, weights, int(learned))


def bounded(z: Matrix, counts: int) -> Matrix:
    """Prepend z's constant and clip z to its bounds, for one query or for many as rows.

    Args:
        z: z without the constant, shape (…, rank - 1).
        counts: Number of leading coordinates that are counts.
    """
    surface, rest = np.clip(z[..., :counts], -1.0, 1.0), z[..., counts:]
    length = np.sqrt(np.sum(rest**2, axis=-1, keepdims=True))
    return np.concatenate(
        [np.ones((*z.shape[:-1], 1)), surface, rest / np.maximum(length / LONGEST, 1.0)], axis=-1
    )


def count_axes(spread: Vector, dim: int, most: int) -> Matrix:
    """Return a (k, dim) matrix that selects the first k counts and scales each by 1 / (3·spread).

    k is min(`most`, len(COUNTS)).
    """
    own = min(len(COUNTS), most)
    found = np.zeros((own, dim))
    found[np.arange(own), dim - len(COUNTS) + np.arange(own)] = 1.0 / (3.0 * spread[:own])
    return found


def _kind(name: str) -> str:
    """Return the kind of a feature: `one`, a coordinate, `model`, `shape` or `effort`."""
    return name.split(" ")[0]


def _widths(action_id: str) -> tuple[int, int]:
    try:
        action = Action.parse(action_id)
    except InvalidField:
        return 1, 1
    return action.qp, action.cp


def _shape(action_id: str) -> str:
    try:
        action = Action.parse(action_id)
    except InvalidField:
        return ""
    return f"{action.qp}/{action.cp}/{action.bs}"
