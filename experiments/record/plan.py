"""Plans and runs a recording: every (question, configuration, sample), in the required variants.

A shard is one (sample, model, question); its searches share a memory of drafts. In the paper's protocol, the first
sample is run with and without early exit and with every verifier, later samples with early exit and the verifier in
use. BEST-Route*'s further arms are derived from 64 independent paths, (64, 1, 1), which are always run without early
exit. Runs without early exit, or with the other verifiers, may be restricted to some of the questions. Mixed traffic is
run only with early exit and the verifier in use. Its best-of-1, -4 and -16 arms are derived from (64, 1, 1), and drafts
that early exit omitted there are generated. Variants of searches can be added later; existing ones are kept.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents.catalogue.action_space import MAX_DRAFTS, PAIRS, uis_space
from agents.catalogue.models import NO_VERIFIER
from experiments.journal import JournalError, RunKey, SearchJournal
from experiments.loop import best_route_space
from experiments.record import table
from experiments.record.searches import Bench, Known, SearchMemory, Variant, search
from experiments.record.table import Question
from schemas.action import Action
from schemas.errors import UniscaleError

MIXED_PAIRS = ((MAX_DRAFTS, 1), (1, 4), (4, 4), (4, 16))
MIXED_DERIVED = ((1, 1), (4, 1), (16, 1))
"""Derived (QP, CP) of mixed traffic. Together with the searched pairs, they make 42 actions for six models."""
IN_FLIGHT = 48  # number of shards in progress at a time


@dataclass(frozen=True)
class Shard:
    """The searches of one sample, model and question."""

    sample: int
    model: str
    question: Question

    @property
    def name(self) -> str:
        """Return the shard's name in the journal."""
        return shard_name(self.sample, self.model, self.question.question_id)


@dataclass(frozen=True)
class RecordingPlan:
    """The searches of a recording.

    Attributes:
        questions: The questions, in the recording's order.
        actions: Searches to run.
        derived: Arms derived from one run of 64 independent paths.
        samples: Number of samples of each search.
        verifier: The verifier in use.
        others: Further verifiers, for the first sample.
        seed: Seed of all drafts.
        part: This process's number, from 1, and the total number of processes, each of which has its own questions.
        whole: Ids of the questions whose first sample is also run without early exit. For all of their samples, the 64
            independent paths are run without it.
        compared: Ids of the questions whose first sample is also run with the other verifiers.
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
        part: tuple[int, int],
        whole: Sequence[Question],
        compared: Sequence[Question],
    ) -> "RecordingPlan":
        """Return the paper's plan over the whole space of a catalogue.

        Args:
            bench: The catalogue and its verifiers.
            questions: The questions, in the recording's order.
            samples: Number of samples of each search.
            part: This process's number, from 1, and the total number of processes.
            whole: Questions that are also run without early exit.
            compared: Questions that are also run with every verifier.
        """
        catalogue = bench.catalogue
        run = [a for a in uis_space(catalogue) if (a.qp, a.cp) in PAIRS]
        derived = [a for a in best_route_space(catalogue) if a not in set(run)]
        others = [name for name in bench.verifiers if name != catalogue.verifier]
        ids = [{question.question_id for question in some} for some in (whole, compared)]
        return cls(questions, run, derived, samples, catalogue.verifier, others, 0, part, *ids)

    @classmethod
    def of_mixed(
        cls, bench: Bench, questions: Sequence[Question], samples: int, part: tuple[int, int] = (1, 1)
    ) -> "RecordingPlan":
        """Return the plan for mixed traffic: seven pairs (QP, CP) per model, early exit, and the verifier in use.

        A model that does not offer 64 independent paths, such as one behind a chat endpoint, runs its narrower pairs.
        """
        offered = uis_space(bench.catalogue).actions
        wide = {a.model for a in offered if (a.qp, a.cp) == (MAX_DRAFTS, 1)}
        narrow = [a for a in offered if (a.qp, a.cp) in MIXED_DERIVED]
        derived = [a for a in narrow if a.model in wide]
        run = [a for a in offered if (a.qp, a.cp) in MIXED_PAIRS or (a in narrow and a.model not in wide)]
        return cls(questions, run, derived, samples, bench.catalogue.verifier, part=part)

    def shards(self) -> Iterator[Shard]:
        """Yield this process's shards. Those of one question are adjacent, because they share scores."""
        for sample in range(self.samples):
            for question in self._of_part():
                for model in dict.fromkeys(action.model for action in self.actions):
                    yield Shard(sample, model, question)

    def _of_part(self) -> list[Question]:
        """Return this process's questions, alternating between levels so that the time left can be estimated early."""
        turns: Counter[str] = Counter()
        placed = []
        for question in self.questions:
            turns[question.level] += 1
            placed.append((turns[question.level], question))
        number, parts = self.part
        ordered = sorted(placed, key=lambda each: each[0] / turns[each[1].level])
        return [question for _, question in ordered][number - 1 :: parts]

    def variants(self, sample: int, question: Question) -> list[Variant]:
        """Return the variants of a question's searches: first any without early exit, whose drafts the others reuse."""
        in_use = self.in_use
        if sample > 0:
            return [in_use]
        whole = [Variant(self.verifier, early_exit=False)] if question.question_id in self.whole else []
        others = self.others if question.question_id in self.compared else ()
        return [*whole, in_use, *(Variant(name, early_exit=True) for name in others)]

    @property
    def in_use(self) -> Variant:
        """Return the variant of every search: with the verifier in use, if there is one, and then with early exit."""
        return Variant(self.verifier, early_exit=self.verifier != NO_VERIFIER)

    def runs(self) -> set[RunKey]:
        """Return the keys that the journal will have once this process has finished."""
        return {
            (shard.name, variant.verifier, variant.early_exit)
            for shard in self.shards()
            for variant in self.variants(shard.sample, shard.question)
        }

    def searches(self) -> int:
        """Return the number of searches of this process, including derived ones."""
        asked = [(sample, question) for sample in range(self.samples) for question in self._of_part()]
        return sum(len(self.variants(*each)) * len(self.actions) + len(self.derived) for each in asked)


def shard_name(sample: int, model: str, question_id: str) -> str:
    """Return the name of a shard in the journal."""
    return f"{sample}/{model}/{question_id}"


def run_of(row: dict[str, Any]) -> RunKey:
    """Return the run to which a row belongs."""
    name = shard_name(row["sample"], row["model"], row["question"])
    return name, row["verifier"], row["early_exit"]


def search_id(question: Question, source: Action, sample: int, seed: int) -> str:
    """Return the id from which the seeds of a search's drafts derive, made of question, action and sample.

    Outcomes of different actions on one question are independent, except for BEST-Route*'s derived arms, which are
    prefixes of one set of paths.
    """
    return f"record-{seed}/{question.question_id}/{source.id}/{sample}"


class DerivationError(UniscaleError):
    """A derived search needs a draft that its source does not have, so the engine is not reproducible."""


async def record(
    plan: RecordingPlan,
    bench: Bench,
    journal: SearchJournal,
    *,
    in_flight: int = IN_FLIGHT,
    progress: Callable[[int], Any] = lambda n: None,
) -> None:
    """Run the searches that the journal lacks.

    Args:
        plan: The searches.
        bench: Engines and verifiers.
        journal: Receives every finished shard.
        in_flight: Number of concurrent shards.
        progress: Called with the number of finished searches.
    """
    waiting = iter(
        [(shard, missing) for shard in plan.shards() if (missing := _missing(plan, journal, shard))]
    )
    # Cached results are kept only for the latest questions: shards of one question are adjacent.
    known: dict[str, Known] = {}

    async def worker() -> None:
        for shard, variants in waiting:
            asked = shard.question.question_id
            if asked not in known and len(known) > in_flight:
                known.pop(next(iter(known)))
            memory = SearchMemory(known=known.setdefault(asked, Known()))
            rows = await _shard(plan, bench, shard, variants, memory)
            journal.add(shard.name, rows)
            progress(len(rows))

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())


def _missing(plan: RecordingPlan, journal: SearchJournal, shard: Shard) -> list[Variant]:
    return [
        each
        for each in plan.variants(shard.sample, shard.question)
        if (shard.name, each.verifier, each.early_exit) not in journal.done
    ]


async def _shard(
    plan: RecordingPlan, bench: Bench, shard: Shard, variants: Sequence[Variant], memory: SearchMemory
) -> list[dict[str, Any]]:
    sample, question = shard.sample, shard.question
    own = [action for action in plan.actions if action.model == shard.model]
    in_use, whole = plan.in_use, Variant(plan.verifier, early_exit=False)
    wide = next((a for a in own if (a.qp, a.cp) == (MAX_DRAFTS, 1)), None)

    async def row(source: Action, action: Action, variant: Variant) -> dict[str, Any]:
        drawn = search_id(question, source, sample, plan.seed)
        found, derived = await search(question, action, variant, drawn, bench, memory)
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

    async def run(action: Action) -> list[dict[str, Any]]:
        if sample > 0 and action == wide and question.question_id in plan.whole:
            await row(action, action, whole)
        return [await row(action, action, variant) for variant in variants]

    rows = [row for batch in await asyncio.gather(*map(run, own)) for row in batch]
    if wide is not None and in_use in variants:
        made = memory.made
        # The widest search comes first, so that narrower ones find its drafts.
        for action in reversed([action for action in plan.derived if action.model == shard.model]):
            rows.append(await row(wide, action, in_use))
        if question.question_id in plan.whole and (sample > 0 or whole in variants) and memory.made != made:
            raise DerivationError(
                f"{shard.name}: {memory.made - made} drafts were missing from 64 whole paths; record it again"
            )
    return rows


def take_over(journal: SearchJournal, earlier: Path, questions: Iterable[Question]) -> None:
    """Copy an earlier recording's searches into the journal of a longer one.

    Args:
        journal: The journal of the longer recording, which has at least the verifiers of the earlier one.
        earlier: The earlier recording.
        questions: All questions of the task.

    Raises:
        OutcomeError: The file is not one of our recordings.
        JournalError: A question or a setting has changed.
    """
    settings, now = table.settings_of(earlier), journal.settings
    texts = {each.question_id: each.text for each in questions}
    for each in table.questions_in(earlier):
        if texts.get(each.question_id) != each.text:
            raise JournalError(f"{earlier}: {each.question_id} is a different question now; record again")
    begun = {name: value for name, value in settings.items() if name != "samples"}
    begun["questions"] = now["questions"]
    if settings["verifiers"] == now["verifiers"][: len(settings["verifiers"])]:
        begun["verifiers"] = now["verifiers"]
    journal.check(earlier, begun)
    shards: dict[str, list[dict[str, Any]]] = {}
    for row in table.rows_of(earlier):
        shards.setdefault(run_of(row)[0], []).append(row)
    for shard, rows in shards.items():
        journal.add(shard, rows)
