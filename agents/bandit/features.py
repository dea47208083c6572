"""The joint vector x = [s_q; f_a] of a query and an action (UniScale §3.2, App. B.2), and vector validation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from agents.bandit.errors import InvalidObservation, NoAction, UnknownAction
from agents.bandit.policy import ActionVector, Matrix, Vector

# Vector validation, and the short query projection used by interactions.

SPANNED: Final = 1e-12
"""If the component of a unit vector outside the basis is shorter than this, it is treated as rounding error."""

LONG: Final = 1e6
"""Embeddings whose squared length exceeds this are rejected. Encoders return unit vectors; a vector of length 1,000
would weigh as much in A as a million observations."""


@dataclass(frozen=True, slots=True)
class QueryBasis:
    """A projection z_q = directions · (s_q - offset), scaled so that z_q has unit RMS.

    Attributes:
        offset: Vector subtracted from s_q, shape (query_dim,).
        directions: The projection's directions, as rows, shape (query_rank, query_dim).
    """

    offset: Vector
    directions: Matrix

    @classmethod
    def random(cls, dim: int, rank: int, seed: int) -> QueryBasis:
        """Draw a random projection whose z_q has unit RMS for unit s_q."""
        draws = np.random.default_rng(seed).standard_normal((dim, rank))
        directions = np.linalg.qr(draws)[0].T * np.sqrt(dim / rank)
        return cls(np.zeros(dim), np.ascontiguousarray(directions))  # row-major, as a snapshot returns it


def checked(subject: str, vector: Vector, dim: int, name: str) -> Vector:
    """Return a validated vector as float64.

    Raises:
        InvalidObservation: The vector has the wrong length or zero norm, or is not finite; the message names the field.
    """
    out = np.asarray(vector, dtype=np.float64)
    if out.shape != (dim,):
        raise InvalidObservation(
            subject, name, out.shape, f"give one vector of length {dim}, of the configured encoder"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(out @ out)
    if not square < LONG:  # NaN fails every comparison
        raise InvalidObservation(subject, name, "not finite or far from unit length", "embed the text again")
    if square < SPANNED:
        raise InvalidObservation(subject, name, "of zero norm", "embed a text that is not empty")
    return out


# A question's surface counts. They indicate how hard it is but are lost in a sentence embedding.
#
# A word problem's length and the number of figures in it predict its difficulty better than all 384 dimensions of
# MiniLM. For policies that use the counts (`Traits.surface`), they are appended to the embedding.

COUNTS: Final = (
    "numbers",
    "digits",
    "words",
    "letters",
    "sentences",
    "lines",
    "symbols",
    "capitals",
    "longest number",
)

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE = re.compile(r"[.!?](?:\s|$)")  # matches only the last mark of a run such as `?!`; linear time
_SYMBOLS = r"-+*/=^<>%$\{}()[]"


def counts(text: str) -> Vector:
    """Return ln(1 + n) for each of `COUNTS`, shape (9,). Logarithms, because counts vary by large factors.

    >>> np.expm1(counts("Tom has 5 pens. He buys 16 more.")).round().astype(int).tolist()
    [2, 3, 8, 20, 2, 1, 0, 2, 2]
    """
    numbers = _NUMBER.findall(text)
    often = _often(text)
    found = (
        len(numbers),
        sum(n for c, n in often.items() if c.isdigit()),
        len(text.split()),
        sum(n for c, n in often.items() if c.isalpha()),
        len(_SENTENCE.findall(text)),
        text.count("\n") + 1,
        sum(often[c] for c in _SYMBOLS),
        sum(n for c, n in often.items() if c.isupper()),
        max(map(len, numbers), default=0),
    )
    # Rounded to float32 as in the log's rows, so that a replay sees the same values.
    return np.log1p(found).astype(np.float32).astype(np.float64)


def with_counts(embeddings: Matrix, texts: Sequence[str]) -> Matrix:
    """Append the texts' surface counts to their embeddings, shape (Q, d), and return the result, shape (Q, d + 9)."""
    return np.concatenate([embeddings, np.array([counts(text) for text in texts])], axis=1)


def _often(text: str) -> Counter[str]:
    """Return how often each character occurs in a text."""
    if not text.isascii():
        return Counter(text)
    times = np.bincount(np.frombuffer(text.encode(), np.uint8))  # 20 times faster
    return Counter({chr(code): int(times[code]) for code in np.flatnonzero(times)})


# The joint vector x = [s_q; f_a] of a query and an action (UniScale §3.2, App. B.2).
#
# As in the paper, f_a is the embedding of the action's description at unit length (`raw`), or a one-hot vector (the
# ablation "without semantics"). `centred` subtracts the mean over the first catalogue and scales to unit RMS: with a
# small encoder, the descriptions have cosines of 0.96 and more, so their similarities mask their differences. The
# centre is always the first catalogue's; a new centre would change the meaning of every x already in A.
#
# The action vectors span at most |A| dimensions, and ridge regression is invariant under rotation. f_a can therefore
# consist of coordinates in an orthonormal basis of that span, which is shorter and gives the same scores. A description
# outside the span adds one basis vector.
#
# With x = [s_q; s_a] and a single θ, the ranking of actions by predicted mean is the same for every query. Interactions
# are an optional departure from the paper: they append z_q ⊗ v_a, where z_q is a short projection of the query, and v_a
# is the action's leading principal coordinates (`bilinear`) or its model as a one-hot vector (`model`: per-model
# corrections).


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """Settings for x.

    Attributes:
        query_dim: Length of s_q.
        action_dim: Length of s_a.
        action_features: `raw` as in the paper, `one-hot` as in its ablation, or `centred`.
        interactions: `none` as in the paper; `bilinear` and `model` append z_q ⊗ v_a.
        query_rank: Length of z_q.
        action_rank: Length of v_a for `bilinear`.
        interaction_scale: Factor applied to z_q ⊗ v_a. Its square is an interaction's prior variance, in units of 1/λ.
        basis_seed: Seed for the random projection of queries.
    """

    query_dim: int
    action_dim: int
    action_features: Literal["raw", "centred", "one-hot"] = "raw"
    interactions: Literal["none", "bilinear", "model"] = "none"
    query_rank: int = 8
    action_rank: int = 6
    interaction_scale: float = 1.0
    basis_seed: int = 0


@dataclass(slots=True)
class Anchor:
    """The action vectors' centre, scale and principal directions, fixed by the first catalogue."""

    centre: Vector
    scale: float
    directions: Matrix


class FeatureMap:
    """The known actions, and the map from (s_q, action) to x.

    Attributes:
        ids: Every action ever added, in the row order of `coordinates`.
        coordinates: f_a without interactions, shape (n, r).
        vectors: f_a before rotation into the basis, shape (n, action_dim).
    """

    def __init__(self, settings: FeatureSettings) -> None:
        s = self.settings = settings
        self.query_basis: QueryBasis | None = None
        if s.interactions != "none":
            self.query_basis = QueryBasis.random(s.query_dim, s.query_rank, s.basis_seed)
        self.anchor: Anchor | None = None
        self.ids: list[str] = []
        self.models: list[str] = []
        self.active: list[bool] = []
        self.index: dict[str, int] = {}
        self.vectors: Matrix = np.zeros((0, s.action_dim))
        self.coordinates: Matrix = np.zeros((0, 0))
        self.basis: Matrix = np.zeros((0, s.action_dim))
        self.sides: Matrix = np.zeros((0, 0))
        self._choosable: dict[frozenset[str] | None, np.ndarray] = {}

    @property
    def static(self) -> bool:
        """Return whether f_a is the same for every query."""
        return self.settings.interactions == "none"

    @property
    def action_dim(self) -> int:
        """Return the length of f_a."""
        rank = 0 if self.static or self.query_basis is None else len(self.query_basis.directions)
        return int(self.coordinates.shape[1] + rank * self.sides.shape[1])

    def offer(self, actions: Sequence[ActionVector]) -> list[int]:
        """Make exactly these actions available; return the new position of each old column of f_a.

        Removed actions keep their vectors, for outstanding rewards.

        Raises:
            InvalidObservation: An embedding has the wrong length, is not finite, or is zero.
        """
        old_rank, old_rest = self.coordinates.shape[1], self.action_dim - self.coordinates.shape[1]
        fresh = list({a.action_id: a for a in actions if a.action_id not in self.index}.values())
        vectors = [
            checked(a.action_id, a.embedding, self.settings.action_dim, "action embedding") for a in fresh
        ]
        if fresh:
            units = np.array([v / np.linalg.norm(v) for v in vectors])
            self._register(fresh, units)
        on_offer = {action.action_id for action in actions}
        self.active = [action_id in on_offer for action_id in self.ids]
        self._choosable.clear()
        shift = self.coordinates.shape[1] - old_rank
        return [*range(old_rank), *range(old_rank + shift, old_rank + shift + old_rest)]

    def position(self, subject: str, action_id: str) -> int:
        """Return an action's row.

        Raises:
            UnknownAction: The action was never added; the message names the subject.
        """
        try:
            return self.index[action_id]
        except KeyError:
            raise UnknownAction(subject, action_id) from None

    def choosable(self, query_id: str, allowed: frozenset[str] | None) -> np.ndarray:
        """Return the rows of the actions that are active and allowed.

        Raises:
            NoAction: There are none.
        """
        rows = self._choosable.get(allowed)
        if rows is None:
            keep = [
                on and (allowed is None or i in allowed) for i, on in zip(self.ids, self.active, strict=True)
            ]
            rows = np.flatnonzero(keep)
            if len(self._choosable) > 256:  # usually few; bounded in case a client sends many different sets
                self._choosable.clear()
            self._choosable[allowed] = rows
        if not len(rows):
            raise NoAction(query_id, None if allowed is None else sorted(allowed))
        return rows

    def blocks(self, queries: Matrix) -> Matrix | None:
        """Return every known action's f_a for each query, shape (m, n, e); None if `static`."""
        if self.query_basis is None or self.static:
            return None
        z = self._short(queries)
        pairs = np.einsum("nv,mz->mnvz", self.sides, z).reshape(
            len(z), len(self.ids), self.action_dim - self.coordinates.shape[1]
        )
        own = np.broadcast_to(self.coordinates, (len(z), *self.coordinates.shape))
        return np.asarray(np.concatenate([own, pairs], axis=2))

    def joint(self, queries: Matrix, rows: Sequence[int]) -> Matrix:
        """Return x = [s_q; f_a] for each query and its action, shape (m, query_dim + action_dim)."""
        parts = [queries, self.coordinates[list(rows)]]
        if not self.static:
            pairs = np.einsum("mv,mz->mvz", self.sides[rows], self._short(queries))
            parts.append(pairs.reshape(len(queries), self.action_dim - self.coordinates.shape[1]))
        return np.concatenate(parts, axis=1)

    def queries(self, pairs: Sequence[tuple[str, Vector]]) -> Matrix:
        """Return the validated embeddings from (id, s_q) pairs as rows, shape (m, query_dim)."""
        out = np.empty((len(pairs), self.settings.query_dim))
        for row, (subject, vector) in zip(out, pairs, strict=True):
            row[:] = checked(subject, vector, self.settings.query_dim, "embedding")
        return out

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays) that `restore` rebuilds this map from exactly."""
        meta: dict[str, Any] = {
            "settings": asdict(self.settings),
            "ids": self.ids,
            "models": self.models,
            "active": self.active,
        }
        arrays = {
            "vectors": self.vectors,
            "coordinates": self.coordinates,
            "basis": self.basis,
            "sides": self.sides,
        }
        if self.anchor:
            meta["scale"] = self.anchor.scale
            arrays |= {"centre": self.anchor.centre, "directions": self.anchor.directions}
        if self.query_basis:
            arrays |= {"offset": self.query_basis.offset, "query_directions": self.query_basis.directions}
        return meta, arrays

    def restore(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore the map saved by `snapshot`."""
        self._take_back(meta, ("ids", "models", "active"))
        self.vectors, self.coordinates = arrays["vectors"], arrays["coordinates"]
        self.basis, self.sides = arrays["basis"], arrays["sides"]
        if "centre" in arrays:
            self.anchor = Anchor(arrays["centre"], meta["scale"], arrays["directions"])
        if "offset" in arrays:
            self.query_basis = QueryBasis(arrays["offset"], arrays["query_directions"])

    def _take_back(self, meta: dict[str, Any], names: Sequence[str]) -> None:
        """Restore attributes, including the ids, from a snapshot's plain values."""
        for name in names:
            setattr(self, name, meta[name])
        self.index = {action_id: i for i, action_id in enumerate(self.ids)}
        self._choosable.clear()

    def _short(self, queries: Matrix) -> Matrix:
        assert self.query_basis is not None
        z = (queries - self.query_basis.offset) @ self.query_basis.directions.T
        return z * self.settings.interaction_scale

    def _register(self, actions: list[ActionVector], units: Matrix) -> None:
        if self.anchor is None:
            centre = units.mean(axis=0)
            _, sizes, directions = np.linalg.svd(units - centre, full_matrices=False)
            spread = float(np.sqrt(np.sum(sizes**2) / len(units)))
            self.anchor = Anchor(
                centre, 1.0 / spread if spread > 1e-9 else 1.0, directions[: self.settings.action_rank]
            )
        self._append(actions)
        if self.settings.action_features == "one-hot":
            self.coordinates = np.eye(len(self.ids))
            self.vectors = self.coordinates
        else:
            if self.settings.action_features == "centred":
                units_in = (units - self.anchor.centre) * self.anchor.scale
            else:
                units_in = units
            self.vectors = np.concatenate([self.vectors, units_in])
            self._span(units_in)
        if self.settings.interactions == "bilinear":
            principal = (units - self.anchor.centre) * self.anchor.scale @ self.anchor.directions.T
            self.sides = principal if not len(self.sides) else np.concatenate([self.sides, principal])
        elif self.settings.interactions == "model":
            order = list(dict.fromkeys(self.models))
            self.sides = np.array([[float(m == name) for name in order] for m in self.models])

    def _append(self, actions: list[ActionVector]) -> None:
        for action in actions:
            self.index[action.action_id] = len(self.ids)
            self.ids.append(action.action_id)
            self.models.append(action.model)
            self.active.append(True)

    def _span(self, rows: Matrix) -> None:
        """Extend the orthonormal basis by Gram-Schmidt, and append coordinates."""
        for vector in rows:
            rest = vector.copy()
            for _ in range(2):
                rest -= self.basis.T @ (self.basis @ rest)
            size = np.linalg.norm(rest)
            if size > SPANNED:
                # If a vector lies nearly inside the span, its remainder is mostly rounding error, so orthogonalise it
                # once more.
                unit = rest / size
                unit -= self.basis.T @ (self.basis @ unit)
                self.basis = np.concatenate([self.basis, unit[None] / np.linalg.norm(unit)])
        self.coordinates = self.vectors @ self.basis.T
