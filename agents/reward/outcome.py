"""The aggregator's logic beside the join: what an Answer cost, and whether it was right.

Both are worked out once, when Decision and Answer have met (`join.to_value`), and go into the fold as a
`ScoredAnswer`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.catalogue import eflops
from agents.catalogue.models import Architecture, Catalogue
from agents.grading.grade import AskGrader, Grade, Undecided, grade
from agents.reward.join import ScoredAnswer
from schemas.answer import Answer
from schemas.errors import UniscaleError
from schemas.forest import Forest
from schemas.grader import Grader
from schemas.prices import Billed
from schemas.reward import Cost
from schemas.search import Served

MAX_MISSING = 500
"""Characters that say why a term is missing: an error may quote the reference."""


class UnpricedAnswer(UniscaleError):
    """An Answer names a model or verifier whose architecture is not known. Add it to the catalogue."""

    def __init__(self, query_id: str, kind: str, name: str) -> None:
        super().__init__(f"{query_id}: {kind} {name!r} is not in the catalogue; add its architecture")


@dataclass(frozen=True)
class CostModel:
    """What the cost of a search follows from.

    Attributes:
        generators: Architectures by model name; also of models that have left: their last searches cost too.
        verifiers: Architectures by name.
        verifier: The one that the catalogue names, for Answers that name none; or none.
        own: The verifiers that models name themselves, by model.
        intensity: FLOPs a byte is worth on this hardware.
    """

    generators: Mapping[str, Architecture]
    verifiers: Mapping[str, Architecture]
    verifier: str
    own: Mapping[str, str] = field(default_factory=dict)
    intensity: float = eflops.INTENSITY

    @classmethod
    def of(cls, catalogue: Catalogue, before: "CostModel | None" = None) -> "CostModel":
        """Return the cost model of a catalogue, with the models that `before` knew beside its own."""
        known = dict(before.generators) if before is not None else {}
        return cls(
            generators=known
            | {m.name: m.architecture for m in catalogue.models if m.architecture is not None},
            verifiers={v.name: v.architecture for v in catalogue.verifiers if v.architecture is not None},
            verifier=catalogue.verifier,
            own={model.name: model.verifier for model in catalogue.models if model.verifier is not None},
            intensity=eflops.INTENSITY if catalogue.hardware is None else catalogue.hardware.intensity,
        )

    def scorer(self, model: str, served: Served | None = None) -> Architecture | None:
        """Return the architecture of what scored the drafts of a model; None when it is unknown.

        `Served.model` is its name in the catalogue; `Served.name` is the software, for instance `vllm`. What scored
        under no name of its own, such as a recording, counts as the verifier in use for the model.
        """
        usual = self.own.get(model, self.verifier)
        named = usual if served is None else served.model or served.name
        in_use = None if served is not None and served.model else self.verifiers.get(usual)
        return self.verifiers.get(named, in_use)

    def forest_eflops(self, forest: Forest) -> float:
        """Return what a search has cost so far, in eFLOPs times its price factor: 0 before its first step.

        Raises:
            UnpricedAnswer: its model is unknown.
        """
        if not forest.drafts:
            return 0.0
        generator = self.generators.get(forest.action.model)
        if generator is None:
            raise UnpricedAnswer("a search under way", "model", forest.action.model)
        scorer = self.scorer(forest.action.model) or generator  # where none is, nothing is scored
        cost = eflops.search_cost(forest.prompt_tokens, forest.drafts, generator, scorer, self.intensity)
        return cost.eflops * forest.limits.price_factor


def cost_of(answer: Answer, cost_model: CostModel, generator: Architecture | None = None) -> Cost | None:
    """Return what an Answer's search cost, at the price it began with, or None when nothing was run.

    In USD that is what its tokens cost, as the upstream counted them, or else its engine. What verification costs is
    then no part of it. In eFLOPs it is App. D.3 times the price factor.

    Args:
        answer: With its trace.
        cost_model: What the cost of a search follows from.
        generator: Architecture of the model, as kept from the Decision; by default the catalogue's.

    Raises:
        UnpricedAnswer: its model or verifier is unknown.
    """
    if answer.action is None or not answer.trace:
        return None
    if answer.limits is not None and (prices := answer.limits.prices) is not None:
        billed = answer.billed or Billed(input=answer.prompt_tokens, output=answer.generated_tokens)
        return Cost(cost=prices.usd(billed), unit="usd", billed=billed, prices=prices)
    model = generator or cost_model.generators.get(answer.action.model)
    if model is None:
        raise UnpricedAnswer(answer.query_id, "model", answer.action.model)
    scorer = cost_model.scorer(answer.action.model, answer.verifier)
    if scorer is None and all(draft.score is None for draft in answer.trace):
        scorer = model  # of which nothing is counted
    if scorer is None:
        served = answer.verifier.model or answer.verifier.name if answer.verifier else cost_model.verifier
        raise UnpricedAnswer(answer.query_id, "verifier", served)
    cost = eflops.search_cost(answer.prompt_tokens, answer.trace, model, scorer, cost_model.intensity)
    factor = answer.limits.price_factor if answer.limits is not None else 1.0
    return Cost(
        cost=factor * cost.eflops,
        prefill_eflops=factor * cost.prefill.eflops(cost.intensity),
        decoding_eflops=factor * cost.decoding.eflops(cost.intensity),
        verifier_eflops=factor * cost.verifier_eflops,
        compute_flops=cost.compute_flops,
        memory_bytes=cost.memory_bytes,
        intensity=cost.intensity,
        factor=factor,
    )


class _Lost(NamedTuple):
    """A draft of a step that was cut, as long as it can have become; nothing scored it."""

    parent: int
    tokens: int
    score: float | None = None


def cost_of_cut(answer: Answer, cost_model: CostModel, generator: Architecture | None = None) -> float:
    """Return the most that the step may have cost that an Answer's deadline cut, in its unit; 0 where none was.

    Raises:
        UnpricedAnswer: its model is unknown.
    """
    if answer.cut is None or answer.action is None:
        return 0.0
    if answer.limits is not None and (prices := answer.limits.prices) is not None:
        drafts = len(answer.cut.parents)
        return prices.usd(Billed(input=answer.cut.prompt_tokens * drafts, output=answer.cut.tokens * drafts))
    model = generator or cost_model.generators.get(answer.action.model)
    if model is None:
        raise UnpricedAnswer(answer.query_id, "model", answer.action.model)
    lost = [_Lost(parent, answer.cut.tokens) for parent in answer.cut.parents]
    # Of what is scored, both costs below have the same.
    scorer = cost_model.scorer(answer.action.model, answer.verifier) or model
    prompt, intensity = max(1, answer.cut.prompt_tokens), cost_model.intensity
    whole = eflops.search_cost(prompt, [*answer.trace, *lost], model, scorer, intensity).eflops
    known = eflops.search_cost(prompt, answer.trace, model, scorer, intensity).eflops if answer.trace else 0.0
    return (whole - known) * (answer.limits.price_factor if answer.limits is not None else 1.0)


def gradable(reference: object, answer: Answer, grader: Grader | None = None) -> bool:
    """Return whether an Answer is to be graded: not for what was cancelled, or cut by the client's own bounds.

    Nor is what a model's fault left without a text: it is wrong whatever the reference is.
    """
    graded = answer.status != "cancelled" and not answer.bounded and answer.fault != "model"
    return graded and (reference is not None or (grader is not None and not grader.needs_reference))


def value(
    reference: object,
    answer: Answer,
    *,
    cost_model: CostModel,
    ask: AskGrader,
    grader: Grader | None = None,
    generator: Architecture | None = None,
) -> ScoredAnswer:
    """Return an Answer in the terms of the reward. May block for as long as grading takes.

    A term that cannot be worked out is None, and `missing` says why: the query is closed all the same. No text
    is a wrong answer, because whoever asked has none. A cancelled search has a cost only, and an answer that the
    client's own bounds cut is not graded: what is left of it is neither right nor wrong.

    Args:
        reference: What the Query brought to grade against; None for nothing.
        answer: The Answer.
        cost_model: What the cost of a search follows from.
        ask: Asks a grading process where no exact rule decides.
        grader: What compares; None is the default.
        generator: Architecture of the model, as kept from the Decision; by default the catalogue's.

    Raises:
        Undecided: `ask` would take time and said so.
    """
    missing: list[str] = []
    price: Cost | None = None
    lost = 0.0
    graded: Grade | None = None
    try:
        price = cost_of(answer, cost_model, generator)
        lost = cost_of_cut(answer, cost_model, generator)
    except (UniscaleError, ValueError, ArithmeticError) as error:
        missing.append(f"price: {error}")
    try:
        if gradable(reference, answer, grader):
            graded = grade(answer.text or "", reference, ask=ask, grader=grader)
    except Undecided:
        raise
    except Exception as error:  # whatever a reference makes a grader do, the row must be closed
        missing.append(f"correct: {type(error).__name__}: {error}")
    # An outage says nothing about the action, and nobody waited for a cancelled search: without a score the
    # learner abandons both.
    scored = answer.text is not None and not answer.fault and answer.status != "cancelled"
    return ScoredAnswer(
        status=answer.status,
        score=answer.score if scored else None,
        unscored=scored and answer.score is None,
        price=price,
        cut_cost=lost,
        correct=None if graded is None else float(graded.correct),
        grader="" if graded is None else f"{graded.grader} {graded.version}",
        rule="" if graded is None else graded.rule,
        fault=answer.fault,
        bounded=answer.bounded,
        missing="; ".join(missing)[:MAX_MISSING],
        attempt=answer.attempt if answer.seq is not None else 0,
    )
