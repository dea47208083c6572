"""Run recorded searches again: the recording's own questions, on the checkpoints it was made with."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.aggregator.grade import Judge
from agents.executor.rules import SearchRules
from agents.space.action_space import MAX_DRAFTS, PAIRS
from agents.space.catalogue import Catalogue
from experiments.outcomes.table import Arm, OutcomeError
from experiments.record.bench import open_bench, weights
from experiments.record.plan import search_id
from experiments.record.questions import Question
from experiments.record.searches import Bench
from experiments.record.table import questions_in, settings_of
from schemas.action import Action


@dataclass(frozen=True)
class Reopened:
    """A recording and what its searches run on.

    Attributes:
        questions: By id.
        settings: As they were recorded.
        bench: Engines, verifiers and rules as in the recording.
    """

    questions: Mapping[str, Question]
    settings: Mapping[str, Any]
    bench: Bench

    @property
    def verifier(self) -> str:
        """Return the one in use."""
        return str(self.settings["verifiers"][0])

    def search_id(self, question: Question, arm: Arm, sample: int) -> str:
        """Return what the drafts of a recorded search derive from; a derived best of N is a part of 64 paths."""
        known = (arm.qp, arm.cp) in {tuple(pair) for pair in self.settings.get("searched", PAIRS)}
        source = action_of(arm) if known else Action(model=arm.model, qp=MAX_DRAFTS, cp=1, bs=1)
        return search_id(question, source, sample, self.settings["seed"])


def action_of(arm: Arm) -> Action:
    """Return the configuration that an arm is."""
    return Action(model=arm.model, qp=arm.qp, cp=arm.cp, bs=arm.bs)


async def reopen(recording: Path, catalogue: Catalogue, judge: Judge, folder: Path = Path()) -> Reopened:
    """Open what a recording ran on.

    Args:
        recording: The Parquet file, made by the plain sampler.
        catalogue: It was made with.
        judge: For grading.
        folder: What the catalogue's paths start from.

    Raises:
        OutcomeError: no recording of ours, or of another engine or other weights.
    """
    settings = settings_of(recording)
    if settings["engine"] != "torch":
        raise OutcomeError(
            f"{recording}: made with {settings['engine']!r}, whose drafts cannot be made again; only torch's can"
        )
    now = weights(catalogue, folder)
    for name, digest in settings["weights"].items():
        if now.get(name) != digest:
            raise OutcomeError(
                f"{recording}: made with weights {digest} of {name}, here are {now.get(name, 'none')}; record it again"
            )
    questions = {question.question_id: question for question in questions_in(recording)}
    bench = await open_bench(
        catalogue, "torch", judge, folder=folder, rules=SearchRules(eta=settings["eta"]), verifiers=1
    )
    return Reopened(questions, settings, bench)
