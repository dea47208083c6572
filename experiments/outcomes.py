"""Recorded outcomes, and the world that policies see.

A table, from our own recording or another source, has arrays of shape (samples, questions, arms) and the names of the
questions and arms. An incomplete table is rejected with an error that names the missing cell. A world is a table with
embedded questions, embedded arms, and objectives with the table's own bounds.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from agents.bandit.features import with_counts
from agents.bandit.policy import ActionVector, Objective
from agents.catalogue.descriptions import describe_action
from agents.catalogue.models import NO_VERIFIER, Catalogue
from agents.catalogue.objectives import MODES
from agents.decider.categories import MOST_VALUES
from agents.embedding import Encoder, embed_actions, encoder_id
from schemas.action import Action
from schemas.errors import UniscaleError

Array = npt.NDArray[np.float64]


class OutcomeError(UniscaleError):
    """An outcome table cannot be used. The message names the file, the row, the column and the fix."""


@dataclass(frozen=True)
class Arm:
    """One arm: either one of our actions (model, qp, cp, bs) or any other choice, identified by its id."""

    arm_id: str
    model: str
    qp: int = 1
    cp: int = 1
    bs: int = 1
    description: str = ""


@dataclass(frozen=True)
class QuestionInfo:
    """One question. The text, level and task family are empty if unknown."""

    question_id: str
    text: str
    level: str = ""
    family: str = ""


@dataclass(frozen=True)
class Outcomes:
    """A complete table of outcomes.

    Attributes:
        name: The name to use in titles.
        questions: The Q questions.
        arms: The A arms.
        correct: 1, 0 or a grade in between, shape (samples, Q, A).
        score: V(y*), in the same shape; equal to `correct` if the source has no score.
        log_cost: Natural logarithm of the cost, in the same shape.
        unit: The cost's unit; `eFLOPs` in our recordings.
        extra: Further columns in the same shape, keyed by name.
        dense: Whether `score` comes from a verifier.
    """

    name: str
    questions: tuple[QuestionInfo, ...]
    arms: tuple[Arm, ...]
    correct: Array
    score: Array
    log_cost: Array
    unit: str = "eFLOPs"
    extra: Mapping[str, Array] = field(default_factory=dict)
    dense: bool = True

    def __post_init__(self) -> None:
        """Reject arrays with a wrong shape or with values that are not finite."""
        shape = (self.samples, len(self.questions), len(self.arms))
        for name in ("correct", "score", "log_cost"):
            array = getattr(self, name)
            if array.shape != shape:
                raise OutcomeError(f"{self.name}, {name}: shape {array.shape}, expected {shape}")
            if not np.isfinite(array).all():
                s, q, a = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
                raise OutcomeError(
                    f"{self.name}: no {name} for question {self.questions[q].question_id!r}, arm "
                    f"{self.arms[a].arm_id!r}, sample {s}; complete the table or drop the question"
                )

    @property
    def samples(self) -> int:
        """Return how many times each cell was run."""
        return int(self.correct.shape[0])

    @property
    def cost(self) -> Array:
        """Return the cost in its unit."""
        return np.exp(self.log_cost)

    def bounds(self) -> tuple[float, float]:
        """Return (minimum, maximum) of log C over the whole table, widened if all costs are equal."""
        low, high = float(self.log_cost.min()), float(self.log_cost.max())
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def restrict(self, arms: Sequence[int], name: str | None = None) -> "Outcomes":
        """Return the outcomes for some arms, in the given order."""
        index = list(arms)
        return replace(
            self,
            name=name or self.name,
            arms=tuple(self.arms[i] for i in index),
            correct=self.correct[:, :, index],
            score=self.score[:, :, index],
            log_cost=self.log_cost[:, :, index],
            extra={key: value[:, :, index] for key, value in self.extra.items()},
        )

    def of_questions(self, questions: Sequence[int]) -> "Outcomes":
        """Return the outcomes for some questions, in the given order."""
        index = list(questions)
        return replace(
            self,
            questions=tuple(self.questions[i] for i in index),
            correct=self.correct[:, index],
            score=self.score[:, index],
            log_cost=self.log_cost[:, index],
            extra={key: value[:, index] for key, value in self.extra.items()},
        )


def beside_of(outcomes: Path, kind: str) -> Path:
    """Return the path of the file of some kind that accompanies a table of outcomes.

    >>> beside_of(Path("data/math.parquet"), "latency").as_posix()
    'data/math.latency.json'
    """
    return outcomes.with_name(f"{outcomes.name.split('.')[0]}.{kind}.json")


NUMBERS = (
    "prefill_eflops",
    "decoding_eflops",
    "verifier_eflops",
    "compute_flops",
    "memory_bytes",
    "depth",
    "steps",
    "completed",
    "drafts",
    "tokens",
    "verifier_tokens",
    "seconds",
    "complete",
)


def load_recording(path: Path, *, verifier: str | None = None, early_exit: bool = True) -> Outcomes:
    """Read one of our recordings (`experiments/record/table.py`).

    If a model has no verifier, Score takes the value of Correct for all of them, as in what a learner learns.

    Args:
        path: The Parquet file.
        verifier: The verifier whose runs are to be read; by default, the one in use.
        early_exit: Whether to read the runs with early exit or those without. Runs without it, or with a verifier other
            than the one in use, may cover only some of the questions.

    Raises:
        OutcomeError: The file is not a recording, or a cell is missing or duplicated.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    metadata = table.schema.metadata or {}
    if b"uniscale.questions" not in metadata:
        raise OutcomeError(f"{path}: is not one of our recordings; give a --mapping for other tables")
    asked = [
        QuestionInfo(entry["question_id"], entry["text"], entry["level"], entry.get("family", ""))
        for entry in orjson.loads(metadata[b"uniscale.questions"])
    ]
    settings = orjson.loads(metadata[b"uniscale.settings"])
    in_use = (*settings["verifiers"], NO_VERIFIER)[0]
    chosen = verifier or in_use
    columns = {
        name: table.column(name).to_pylist() for name in ("question", "model", "qp", "cp", "bs", "sample")
    }
    verifiers = np.array(table.column("verifier").to_pylist())
    unscored = verifiers == NO_VERIFIER  # without a verifier there is no early exit
    exits = np.array(table.column("early_exit").to_pylist()) == early_exit
    keep = (verifiers == chosen) & (exits | unscored)
    if not keep.any():
        raise OutcomeError(f"{path}: no runs of verifier {chosen!r} with early_exit {early_exit}")
    keep |= unscored
    cells = [tuple(columns[n][i] for n in columns) for i in np.flatnonzero(keep)]
    if not early_exit or chosen != in_use:
        run_so = {cell[0] for cell in cells}
        asked = [each for each in asked if each.question_id in run_so]
    order = {model: at for at, model in enumerate(settings["models"])}
    keys = sorted({cell[1:5] for cell in cells}, key=lambda k: (order[k[0]], *k[1:]))
    arms = [Arm(f"{m}/{qp}/{cp}/{bs}", m, qp, cp, bs) for m, qp, cp, bs in keys]
    at_arm = {key: at for at, key in enumerate(keys)}
    at_question = {each.question_id: at for at, each in enumerate(asked)}
    samples = max(cell[5] for cell in cells) + 1
    places = np.array([(cell[5], at_question[cell[0]], at_arm[cell[1:5]]) for cell in cells])
    seen = np.zeros((samples, len(asked), len(arms)), dtype=int)
    np.add.at(seen, tuple(places.T), 1)
    if (seen != 1).any():
        s, q, a = (int(i) for i in np.argwhere(seen != 1)[0])
        raise OutcomeError(
            f"{path}: {int(seen[s, q, a])} rows for question {asked[q].question_id!r}, arm {arms[a].arm_id!r}, "
            f"sample {s}; each cell has one: finish the recording"
        )

    def column(name: str) -> Array:
        values = table.column(name).to_numpy(zero_copy_only=False)[keep]
        out = np.empty(seen.shape)
        out[tuple(places.T)] = np.array(values, dtype=np.float64)
        return out

    return Outcomes(
        name=path.stem,
        questions=tuple(asked),
        arms=tuple(arms),
        correct=column("correct"),
        score=column("correct" if unscored.any() else "score"),
        log_cost=np.log(column("eflops")),
        extra={name: column(name) for name in NUMBERS},
        dense=not unscored.any(),
    )


@dataclass(frozen=True)
class BanditWorld:
    """Outcomes as a bandit problem.

    Attributes:
        outcomes: The outcomes of the available arms.
        queries: s_q, shape (Q, d).
        vectors: One vector per arm, in the outcomes' order.
        bounds: (minimum, maximum) of log C over the whole original table, shared by all scenarios.
        texts: The embedded texts and the encoder's name; together with the outcomes, they identify the world.
        categories: Each question's categories, as `key=value`; empty if no question has any.
    """

    outcomes: Outcomes
    queries: Array
    vectors: tuple[ActionVector, ...]
    bounds: tuple[float, float]
    texts: str = ""
    categories: tuple[tuple[str, ...], ...] = ()

    def restrict(self, arms: Sequence[int], name: str) -> "BanditWorld":
        """Return the world with only some arms, and the same bounds."""
        return replace(
            self,
            outcomes=self.outcomes.restrict(arms, name),
            vectors=tuple(self.vectors[i] for i in arms),
        )

    def of_questions(self, questions: Sequence[int]) -> "BanditWorld":
        """Return the world with only some questions, and the same bounds."""
        index = list(questions)
        shown = tuple(self.categories[i] for i in index) if self.categories else ()
        return replace(
            self,
            outcomes=self.outcomes.of_questions(index),
            queries=self.queries[index],
            categories=shown,
        )

    def shown(self, question: int) -> tuple[str, ...]:
        """Return a question's categories."""
        return self.categories[question] if self.categories else ()

    def with_context(self, column: str, history: Sequence[int]) -> "BanditWorld":
        """Return the world with a category for each question.

        Args:
            column: `family` or `level`, whose most frequent values on history are the listed categories; or
                `random:N`, for N arbitrary categories.
            history: Indices of the history questions.

        Raises:
            OutcomeError: There is no such column, or it is empty.
        """
        asked = self.outcomes.questions
        name, _, count = column.partition(":")
        if name == "random" and count.isdigit() and int(count) > 0:
            values = [str(_drawn(each.question_id, int(count))) for each in asked]
        elif column in ("family", "level"):
            values = [getattr(each, column) for each in asked]
        else:
            raise OutcomeError(f"--context {column}: is unknown; give family, level or random:N")
        often = Counter(values[q] for q in history if values[q])
        if not often:
            raise OutcomeError(f"--context {column}: no question has one; name the column in the mapping")
        listed = {value for value, _ in often.most_common(MOST_VALUES)}
        shown = tuple((f"{name}={value}",) if value in listed else () for value in values)
        return replace(self, categories=shown)

    def lean(self) -> "BanditWorld":
        """Return the world without the extra columns, which no policy reads, to send less to worker processes."""
        return replace(self, outcomes=replace(self.outcomes, extra={}))

    def with_counts(self) -> "BanditWorld":
        """Return the same questions with surface counts appended to their embeddings, for policies that use them."""
        texts = [each.text for each in self.outcomes.questions]
        return replace(self, queries=with_counts(self.queries, texts))

    def spanned(self) -> "BanditWorld":
        """Return the same questions in the coordinates of the subspace they span, if it has fewer dimensions.

        Lengths and angles stay the same, and so do the choices of linear and nearest-neighbour policies. A learner on
        142 questions then inverts a matrix with 142 columns instead of the encoder's 384.
        """
        if len(self.queries) >= self.queries.shape[1]:
            return self
        u, s, _ = np.linalg.svd(self.queries, full_matrices=False)
        return replace(self, queries=u * s)

    def objective(self, mode: str, *, dense: bool = True) -> Objective:
        """Return a mode's objective; without dense feedback, correctness also gets the score's weight."""
        w = MODES[mode]
        low, high = self.bounds
        correct, score = (w.correct, w.score) if dense else (w.correct + w.score, 0.0)
        return Objective(correct, score, w.cost, low, high)

    def rewards(self, objective: Objective) -> Array:
        """Return the reward of every cell (Eq. 4, minus the price of linear cost, if any), shape (samples, Q, A)."""
        o, c = self.outcomes, objective.coefficients
        earned = np.asarray(c[0] * o.correct + c[1] * o.score + c[2] * o.log_cost + c[3])
        return earned - objective.shadow_price * o.cost if objective.shadow_price else earned


def build_world(
    outcomes: Outcomes, encoder: Encoder, catalogue: Catalogue | None = None, cache: Path | None = None
) -> BanditWorld:
    """Embed questions and arms.

    Args:
        outcomes: The whole table.
        encoder: Encodes questions and arms.
        catalogue: Describes our own arms (App. B.2); other arms are described by their own description or id.
        cache: The folder to cache vectors in; None for no cache.
    """
    queries = embed_actions(encoder, [each.text for each in outcomes.questions], cache)
    described = [_described(arm, catalogue) for arm in outcomes.arms]
    arms = embed_actions(encoder, described, cache)
    known = {m.name: (float(m.parameters), m.base) for m in catalogue.models} if catalogue else {}
    vectors = tuple(
        ActionVector(arm.arm_id, arm.model, row.astype(np.float64), *known.get(arm.model, ()))
        for arm, row in zip(outcomes.arms, arms, strict=True)
    )
    texts = "\n".join([encoder_id(encoder), *(each.text for each in outcomes.questions), *described])
    return BanditWorld(outcomes, queries.astype(np.float64), vectors, outcomes.bounds(), texts)


def _drawn(question_id: str, count: int) -> int:
    """Return an arbitrary category for a question, derived from its id so that it is stable across runs."""
    return int.from_bytes(hashlib.sha256(f"random/{question_id}".encode()).digest()[:8], "big") % count


def _described(arm: Arm, catalogue: Catalogue | None) -> str:
    if catalogue is not None and arm.model in catalogue.model_names:
        return describe_action(Action(model=arm.model, qp=arm.qp, cp=arm.cp, bs=arm.bs), catalogue)
    return arm.description or arm.arm_id
