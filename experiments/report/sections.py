"""What the report shows, in its order: each section's tables and figures, and the paper's numbers beside them.

What the tables hold and what they show is said by hand, in docs/results/README.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from experiments.report import paper_numbers as paper
from experiments.trials.scenarios import MODES


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        title: Its heading.
        tables: Keys of tables.json.
        figures: Names of PNG files.
    """

    title: str
    tables: tuple[str, ...]
    figures: tuple[str, ...] = ()


SECTIONS: Final = (
    Section("Main table", ("main",), tuple(f"regret-{mode}" for mode in MODES)),
    Section("Accuracy and cost of the actions", ("outcomes",), ("accuracy-cost",)),
    Section("The joint space against routing and against TTS", ("joint_frontier",), ("joint-frontier",)),
    Section("Cost at equal accuracy", ("frontier", "frontier_of"), ("frontier",)),
    Section("The pacer: keeping to a mean cost", ("pacer",)),
    Section("Four reward modes", ("pareto",), ("pareto",)),
    Section("BEST-Route*", ("best_route",)),
    Section("Action semantics against one-hot", ("semantics",), ("semantics",)),
    Section("Exploration factor α", ("alpha",), ("alpha",)),
    Section("Dense feedback against binary correctness", ("dense_feedback",)),
    Section("Drift at round 51", ("drifts",), ("drifts",)),
    Section("Early exit", ("early_exit", "early_exit_replayed", "early_exit_by_width"), ("early_exit",)),
    Section("Latency by component", ("latency", "latency_run")),
    Section("The verifier", ("verifiers",)),
    Section("Verifier scores of right and wrong answers", ("verifier_scores",), ("verifier_scores",)),
    Section("Second task", ("second_task", "second_task_frontier")),
    Section("Readings of the paper, run both ways", ("readings",)),
    Section("Against the best fixed arm and the best contextual policy", ("versus_best",)),
    Section("Our own policies", ("own_policies",)),
    Section("A change of objective: what has to be relearned", ("shared_objective",)),
    Section("Feedback as production has it", ("feedback",)),
    Section("Cold start", ("cold_start",)),
    Section("Long streams with drift in traffic", ("streams",)),
    Section("Off-policy estimates against the truth", ("off_policy",)),
)

PRINTED: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "best_route": (paper.BEST_ROUTE, "reward, accuracy %, tera-eFLOPs"),
    "semantics": (paper.SEMANTICS, "regret at 130, at 210, accuracy %, tera-eFLOPs"),
    "dense_feedback": (paper.DENSE, "accuracy %, tera-eFLOPs"),
    "drifts": (paper.DRIFTS, "regret at 130, at 210, accuracy %, tera-eFLOPs"),
    "early_exit": ({"overall": paper.EARLY_EXIT}, "accuracy %, TFLOPs, TB, tera-eFLOPs"),
    "latency": (paper.LATENCY, "seconds, percent"),
    "second_task": ({"cost_sensitive": paper.CODING}, "reward, accuracy %, tera-eFLOPs"),
    "verifier_scores": (
        {"answers": paper.SCORES_OF, "measures": tuple(paper.SCORES.values())},
        "mean, standard deviation; pooled AUROC, point-biserial",
    ),
}


def printed_verifiers(names: list[str]) -> Mapping[str, Any]:
    """Return the paper's numbers for verifiers: the one in use is its smaller, the other its larger."""
    return {
        name: {
            mode: {policy: cells[at] for policy, cells in policies.items()}
            for mode, policies in paper.VERIFIERS.items()
        }
        for name, at in zip(names, (1, 0), strict=False)
    }
