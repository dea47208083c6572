"""Describes actions as texts, which are then embedded (App. B.2).

Strings, key order and separators follow the paper's two examples; a golden file contains all 168 texts. Our readings
where the paper is silent or contradicts itself:

- `Resource_Impact` is min(QP·CP, 64), as in the formula. The example (4, 16, 4) prints 16x, which is QP·CP/BS.
- `Strategy_Mode` depends on QP·CP/BS. This makes the example Balanced-Search, as printed, and the largest searches
  Deep-Reasoning.
- LiveBench is grouped as in the example (`GeneralMixed`), not as in the accompanying text (expert reasoning).
- The two halves are joined with " | ", like the parts within each half.
"""

from collections.abc import Iterable

from agents.catalogue.models import Catalogue, Model, size_label
from schemas.action import Action

SEPARATOR = " | "
MAX_IMPACT = 64
# Largest QP·CP/BS of the first two modes. Of the 28 pairs, 9 are fast, 13 are balanced and 6 are deep.
FAST_UP_TO, BALANCED_UP_TO = 4, 16
PRIORITIES = {
    "Fast-Inference": "Latency-First",
    "Balanced-Search": "Balanced-Efficiency",
    "Deep-Reasoning": "Accuracy-First",
}


def describe_model(model: Model) -> str:
    """Return the capability-oriented half: the model's name, its size, and each of its anchors.

    An unknown size or benchmark score is left out, key included, rather than filled with a default.
    """
    parts = [f"Model: {model.name}"]
    if size := model.params or (size_label(model.parameters) if model.parameters else ""):
        parts.append(f"Params: {size}")
    parts += [f"{anchor.label}: {anchor.score:.2f}" for anchor in model.anchors]
    return SEPARATOR.join(parts)


def describe_strategy(qp: int, cp: int, bs: int) -> str:
    """Return the functional half: the parameters of the search, and descriptions derived from them.

    >>> describe_strategy(1, 1, 1).split(" | ", 5)[-1]
    'Strategy_Mode: Fast-Inference | Optimization_Priority: Latency-First'
    """
    mode = strategy_mode(qp, cp, bs)
    return SEPARATOR.join(
        (
            f"Parallel_Trees(QP): {qp}",
            f"Path_Candidates(CP): {cp}",
            f"Beam_Width(BS): {bs}",
            f"Expansions_per_Step: {cp / bs:g}",
            f"Resource_Impact: {min(qp * cp, MAX_IMPACT)}x",
            f"Strategy_Mode: {mode}",
            f"Optimization_Priority: {PRIORITIES[mode]}",
        )
    )


def strategy_mode(qp: int, cp: int, bs: int) -> str:
    """Return the mode of a search. It depends on QP·CP/BS, the number of drafts in each step after the first."""
    drafts = qp * cp / bs
    if drafts <= FAST_UP_TO:
        return "Fast-Inference"
    return "Balanced-Search" if drafts <= BALANCED_UP_TO else "Deep-Reasoning"


def describe_action(action: Action, catalogue: Catalogue) -> str:
    """Return the text of an action, ready to be embedded.

    Raises:
        CatalogueError: The catalogue does not contain its model.
    """
    model = describe_model(catalogue.model(action.model))
    return SEPARATOR.join((model, describe_strategy(action.qp, action.cp, action.bs)))


def describe_actions(actions: Iterable[Action], catalogue: Catalogue) -> tuple[str, ...]:
    """Return the texts of actions, in their order."""
    return tuple(describe_action(action, catalogue) for action in actions)
