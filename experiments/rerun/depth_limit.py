"""The depth limit read both ways (§3.3): a path cut off at it stays out of P_done, or counts as completed.

H_max stops all that lives in one step, so a search that met it ends there under either reading, with the same
drafts and the same cost; only the answer may be another. Those searches are run again: all of them or, where early
exit leaves many, as many as asked for, drawn at random.

Taken for granted: no path filled its model's context, which would cut it off too.
"""

import asyncio
import hashlib
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agents.executor.early_exit import h_max
from agents.executor.rules import SearchRules, limits
from agents.space.models import Sampling
from experiments.outcomes.table import Outcomes
from experiments.record.searches import Found, Memory, Variant, search
from experiments.record.table import SCHEMA, settings_of
from experiments.rerun.reopen import Reopened, action_of
from experiments.trials.runs import TERA, summed, tidy
from schemas.action import Action

READINGS = ("kept_out", "completed")
IN_FLIGHT = 16  # searches at a time
NORMAL_95 = 1.96
Cell = tuple[str, str, int]  # question, arm, sample


@dataclass(frozen=True)
class DepthLimit:
    """What is known of searches that met the limit.

    Attributes:
        settings: Of the recording: sampling by model, η.
        again: By early exit and cell: correct, score and eFLOPs under either reading; empty where not run.
        refused: Why a file that is there is not used.
    """

    settings: Mapping[str, Any]
    again: Mapping[bool, Mapping[Cell, Mapping[str, Any]]] = field(default_factory=dict)
    refused: str = ""

    def table(self, o: Outcomes, early_exit: bool) -> dict[str, Any]:
        """Return how many searches met the limit, by model, and accuracy, score and cost under both readings.

        Where only some were run again: the estimated change of accuracy, with an interval over questions. Where none
        was: the most that it could differ by.
        """
        at_limit = met(o, self.settings, early_exit)
        models = list(dict.fromkeys(arm.model for arm in o.arms))
        table: dict[str, Any] = {"met": {}}
        for name in ("all models", *models):
            arms = [i for i, arm in enumerate(o.arms) if name in ("all models", arm.model)]
            part = at_limit[:, :, arms]
            table["met"][name] = {
                "searches": int(part.size),
                "met_limit": int(part.sum()),
                "met_percent": summed((100.0 * part).mean(axis=(0, 2)).tolist()),
            }
        rows = self.again.get(early_exit, {})
        places = [(cell, (int(s), int(q), int(a))) for cell, s, q, a in _cells(o, at_limit)]
        found = [(rows[cell], place) for cell, place in places if cell in rows]
        if not found:
            table["most_that_accuracy_could_differ"] = {"points": 100.0 * float(at_limit.mean())}
            return table
        table["run_again"] = {
            "searches": len(found),
            "as_recorded": sum(row["reproduced"] for row, _ in found),
            "other_answer": sum(row["completed"] != row["kept_out"] for row, _ in found),
            "right_instead_of_wrong": sum(
                row["completed"]["correct"] > row["kept_out"]["correct"] for row, _ in found
            ),
            "wrong_instead_of_right": sum(
                row["completed"]["correct"] < row["kept_out"]["correct"] for row, _ in found
            ),
        }
        if len(found) == len(places):
            table["over_all_searches"] = {name: _over_all(o, name, found) for name in READINGS}
        else:
            table["estimated_change"] = {"points": _change(found, float(at_limit.mean()))}
        return table


def met(o: Outcomes, settings: Mapping[str, Any], early_exit: bool) -> npt.NDArray[np.bool_]:
    """Return which searches went on to their limit, shape (samples, Q, A): no other can hold a path cut off.

    Args:
        o: With `steps`, `depth` and `complete`.
        settings: Of the recording.
        early_exit: Whether they were run with it: H_max then follows the answer's depth.
    """
    rules = SearchRules(eta=settings["eta"], early_exit=early_exit)
    found = np.zeros(o.correct.shape, dtype=bool)
    for a, arm in enumerate(o.arms):
        bounds = limits(msgspec.convert(settings["sampling"][arm.model], Sampling), rules)
        depth, whole = o.extra["depth"][:, :, a].astype(int), o.extra["complete"][:, :, a] > 0
        limit = np.array([h_max(bounds, d) for d in range(int(depth.max()) + 1)])[depth]
        found[:, :, a] = ~whole | (o.extra["steps"][:, :, a] >= limit)
    return found


async def run_again(
    o: Outcomes,
    early_exit: bool,
    recording: Reopened,
    most: int | None = None,
    done: Callable[[], Any] = lambda: None,
    known: Mapping[Cell, Mapping[str, Any]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Run searches that met the limit again, under both readings; the second takes the drafts of the first.

    Args:
        o: The recording's outcomes under the verifier in use.
        early_exit: Whether with it.
        recording: What they run on.
        most: How many, drawn with a fixed seed; all of them by default.
        done: Called after each.
        known: What is returned as it is, of searches that were run again before.
    """
    bench, variant = recording.bench, Variant(recording.verifier, early_exit)
    room = asyncio.Semaphore(IN_FLIGHT)
    literal = replace(bench, rules=replace(bench.rules, cut_completes=True))

    async def one(cell: Cell, s: int, q: int, a: int) -> dict[str, Any]:
        if cell in known:
            done()
            return dict(known[cell])
        question, arm, memory = recording.questions[cell[0]], o.arms[a], Memory()
        told = (question, action_of(arm), variant, recording.search_id(question, arm, s))
        async with room:
            kept, _ = await search(*told, bench, memory)
            completed, _ = await search(*told, literal, memory)
        done()
        recorded = (bool(o.correct[s, q, a]), float(o.score[s, q, a]), float(o.cost[s, q, a]))
        again = (kept.correct, kept.score, kept.eflops)
        return {
            "question": cell[0],
            "arm": cell[1],
            "sample": s,
            "early_exit": early_exit,
            "reproduced": all(math.isclose(x, y, rel_tol=1e-4) for x, y in zip(recorded, again, strict=True)),
            "kept_out": _told(kept),
            "completed": _told(completed),
        }

    cells = _cells(o, met(o, recording.settings, early_exit))
    if most is not None and most < len(cells):
        cells = [cells[at] for at in sorted(random.Random(0).sample(range(len(cells)), most))]
    return await asyncio.gather(*(one(*each) for each in cells))


def save(path: Path, recording: Path, rows: list[dict[str, Any]]) -> None:
    """Write what was run again, a search a line, with the digest of what the recording has of these searches."""
    lines = b",\n".join(orjson.dumps(row) for row in rows)
    path.write_bytes(
        f'{{"recording": "{digest(recording, rows)}", "searches": [\n'.encode() + lines + b"\n]}\n"
    )


def load(path: Path, recording: Path, settings: Mapping[str, Any]) -> DepthLimit:
    """Return what a file holds of a recording; nothing where it is not there or of another recording."""
    if not path.is_file():
        return DepthLimit(settings, refused=f"{path} is not there")
    told = orjson.loads(path.read_bytes())
    if told["recording"] != digest(recording, told["searches"]):
        return DepthLimit(settings, refused=f"{path} is of another recording")
    again: dict[bool, dict[Cell, Mapping[str, Any]]] = {True: {}, False: {}}
    for row in told["searches"]:
        again[row["early_exit"]][row["question"], row["arm"], row["sample"]] = row
    return DepthLimit(settings, again)


def digest(recording: Path, searches: Iterable[Mapping[str, Any]]) -> str:
    """Return a digest of a recording's settings and of the outcomes that it has of some searches.

    Searches that are added to the recording later do not change it.
    """
    settings = settings_of(recording)
    in_use = settings.pop("verifiers")[0]
    found = hashlib.sha256(orjson.dumps([in_use, settings], option=orjson.OPT_SORT_KEYS))
    table = pq.read_table(recording, columns=[name for name in SCHEMA.names if name != "seconds"])
    outcomes = {
        (row["question"], _action(row).id, row["sample"], row["early_exit"]): row
        for row in table.filter(pc.field("verifier") == in_use).to_pylist()
    }
    for each in searches:
        cell = (each["question"], each["arm"], each["sample"], each["early_exit"])
        found.update(orjson.dumps(outcomes.get(cell), option=orjson.OPT_SORT_KEYS))
    return found.hexdigest()[:16]


def _action(row: Mapping[str, Any]) -> Action:
    return Action(model=row["model"], qp=row["qp"], cp=row["cp"], bs=row["bs"])


def _cells(o: Outcomes, chosen: npt.NDArray[np.bool_]) -> list[tuple[Cell, int, int, int]]:
    return [
        ((o.questions[q].question_id, o.arms[a].arm_id, int(s)), int(s), int(q), int(a))
        for s, q, a in np.argwhere(chosen)
    ]


def _change(found: list[tuple[Mapping[str, Any], tuple[int, int, int]]], share: float) -> dict[str, float]:
    """Return by how many points paths that count as completed change accuracy over all searches.

    Args:
        found: Searches drawn among those that met the limit.
        share: Of these among all searches.
    """
    gains: dict[int, list[float]] = defaultdict(list)
    for row, (_, question, _) in found:
        gains[question].append(row["completed"]["correct"] - row["kept_out"]["correct"])
    mean = sum(map(sum, gains.values())) / len(found)
    # Searches of a question are alike: it is questions that vary independently.
    spread = math.sqrt(sum(sum(gain - mean for gain in each) ** 2 for each in gains.values())) / len(found)
    whole = 100.0 * share
    return tidy(
        {
            "mean": whole * mean,
            "low": whole * (mean - NORMAL_95 * spread),
            "high": whole * (mean + NORMAL_95 * spread),
        }
    )


def _over_all(
    o: Outcomes, reading: str, found: list[tuple[Mapping[str, Any], tuple[int, int, int]]]
) -> dict[str, dict[str, float]]:
    correct, score, cost = o.correct.copy(), o.score.copy(), o.cost.copy()
    for row, place in found:
        correct[place], score[place], cost[place] = (
            row[reading][name] for name in ("correct", "score", "eflops")
        )
    arrays = {"accuracy": 100 * correct, "score": score, "eflops": cost / TERA}
    return {name: summed(array.mean(axis=(0, 2)).tolist()) for name, array in arrays.items()}


def _told(found: Found) -> dict[str, Any]:
    return {
        "correct": int(found.correct),
        "score": round(found.score, 7),
        "eflops": float(f"{found.eflops:.7g}"),
    }
