"""Cost and grade of an Answer, the aggregator's logic outside the join.

Both are computed once, when Decision and Answer have arrived (`join.to_value`), and enter the fold as a `ScoredAnswer`.
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
"""Maximum characters of the reason for a missing term: an error may quote the reference."""


class UnpricedAnswer(UniscaleError):
    """An Answer names a model or verifier whose architecture is not known. Add it to the catalogue."""

    def __init__(self, query_id: str, kind: str, name: str) -> None:
        super().__init__(f"{query_id}: {kind} {name!r} is not in the catalogue; add its architecture")


@dataclass(frozen=True)
class CostModel:
    """Computes the cost of searches from the architectures of models and verifiers.

    Attributes:
        generators: Architectures by model name, including removed models, whose last searches still have to be costed.
        verifiers: Architectures by name.
        verifier: The catalogue's default verifier, for Answers that name none; None if there is none.
        own: Verifiers that individual models name, by model.
        intensity: FLOPs per byte of memory traffic on this hardware.
    """

    generators: Mapping[str, Architecture]
    verifiers: Mapping[str, Architecture]
    verifier: str
    own: Mapping[str, str] = field(default_factory=dict)
    intensity: float = eflops.INTENSITY

    @classmethod
    def of(cls, catalogue: Catalogue, before: "CostModel | None" = None) -> "CostModel":
        """Return the cost model of a catalogue, including the models of `before`."""
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
        """Return the architecture of the verifier that scored a model's drafts; None if it is unknown.

        `Served.model` is its name in the catalogue; `Served.name` is the software, for instance `vllm`. A verifier
        without a name, such as a recording, counts as the verifier in use for the model.
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
        scorer = self.scorer(forest.action.model) or generator  # without a verifier, nothing is scored
        cost = eflops.search_cost(forest.prompt_tokens, forest.drafts, generator, scorer, self.intensity)
        return cost.eflops * forest.limits.price_factor


def cost_of(answer: Answer, cost_model: CostModel, generator: Architecture | None = None) -> Cost | None:
    """Return what an Answer's search cost, at the price in force when it began, or None if nothing was run.

    In USD it is the price of its tokens as counted upstream, or else by the engine, without the cost of verification.
    In eFLOPs it is App. D.3 times the price factor.

    Args:
        answer: With its trace.
        cost_model: Architectures of models and verifiers.
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
        scorer = model  # a placeholder: nothing of it is counted
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
    """An unscored draft of a step that was cut, at its maximum length."""

    parent: int
    tokens: int
    score: float | None = None


def cost_of_cut(answer: Answer, cost_model: CostModel, generator: Architecture | None = None) -> float:
    """Return an upper bound on the cost of the step that an Answer's deadline cut, in its unit; 0 if none was cut.

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
    # Both costs below include the same scored tokens, so they cancel out.
    scorer = cost_model.scorer(answer.action.model, answer.verifier) or model
    prompt, intensity = max(1, answer.cut.prompt_tokens), cost_model.intensity
    whole = eflops.search_cost(prompt, [*answer.trace, *lost], model, scorer, intensity).eflops
    known = eflops.search_cost(prompt, answer.trace, model, scorer, intensity).eflops if answer.trace else 0.0
    return (whole - known) * (answer.limits.price_factor if answer.limits is not None else 1.0)


def gradable(reference: object, answer: Answer, grader: Grader | None = None) -> bool:
    """Return whether an Answer must be graded: not if it was cancelled, or cut by the client's own bounds.

    An Answer without a text through its model's fault is not graded either: it is wrong whatever the reference is.
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
    """Return the reward terms of an Answer. Blocks while grading.

    A term that cannot be computed is None, and `missing` says why: the query is closed all the same. An Answer without
    a text is wrong. A cancelled search has a cost only, and an answer that the client's own bounds cut is not graded:
    it is neither right nor wrong.

    Args:
        reference: The Query's reference to grade against; None if it has none.
        answer: The Answer.
        cost_model: Architectures of models and verifiers.
        ask: Asks a grading process if no exact rule decides.
        grader: Compares answer and reference; None for the default.
        generator: Architecture of the model, as kept from the Decision; by default the catalogue's.

    Raises:
        Undecided: `ask` refused to block.
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
    except Exception as error:  # the row must be closed whatever error a reference causes in a grader
        missing.append(f"correct: {type(error).__name__}: {error}")
    # An outage says nothing about the action, nor does a cancelled search: without a score the learner abandons both.
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
