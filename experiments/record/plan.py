"""What a recording runs, and running it: every (question, configuration, sample), and in which variants.

A shard is one (sample, model, question): its searches share one memory of drafts. By the paper's protocol the
first sample is run with and without early exit and under every verifier, later ones with early exit under the
one in use; BEST-Route*'s further arms follow from the widest of independent paths, (64, 1, 1), which is always run
whole. Only some questions may be run without early exit, or under the other verifiers. Mixed traffic is run with
early exit under the verifier in use alone, and its best of 1, 4 and 16 follow from (64, 1, 1). Where that is not run
whole, what they lack is made. Searches may be given further variants later: those there are stay as they are.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agents.catalogue.actions import MAX_DRAFTS, PAIRS, uis_space
from agents.catalogue.models import Catalogue
from experiments.journal import JournalError, RunKey, SearchJournal
from experiments.loop import best_route_space
from experiments.record import table
from experiments.record.questions import Question
from experiments.record.searches import Bench, Known, Memory, Variant, search
from schemas.action import Action
from schemas.errors import UniscaleError

MIXED_PAIRS = ((MAX_DRAFTS, 1), (1, 4), (4, 4), (4, 16))
MIXED_DERIVED = ((1, 1), (4, 1), (16, 1))
"""(QP, CP) of mixed traffic, 42 actions of six models: those searched, and those that follow from the first."""


Shard = tuple[str, int, str, Question]
"""A shard's name, sample, model and question."""


@dataclass(frozen=True)
class RecordingPlan:
    """What is recorded.

    Attributes:
        questions: Their order is the recording's.
        actions: Searches to run.
        derived: Arms that follow from one run of 64 independent paths.
        samples: How often each.
        verifier: The one in use, and
        others: further ones, for the first sample.
        seed: Of all drafts.
        part: Which of how many processes this is, (1, 1) where it is the only one. Each has questions of its own.
        whole: Ids of the questions whose first sample is also run without early exit, and 64 independent paths always.
        compared: Ids of the questions whose first sample is also run under the others.
    """

    questions: Sequence[Question]
    actions: Sequence[Action]
    derived: Sequence[Action]
    samples: int
    verifier: str
    others: Sequence[str] = ()
    seed: int = 0
    part: tuple[int, int] = (1, 1)
    whole: Collection[str] = ()
    compared: Collection[str] = ()

    @classmethod
    def of(
        cls,
        bench: Bench,
        questions: Sequence[Question],
        samples: int,
        seed: int,
        models: Sequence[str] = (),
        part: tuple[int, int] = (1, 1),
        whole: Collection[str] | None = None,
        compared: Collection[str] | None = None,
    ) -> "RecordingPlan":
        """Return the paper's plan over the whole space of a catalogue, or over some of its models.

        Without `whole`, every question is also run without early exit; without `compared`, under every verifier.
        """
        catalogue = bench.catalogue
        run, chosen = _actions(catalogue, models, PAIRS), set(models or catalogue.model_names)
        derived = [a for a in best_route_space(catalogue) if a.model in chosen and a not in set(run)]
        others = [name for name in bench.verifiers if name != catalogue.verifier]
        ids = {question.question_id for question in questions}
        too = (ids if whole is None else whole, ids if compared is None else compared)
        return cls(questions, run, derived, samples, catalogue.verifier, others, seed, part, *too)

    @classmethod
    def of_mixed(
        cls,
        bench: Bench,
        questions: Sequence[Question],
        samples: int,
        seed: int,
        models: Sequence[str] = (),
        part: tuple[int, int] = (1, 1),
    ) -> "RecordingPlan":
        """Return the plan of mixed traffic: seven pairs (QP, CP) a model, early exit, the verifier in use."""
        run = _actions(bench.catalogue, models, MIXED_PAIRS)
        derived = _actions(bench.catalogue, models, MIXED_DERIVED)
        return cls(questions, run, derived, samples, bench.catalogue.verifier, (), seed, part)

    def shards(self) -> Iterator[Shard]:
        """Yield the part's shards, all of one question together: they share scores."""
        number, parts = self.part
        for sample in range(self.samples):
            for question in self._ordered()[number - 1 :: parts]:
                for model in dict.fromkeys(action.model for action in self.actions):
                    yield shard_name(sample, model, question.question_id), sample, model, question

    def _ordered(self) -> list[Question]:
        """Return the questions, levels in turns, so that the time left is known early."""
        turns: Counter[str] = Counter()
        placed = []
        for question in self.questions:
            turns[question.level] += 1
            placed.append((turns[question.level], question))
        return [question for _, question in sorted(placed, key=lambda each: each[0] / turns[each[1].level])]

    def variants(self, sample: int, question: Question) -> list[Variant]:
        """Return in which variants a question's searches are run, whole ones first: the others take their drafts."""
        in_use = Variant(self.verifier, early_exit=True)
        if sample > 0:
            return [in_use]
        whole = [Variant(self.verifier, early_exit=False)] if question.question_id in self.whole else []
        others = self.others if question.question_id in self.compared else ()
        return [*whole, in_use, *(Variant(name, early_exit=True) for name in others)]

    def runs(self) -> set[RunKey]:
        """Return what the journal holds of the part when it is complete."""
        return {
            (name, variant.verifier, variant.early_exit)
            for name, sample, _, question in self.shards()
            for variant in self.variants(sample, question)
        }

    def searches(self) -> int:
        """Return how many searches the part has, derived ones included."""
        number, parts = self.part
        of_part = self._ordered()[number - 1 :: parts]
        run = sum(len(self.variants(sample, q)) for q in of_part for sample in range(self.samples))
        return run * len(self.actions) + len(of_part) * self.samples * len(self.derived)


def shard_name(sample: int, model: str, question_id: str) -> str:
    """Return the name of a shard in the journal."""
    return f"{sample}/{model}/{question_id}"


def run_of(row: dict[str, Any]) -> RunKey:
    """Return what a row is one search of."""
    name = shard_name(row["sample"], row["model"], row["question"])
    return name, row["verifier"], row["early_exit"]


def shards_of(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return a recording's rows by shard."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(shard_name(row["sample"], row["model"], row["question"]), []).append(row)
    return found


def _actions(catalogue: Catalogue, models: Sequence[str], pairs: Collection[tuple[int, int]]) -> list[Action]:
    """Return the actions of some models, all if none is named, with these (QP, CP)."""
    chosen = set(models or catalogue.model_names)
    return [a for a in uis_space(catalogue) if a.model in chosen and (a.qp, a.cp) in pairs]


def search_id(question: Question, source: Action, sample: int, seed: int) -> str:
    """Return what the seeds of a search's drafts derive from: its question, its own action and sample.

    Every action has randomness of its own: outcomes of different actions on one question are independent, but
    for BEST-Route*'s derived arms, which are prefixes of one set of paths.
    """
    return f"record-{seed}/{question.question_id}/{source.id}/{sample}"


class DerivationError(UniscaleError):
    """A derived search asked for a draft its source does not hold: the engine is not reproducible."""


async def record(
    plan: RecordingPlan,
    bench: Bench,
    journal: SearchJournal,
    *,
    in_flight: int = 8,
    progress: Callable[[int], Any] = lambda n: None,
) -> float:
    """Run what the journal does not hold; return searches per second.

    Args:
        plan: What to run.
        bench: What it runs on.
        journal: Takes every finished shard.
        in_flight: Shards at a time.
        progress: Told how many searches were finished.
    """
    began, finished = time.perf_counter(), 0
    waiting = iter(
        [(*shard, missing) for shard in plan.shards() if (missing := _missing(plan, journal, shard))]
    )

    # Shards of one question stand together, so those that went before are all but done with theirs.
    known: dict[str, Known] = {}

    async def worker() -> None:
        nonlocal finished
        for name, sample, model, question, variants in waiting:
            if question.question_id not in known and len(known) > in_flight:
                known.pop(next(iter(known)))
            memory = Memory(known=known.setdefault(question.question_id, Known()))
            rows = await _shard(plan, bench, sample, model, question, variants, memory)
            journal.add(name, rows)
            finished += len(rows)
            progress(len(rows))

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())
    return finished / max(time.perf_counter() - began, 1e-9)


def _missing(plan: RecordingPlan, journal: SearchJournal, shard: Shard) -> list[Variant]:
    name, sample, _, question = shard
    return [
        each
        for each in plan.variants(sample, question)
        if (name, each.verifier, each.early_exit) not in journal.done
    ]


async def _shard(
    plan: RecordingPlan,
    bench: Bench,
    sample: int,
    model: str,
    question: Question,
    variants: Sequence[Variant],
    memory: Memory,
) -> list[dict[str, Any]]:
    own = [action for action in plan.actions if action.model == model]
    in_use, whole = Variant(plan.verifier, early_exit=True), Variant(plan.verifier, early_exit=False)
    wide = next((a for a in own if (a.qp, a.cp) == (MAX_DRAFTS, 1)), None)

    async def run(action: Action) -> list[dict[str, Any]]:
        if sample > 0 and action == wide and question.question_id in plan.whole:
            await search(
                question, action, whole, search_id(question, action, sample, plan.seed), bench, memory
            )
        return [await _row(bench, sample, action, action, question, v, memory, plan.seed) for v in variants]

    rows = [row for batch in await asyncio.gather(*map(run, own)) for row in batch]
    if wide is not None and in_use in variants:
        made = memory.made
        # The widest first: what it had to make, the narrower ones find.
        for action in reversed([action for action in plan.derived if action.model == model]):
            rows.append(await _row(bench, sample, wide, action, question, in_use, memory, plan.seed))
        if question.question_id in plan.whole and (sample > 0 or whole in variants) and memory.made != made:
            raise DerivationError(
                f"{question.question_id}, {model}: {memory.made - made} drafts were missing from 64 whole paths"
            )
    return rows


async def _row(
    bench: Bench,
    sample: int,
    source: Action,
    action: Action,
    question: Question,
    variant: Variant,
    memory: Memory,
    seed: int,
) -> dict[str, Any]:
    found, derived = await search(
        question, action, variant, search_id(question, source, sample, seed), bench, memory
    )
    return {
        "question": question.question_id,
        "model": action.model,
        "qp": action.qp,
        "cp": action.cp,
        "bs": action.bs,
        "sample": sample,
        "verifier": variant.verifier,
        "early_exit": variant.early_exit,
        "derived": derived,
        **asdict(found),
    }


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


async def estimate(
    plan: RecordingPlan, bench: Bench, questions: Sequence[Question], in_flight: int
) -> list[Cost]:
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
            journal = SearchJournal(Path(folder) / "estimate.jsonl", {})
            for samples in range(1, min(plan.samples, 2) + 1):
                began = time.process_time()
                await record(replace(part, samples=samples), bench, journal, in_flight=in_flight)
                seconds.append((time.process_time() - began) / len(questions))
        costs.append(Cost(model, seconds[0], seconds[1] if len(seconds) > 1 else None))
    return costs


def take_over(journal: SearchJournal, earlier: Path, questions: Sequence[Question]) -> None:
    """Write an earlier recording's searches into the journal of a longer one.

    Args:
        journal: Of any number of samples, and of the earlier recording's verifiers and perhaps further ones.
        earlier: The file.
        questions: Of the task, all of them.

    Raises:
        OutcomeError: it is no recording of ours.
        JournalError: a question or a setting is another one now.
    """
    settings, now = table.settings_of(earlier), journal.settings
    texts = {each.question_id: each.text for each in questions}
    for each in table.questions_in(earlier):
        if texts.get(each.question_id) != each.text:
            raise JournalError(f"{earlier}: {each.question_id} is another question now; record anew")
    begun = {name: value for name, value in settings.items() if name != "samples"}
    begun["questions"] = now["questions"]
    if settings["verifiers"] == now["verifiers"][: len(settings["verifiers"])]:
        begun["verifiers"] = now["verifiers"]
    journal.check(earlier, begun)
    for shard, rows in shards_of(table.rows_of(earlier)).items():
        journal.add(shard, rows)
