"""Recorded outcomes: what every arm did on every question, some number of times.

Whatever it came from, our own recording or somebody's CSV, it is four arrays of shape (samples, questions,
arms) and the names of both axes. Tables that are not whole are refused with the row and column named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from schemas.errors import UniscaleError

Array = npt.NDArray[np.float64]


class OutcomeError(UniscaleError):
    """An outcome table cannot be used. The message names file, row, column and the fix."""


@dataclass(frozen=True)
class Arm:
    """One arm: an action of ours (model, qp, cp, bs), or anybody's choice, known by its id."""

    arm_id: str
    model: str
    qp: int = 1
    cp: int = 1
    bs: int = 1
    description: str = ""


@dataclass(frozen=True)
class Asked:
    """One question: its text is what policies see, where there is one; of a family of tasks, where they are told."""

    question_id: str
    text: str
    level: str = ""
    family: str = ""


@dataclass(frozen=True)
class Outcomes:
    """A whole table of outcomes.

    Attributes:
        name: For titles.
        questions: Q of them.
        arms: A of them.
        correct: 1, 0 or a grade between, shape (samples, Q, A).
        score: V(y*); equal to `correct` where the source has no score.
        log_cost: Natural logarithm of the cost.
        unit: Of the cost: `eFLOPs` for ours.
        extra: Further columns of the same shape, by name.
        dense: Whether `score` is a verifier's.
    """

    name: str
    questions: tuple[Asked, ...]
    arms: tuple[Arm, ...]
    correct: Array
    score: Array
    log_cost: Array
    unit: str = "eFLOPs"
    extra: Mapping[str, Array] = field(default_factory=dict)
    dense: bool = True

    def __post_init__(self) -> None:
        """Refuse arrays of another shape, or that hold what is not a number."""
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
        """Return how often each cell was run."""
        return int(self.correct.shape[0])

    @property
    def cost(self) -> Array:
        """Return the cost in its unit."""
        return np.exp(self.log_cost)

    def bounds(self) -> tuple[float, float]:
        """Return (minimum, maximum) of log C over the whole table, widened where all costs are equal."""
        low, high = float(self.log_cost.min()), float(self.log_cost.max())
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def restrict(self, arms: Sequence[int], name: str | None = None) -> "Outcomes":
        """Return the outcomes of some arms, in the order given."""
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
        """Return the outcomes of some questions, in the order given."""
        index = list(questions)
        return replace(
            self,
            questions=tuple(self.questions[i] for i in index),
            correct=self.correct[:, index],
            score=self.score[:, index],
            log_cost=self.log_cost[:, index],
            extra={key: value[:, index] for key, value in self.extra.items()},
        )


NUMBERS = (
    "prefill_eflops", "decoding_eflops", "verifier_eflops", "compute_flops", "memory_bytes", "depth", "steps",
    "completed", "drafts", "tokens", "verifier_tokens", "seconds", "complete",
)  # fmt: skip


def load_recording(path: Path, *, verifier: str | None = None, early_exit: bool = True) -> Outcomes:
    """Read a recording of ours (`experiments/record/table.py`).

    Args:
        path: The Parquet file.
        verifier: Which verifier's runs; the one in use by default.
        early_exit: Which runs. Those without it, and those under another verifier than the one in use, are of the
            questions that were run so.

    Raises:
        OutcomeError: not a recording, or a cell is missing or twice there.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    metadata = table.schema.metadata or {}
    if b"uniscale.questions" not in metadata:
        raise OutcomeError(f"{path}: is no recording of ours; give a --mapping for other tables")
    asked = [
        Asked(entry["question_id"], entry["text"], entry["level"], entry.get("family", ""))
        for entry in orjson.loads(metadata[b"uniscale.questions"])
    ]
    settings = orjson.loads(metadata[b"uniscale.settings"])
    chosen = verifier or settings["verifiers"][0]
    columns = {
        name: table.column(name).to_pylist() for name in ("question", "model", "qp", "cp", "bs", "sample")
    }
    keep = np.array(
        [
            v == chosen and e is early_exit
            for v, e in zip(
                table.column("verifier").to_pylist(), table.column("early_exit").to_pylist(), strict=True
            )
        ]
    )
    if not keep.any():
        raise OutcomeError(f"{path}: no runs of verifier {chosen!r} with early_exit {early_exit}")
    cells = [tuple(columns[n][i] for n in columns) for i in np.flatnonzero(keep)]
    if not early_exit or chosen != settings["verifiers"][0]:
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
        score=column("score"),
        log_cost=np.log(column("eflops")),
        extra={name: column(name) for name in NUMBERS},
    )
