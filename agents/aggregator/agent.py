"""The aggregator's logic beside the join: what an Answer cost, and whether it was right.

Both are worked out once, when Decision and Answer have met (`join.to_value`), and go into the fold as a
`Valued`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agents.aggregator import eflops
from agents.aggregator.grade import BadReference, Grade, Judge, grade
from agents.aggregator.row import Valued
from agents.space.catalogue import Catalogue
from agents.space.models import Architecture
from schemas.answer import Answer
from schemas.errors import UniscaleError
from schemas.forest import Forest
from schemas.reward import Price


class UnpricedAnswer(UniscaleError):
    """An Answer names a model or verifier whose architecture is not known. Add it to the catalogue."""

    def __init__(self, query_id: str, kind: str, name: str) -> None:
        super().__init__(f"{query_id}: {kind} {name!r} is not in the catalogue; add its architecture")


@dataclass(frozen=True)
class Pricing:
    """What searches are priced by.

    Attributes:
        generators: Architectures by model name; also of models that have left: their last searches cost too.
        verifiers: Architectures by name.
        verifier: The one in use, for Answers that name none.
        intensity: FLOPs a byte is worth on this hardware.
    """

    generators: Mapping[str, Architecture]
    verifiers: Mapping[str, Architecture]
    verifier: str
    intensity: float = eflops.INTENSITY

    @classmethod
    def of(cls, catalogue: Catalogue, before: "Pricing | None" = None) -> "Pricing":
        """Return the pricing of a catalogue, with the models `before` knew beside its own."""
        known = dict(before.generators) if before is not None else {}
        return cls(
            generators=known | {model.name: model.architecture for model in catalogue.models},
            verifiers={verifier.name: verifier.architecture for verifier in catalogue.verifiers},
            verifier=catalogue.verifier,
            intensity=catalogue.hardware.intensity,
        )

    def forest_eflops(self, forest: Forest, verifier: str | None = None) -> float:
        """Return what a search has cost so far, in eFLOPs: 0 before its first step."""
        if not forest.drafts:
            return 0.0
        generator = self.generators[forest.action.model]
        scorer = self.verifiers[verifier or self.verifier]
        return eflops.price(forest.prompt_tokens, forest.drafts, generator, scorer, self.intensity).eflops


def price_of(answer: Answer, pricing: Pricing) -> Price | None:
    """Return what an Answer's search cost (App. D.3), or None when nothing was run.

    Raises:
        UnpricedAnswer: when its model or verifier is unknown.
    """
    if answer.action is None or not answer.trace:
        return None
    scorer = answer.verifier.name if answer.verifier is not None else pricing.verifier
    if answer.action.model not in pricing.generators:
        raise UnpricedAnswer(answer.query_id, "model", answer.action.model)
    # A verifier that serves under a name of its own is the one in use.
    verifier = pricing.verifiers.get(scorer, pricing.verifiers.get(pricing.verifier))
    if verifier is None:
        raise UnpricedAnswer(answer.query_id, "verifier", scorer)
    cost = eflops.price(
        answer.prompt_tokens,
        answer.trace,
        pricing.generators[answer.action.model],
        verifier,
        pricing.intensity,
    )
    return Price(
        eflops=cost.eflops,
        prefill_eflops=cost.prefill.eflops(cost.intensity),
        decoding_eflops=cost.decoding.eflops(cost.intensity),
        verifier_eflops=cost.verifier_eflops,
        compute_flops=cost.compute_flops,
        memory_bytes=cost.memory_bytes,
        intensity=cost.intensity,
    )


def grade_of(answer: Answer, reference: object, judge: Judge) -> Grade | None:
    """Grade an Answer's text, or return None when there is nothing to grade against.

    No text is a wrong answer: whoever asked has none. A reference that cannot be read is no reference.
    """
    if reference is None:
        return None
    try:
        return grade(answer.text or "", reference, judge=judge)
    except BadReference:
        return None


def value(
    reference: object, answer: Answer, *, pricing: Pricing, judge: Judge
) -> tuple[Valued, Grade | None]:
    """Return an Answer in the terms of the reward, and its grade. May block for the judge's time-out.

    A cancelled search has a price only.

    Raises:
        UnpricedAnswer: when its model or verifier is unknown.
    """
    if answer.status == "cancelled":
        return Valued(status=answer.status, price=price_of(answer, pricing)), None
    graded = grade_of(answer, reference, judge)
    valued = Valued(
        status=answer.status,
        score=answer.score if answer.text is not None else None,
        price=price_of(answer, pricing),
        correct=None if graded is None else float(graded.correct),
        grader="" if graded is None else f"{graded.grader} {graded.version}",
    )
    return valued, graded
