"""The lab's commands in a test, a table of outcomes for them, and small worlds in which the truth is known."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from agents.bandit.policy import ActionVector
from experiments.__main__ import cli
from experiments.outcomes import Arm, BanditWorld, Outcomes, QuestionInfo


def lab(*words: object, status: int = 0) -> str:
    """Run `python -m experiments` with these words; return what it says, once it has ended with the status."""
    ran = CliRunner().invoke(cli, [str(word) for word in words])
    assert ran.exit_code == status, ran.output
    return ran.output


def outcome_table(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write a table of one row per question and arm; return the words by which a command reads it.

    Args:
        folder: Where it lies, with its mapping and the vectors of its texts.
        rows: Their question, text, arm, correct and cost, and a score if all have one.
    """
    (folder / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = "".join(f"{name}: {name}\n" for name in rows[0])
    (folder / "mapping.yaml").write_text(f"name: made\nunit: USD\n{columns}")
    files = {"outcomes": "table.jsonl", "mapping": "mapping.yaml", "cache": "vectors"}
    return [word for option, name in files.items() for word in (f"--{option}", str(folder / name))]


def made_world(
    arms: Sequence[Arm],
    correct: np.ndarray,
    log_cost: np.ndarray,
    queries: np.ndarray,
    *,
    score: np.ndarray | None = None,
    asked: Sequence[QuestionInfo] = (),
    vectors: np.ndarray | None = None,
    sizes: Sequence[float] = (),
) -> BanditWorld:
    """Return a world of drawn outcomes.

    Args:
        arms: A of them.
        correct: Shape (samples, Q, A).
        log_cost: Natural logarithm of the cost, the same shape.
        queries: Shape (Q, d).
        score: The same shape as `correct`; what is correct if None.
        asked: The Q questions; without texts if empty.
        vectors: Of the arms, shape (A, e); a direction each if None.
        sizes: Parameters of each arm's model; unknown if empty.
    """
    asked = asked or [QuestionInfo(f"q{i}", "") for i in range(len(queries))]
    outcomes = Outcomes(
        "made", tuple(asked), tuple(arms), correct, correct if score is None else score, log_cost
    )
    rows, known = np.eye(len(arms)) if vectors is None else vectors, sizes or [0.0] * len(arms)
    offered = (
        ActionVector(a.arm_id, a.model, row, size) for a, row, size in zip(arms, rows, known, strict=True)
    )
    return BanditWorld(outcomes, queries, tuple(offered), outcomes.bounds())
