"""Tests whether eFLOPs rank and weigh configurations as seconds on a GPU do, and at which batch size.

`gpu_timing` measures the seconds; here they are compared with the same searches' cost in eFLOPs (App. D.3), as ratios
to one sample from the smallest model. A search reads a prompt of 256 tokens and generates n samples of 512; it is not
verified. Its seconds are those for the prompt plus 512 steps with n in the batch at context 512, the mean of 256 to
767. On a busy server other queries fill the batch, and each token is charged its share of a step.

Criteria, written down before the first measurement: two costs are equal if their ratios are within a factor of 1.25 of
each other, and roughly equal within a factor of 2. They rank alike if 95 % of the pairs are in the same order, ignoring
pairs within 5 %. A model is considered limited by memory, and not by its many small kernels, if a step at batch 1 reads
the weights at 60 % or more of a copy's bandwidth. A figure whose repetitions spread by more than 5 % is marked.

    python -m bench gpu
    python -m bench gpu --report docs/results/gpu-h100.json    # the tables of an earlier measurement
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from agents.catalogue import Architecture, search_cost
from agents.catalogue.file import load_catalogue
from agents.catalogue.search_cost import INTENSITY, decode_step
from bench import gpu_timing
from bench.gpu_timing import QWEN3
from streams.commit import commit_of

ROOT: Final = Path(__file__).parents[1]
SAMPLES: Final = (1, 4, 16, 64)
PROMPT: Final = 256
ANSWER: Final = 512
CONTEXT: Final = 512
LONG: Final = 2048
BUSY: Final = 64
"""The batch size on a busy server, where other queries fill the batch."""

EQUAL: Final = 1.25
ROUGHLY: Final = 2.0
SAME: Final = 1.05
LIMITED_BY_MEMORY: Final = 0.6
NOISY: Final = 0.05


class GPUPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of the measurement.

    Attributes:
        models: Names in the catalogue `qwen3`, the smallest first.
        batches: The numbers of sequences to decode together.
        repetitions: The number of timed repetitions for each figure.
    """

    models: tuple[str, ...] = tuple(QWEN3)
    batches: tuple[int, ...] = (1, 4, 16, 64, 256)
    repetitions: int = 7

    def timings(self, model: str) -> dict[str, Any]:
        """Return the plan for one model in the form that `gpu_timing` takes."""
        batches = sorted({*self.batches, *SAMPLES})
        lengths = {"contexts": [CONTEXT, LONG], "prompts": [PROMPT, CONTEXT, LONG]}
        return {"models": [model], "batches": batches, **lengths, "repetitions": self.repetitions}


class _Sample(NamedTuple):
    parent: int
    tokens: int
    score: float | None


def run(plan: GPUPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, and return the seconds with the date and the commit. Models that do not fit are left out.

    Raises:
        NoGPU: There is no CUDA device with room for a model, or torch or transformers is missing.
    """
    found: dict[str, Any] = {}
    for name in plan.models:
        try:
            one = gpu_timing.measure(plan.timings(name), say)
        except RuntimeError as error:
            if type(error).__name__ != "OutOfMemoryError":
                raise
            say(f"{name} is left out: {error}")
            continue
        found = found or {**one, "models": {}, "plan": {**one["plan"], "models": []}}
        found["models"] |= one["models"]
        found["plan"]["models"].append(name)
    if not found:
        raise gpu_timing.NoGPU(f"none of {', '.join(plan.models)} fits in the GPU's memory")
    date = datetime.now(UTC).date().isoformat()
    return {"date": date, "commit": commit_of(ROOT), **found}


def compare(found: Mapping[str, Any], intensity: float = INTENSITY) -> dict[str, Any]:
    """Return the seconds and eFLOPs for the same searches and steps, and how far apart their ratios are.

    Args:
        found: The result of `run`.
        intensity: FLOPs per byte, the I in App. D.3.
    """
    catalogue = load_catalogue(ROOT / "infra" / "catalogue" / "qwen3.yaml")
    models = {each.name: each.architecture for each in catalogue.models if each.architecture is not None}
    timed = {name: _Timed(name, figures) for name, figures in found["models"].items()}
    searches = list(_searches(timed, models, intensity))
    steps = list(_steps(timed, models, intensity, found["ceilings"]["copy_tb_per_s"] * 1e12))
    return {
        "searches": searches,
        "steps": steps,
        "order": _order(searches, "gpu_ratio"),
        "order_busy": _order(searches, "gpu_ratio_busy"),
        "equal": _within(searches, EQUAL),
        "roughly": _within(searches, ROUGHLY),
        "worst_by_batch": _worst_by_batch(steps),
        "worst_by_batch_limited_by_memory": _worst_by_batch(
            [step for step in steps if step["share_of_bandwidth"] >= LIMITED_BY_MEMORY]
        ),
    }


class _Timed:
    """One model's measured seconds."""

    def __init__(self, name: str, figures: Mapping[str, Any]) -> None:
        self.shape = QWEN3[name]
        self.steps = {(row["batch"], row["context"]): row for row in figures["decode"]}
        self.prompts = {row["context"]: row for row in figures["prefill"]}
        looked_up = 0 if self.shape.tied else self.shape.vocabulary * self.shape.hidden
        self.read_bytes = 2 * (figures["parameters"] - looked_up)  # bytes of the weights that a step reads

    def step(self, batch: int, context: int = CONTEXT) -> float | None:
        """Return how many seconds a step takes; None if it did not fit in memory."""
        seconds: float | None = self.steps.get((batch, context), {}).get("seconds")
        return seconds

    def noisy(self, batch: int) -> bool:
        """Return whether a step's repetitions spread too much."""
        row = self.steps[batch, CONTEXT]
        return bool(row["most"] - row["least"] > NOISY * row["seconds"])


def _searches(
    timed: Mapping[str, _Timed], models: Mapping[str, Architecture], intensity: float
) -> Iterator[dict[str, Any]]:
    first: tuple[float, float, float] | None = None
    for name, each in timed.items():
        long, busy = each.prompts[LONG]["seconds"] / LONG, each.step(BUSY)
        for samples in SAMPLES:
            if (step := each.step(samples)) is None or busy is None:
                continue
            seconds = each.prompts[PROMPT]["seconds"] + ANSWER * step
            among_others = PROMPT * long + samples * ANSWER * busy / BUSY
            drafts = [_Sample(-1, ANSWER, None)] * samples
            eflops = search_cost(PROMPT, drafts, models[name], models[name], intensity).eflops
            first = first or (seconds, among_others, eflops)
            yield {
                "model": name,
                "samples": samples,
                "gpu_s": seconds,
                "gpu_s_busy": among_others,
                "tera_eflops": eflops / 1e12,
                "gpu_ratio": seconds / first[0],
                "gpu_ratio_busy": among_others / first[1],
                "eflops_ratio": eflops / first[2],
            }


def _steps(
    timed: Mapping[str, _Timed], models: Mapping[str, Architecture], intensity: float, bandwidth: float
) -> Iterator[dict[str, Any]]:
    """For each model and batch size, yield how long a step takes, as measured and by the formula for that batch."""
    for name, each in timed.items():
        batches = sorted(batch for batch, context in each.steps if context == CONTEXT)
        seconds = {batch: each.step(batch) for batch in batches}
        if (alone := seconds[1]) is None:
            continue
        yield {
            "model": name,
            "seconds": seconds,
            "noisy": [batch for batch in batches if seconds[batch] is not None and each.noisy(batch)],
            "tera_eflops": {
                batch: decode_step([(CONTEXT - 1, 1)] * batch, models[name]).eflops(intensity) / 1e12
                for batch in batches
            },
            "share_of_bandwidth": each.read_bytes / alone / bandwidth,
        }


def _within(searches: Sequence[Mapping[str, Any]], bound: float) -> int:
    """Return for how many searches the ratios are within a given factor of each other."""
    return sum(_factor(search["eflops_ratio"], search["gpu_ratio"]) <= bound for search in searches)


def _factor(one: float, other: float) -> float:
    return max(one / other, other / one)


def _order(searches: Sequence[Mapping[str, Any]], key: str) -> dict[str, int]:
    """Among pairs that are not nearly equal, return how many are in the same order in seconds and in eFLOPs."""
    pairs = alike = 0
    for one, other in combinations(searches, 2):
        seconds, eflops = (one[each] / other[each] for each in (key, "eflops_ratio"))
        if min(_factor(seconds, 1), _factor(eflops, 1)) > SAME:
            pairs += 1
            alike += (seconds > 1) == (eflops > 1)
    return {"pairs": pairs, "alike": alike}


def _worst_by_batch(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return, by batch, the largest factor between two models that eFLOPs, always counted at batch 1, are off by."""
    worst: dict[str, float] = {}
    for batch in steps[0]["seconds"] if steps else ():
        off = [step["tera_eflops"][1] / seconds for step in steps if (seconds := step["seconds"][batch])]
        if len(off) > 1:
            worst[str(batch)] = max(off) / min(off)
    return worst


def markdown(compared: Mapping[str, Any]) -> str:
    """Return the tables of searches and steps."""
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for search in compared["searches"]:
        by_model.setdefault(search["model"], []).append(search)
    lines = ["| model | " + " | ".join(f"n = {each}" for each in SAMPLES) + " |", "|---" * 5 + "|"]
    for name, searches in by_model.items():
        cells = (
            f"{_short(each['gpu_ratio'])}, {_short(each['eflops_ratio'])}: "
            f"{each['eflops_ratio'] / each['gpu_ratio']:.1f} times"
            for each in searches
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    steps = compared["steps"]
    batches = list(steps[0]["seconds"])
    head = ["model", "ms at batch 1", "of the bandwidth", *(f"batch {batch}" for batch in batches)]
    head += ["eFLOPs", f"eFLOPs at batch {BUSY}"]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for step in steps:
        row = [step["model"], f"{1000 * step['seconds'][1]:.2f}", f"{100 * step['share_of_bandwidth']:.0f} %"]
        for batch in batches:
            seconds = step["seconds"][batch]
            ratio = "" if seconds is None else _short(seconds / steps[0]["seconds"][batch])
            row.append(ratio + ("*" if batch in step["noisy"] else ""))
        row += [_short(step["tera_eflops"][each] / steps[0]["tera_eflops"][each]) for each in (1, BUSY)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def in_words(compared: Mapping[str, Any]) -> str:
    """Return the verdict on each criterion."""
    count, order, busy = len(compared["searches"]), compared["order"], compared["order_busy"]

    def worst(key: str) -> str:
        return ", ".join(f"{off:.2f} at {batch}" for batch, off in compared[key].items()) or "one model alone"

    return "\n".join(
        (
            f"{order['alike']} of {order['pairs']} pairs are in the same order, "
            f"{busy['alike']} of {busy['pairs']} if other queries fill a batch of {BUSY}.",
            f"Of {count} searches, {compared['equal']} are within {EQUAL} of the ratio in seconds, "
            f"{compared['roughly']} within {ROUGHLY:.0f}.",
            f"eFLOPs between two models are off by at most, by batch: {worst('worst_by_batch')}.",
            f"Between models limited by memory: {worst('worst_by_batch_limited_by_memory')}.",
        )
    )


def _short(ratio: float) -> str:
    return f"{ratio:.{max(0, 2 - int(math.log10(max(ratio, 1))))}f}"
