"""How long a recording will take: a few of its questions recorded for real, one model after another."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.record.journal import Journal
from experiments.record.plan import Plan
from experiments.record.questions import Question
from experiments.record.run import record
from experiments.record.searches import Bench


@dataclass(frozen=True)
class Cost:
    """Processor seconds a question takes on one model: its first sample, and each later one (None: not measured)."""

    model: str
    first_s: float
    later_s: float | None

    def hours(self, questions: int, samples: int) -> float:
        """Return the processor hours of a whole recording on this model.

        >>> Cost("mini-4m", 2.0, 1.0).hours(1_800, 3)
        2.0
        """
        later = self.first_s if self.later_s is None else self.later_s
        return questions * (self.first_s + (samples - 1) * later) / 3_600


async def estimate(plan: Plan, bench: Bench, questions: Sequence[Question], in_flight: int) -> list[Cost]:
    """Return what questions cost on each model, grading in other processes left out.

    Fewer questions than a recording has in flight make smaller batches, and the estimate too high.

    Args:
        plan: What is to be recorded.
        bench: What it runs on.
        questions: Some of the plan's.
        in_flight: Shards at a time.
    """
    costs = []
    for model in dict.fromkeys(action.model for action in plan.actions):
        part = replace(
            plan,
            questions=questions,
            actions=[action for action in plan.actions if action.model == model],
            derived=[action for action in plan.derived if action.model == model],
            part=(1, 1),
        )
        seconds: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(Path(folder) / "estimate.jsonl", {})
            for samples in range(1, min(plan.samples, 2) + 1):
                began = time.process_time()
                await record(replace(part, samples=samples), bench, journal, in_flight=in_flight)
                seconds.append((time.process_time() - began) / len(questions))
        costs.append(Cost(model, seconds[0], seconds[1] if len(seconds) > 1 else None))
    return costs
