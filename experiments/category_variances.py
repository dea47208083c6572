"""Chooses the usual variances of categories on halves of history. Large ones fit noise, and small ones learn slowly.

All of them are multiplied by the same factor. Each factor is tried on both halves of each table's history, with
categories that may help and with arbitrary ones. No live questions are used (`CRITERIA.md`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from agents.bandit.variances import USUAL
from experiments.contenders import Usual
from experiments.frontier import PLAYERS, WITH_CONTEXT, Terms, frontier
from experiments.outcomes import BanditWorld
from experiments.runs import Scope

FACTORS: Final = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)
NOISE: Final = "random:12"
CONTEXTS: Final = ("family", NOISE)
AT_MOST: Final = 1.01
"""Maximum mean cost with arbitrary categories, relative to the cost with the text alone."""

ROW: Final = "default_with_prior"
CELL: Final = ("table", "context", "half", "factor")


def scaled(factor: float) -> Usual:
    """Return the usual variances as shipped, but with those of categories multiplied by a factor."""
    return {
        name: (of[0] * factor, of[1] * factor) if name.endswith("category") else of
        for name, of in USUAL.items()
    }


def tried(
    world: BanditWorld, table: str, scope: Scope, terms: Terms, known: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the cost with categories, relative to the text alone, for each factor, half and kind of category.

    Args:
        world: The table's world.
        table: The table's name.
        scope: How much to run; its `more_seeds` determine the orders.
        terms: Prices and batch.
        known: Rows from earlier runs, which are skipped.
    """
    done = {tuple(row[name] for name in CELL) for row in known}
    for cell in product([table], CONTEXTS, (0, 1), FACTORS):
        if cell in done:
            continue
        _, context, half, factor = cell
        own = replace(terms, half=half, context=context, usual=scaled(factor))
        tables = frontier(world, scope, {ROW: PLAYERS[ROW]}, own).tables
        ratio = tables["against_text_alone"][ROW + WITH_CONTEXT]["cost_ratio"]
        yield dict(zip(CELL, cell, strict=True)) | {"cost_ratio": None if ratio is None else ratio["mean"]}


def chosen(rows: Sequence[Mapping[str, Any]]) -> tuple[float, dict[float, dict[str, float]]]:
    """Return the factor chosen by the criterion, and each factor's mean ratios by context.

    A factor is allowed if its mean ratio with arbitrary categories is at most `AT_MOST`. If no factor meets this limit,
    the one with the lowest such ratio is allowed. Among the allowed factors, the choice is the one with the lowest mean
    ratio with categories that may help. Means are geometric, over tables and halves where every factor has a ratio.
    """
    cells: dict[tuple[Any, ...], dict[float, float]] = {}
    for row in rows:
        if row["cost_ratio"] is not None:
            cell = (row["table"], row["context"], row["half"])
            cells.setdefault(cell, {})[row["factor"]] = row["cost_ratio"]
    factors = sorted({row["factor"] for row in rows})
    whole = {cell: of for cell, of in cells.items() if len(of) == len(factors)}
    means = {
        factor: {
            name: float(
                np.exp(np.mean([np.log(of[factor]) for cell, of in whole.items() if cell[1] == name]))
            )
            for name in CONTEXTS
        }
        for factor in factors
    }
    limit = max(AT_MOST, min(of[NOISE] for of in means.values()))
    allowed = [factor for factor in factors if means[factor][NOISE] <= limit]
    return min(allowed, key=lambda factor: means[factor][CONTEXTS[0]]), means
