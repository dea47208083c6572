"""What a recording runs: every (question, configuration, sample), and in which variants.

A shard is one (sample, model, question): its searches share one memory of drafts. By the paper's protocol the
first sample is run with and without early exit and under every verifier, later ones with early exit under the
one in use; BEST-Route*'s further arms follow from the widest of independent paths, (64, 1, 1), which is always run
whole. Only some questions may be run without early exit, or under the other verifiers. Mixed traffic is run with
early exit under the verifier in use alone, and its best of 1, 4 and 16 follow from (64, 1, 1). Where that is not run
whole, what they lack is made.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agents.space.action_space import MAX_DRAFTS, PAIRS, uis_space
from agents.space.catalogue import Catalogue
from experiments.outcomes.best_route import best_route_space
from experiments.record.journal import RunKey
from experiments.record.questions import Question
from experiments.record.searches import Bench, Variant
from schemas.action import Action

MIXED_PAIRS = ((MAX_DRAFTS, 1), (1, 4), (4, 4), (4, 16))
MIXED_DERIVED = ((1, 1), (4, 1), (16, 1))
"""(QP, CP) of mixed traffic, 42 actions of six models: those searched, and those that follow from the first."""


Shard = tuple[str, int, str, Question]
"""A shard's name, sample, model and question."""


@dataclass(frozen=True)
class Plan:
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
    ) -> "Plan":
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
    ) -> "Plan":
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
