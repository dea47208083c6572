"""What a search costs, whether finished or in progress: in USD if its model has token prices, otherwise in eFLOPs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.catalogue.models import Architecture, Catalogue
from agents.catalogue.search_cost import INTENSITY, DraftNumbers, search_cost
from schemas.answer import Answer
from schemas.errors import UniscaleError
from schemas.forest import Forest
from schemas.prices import Billed
from schemas.reward import Cost
from schemas.search import Served


class UnpricedAnswer(UniscaleError):
    """An Answer names a model or verifier whose architecture is not known. Add it to the catalogue."""

    def __init__(self, query_id: str, kind: str, name: str) -> None:
        super().__init__(f"{query_id}: {kind} {name!r} is not in the catalogue; add its architecture")


@dataclass(frozen=True)
class CostModel:
    """Computes the cost of searches from the architectures of models and verifiers.

    Attributes:
        generators: Architectures by model name. Removed models stay, because their last searches still need a cost.
        verifiers: Architectures by verifier name.
        verifier: Name of the catalogue's default verifier, assumed for Answers that do not name one; may be `none`.
        own: Names of the verifiers that override the default, by model name.
        intensity: FLOPs per byte of memory traffic on this hardware.
    """

    generators: Mapping[str, Architecture]
    verifiers: Mapping[str, Architecture]
    verifier: str
    own: Mapping[str, str] = field(default_factory=dict)
    intensity: float = INTENSITY

    @classmethod
    def of(cls, catalogue: Catalogue, before: "CostModel | None" = None) -> "CostModel":
        """Return the cost model of a catalogue. Models that only `before` contains are kept."""
        known = dict(before.generators) if before is not None else {}
        return cls(
            generators=known
            | {m.name: m.architecture for m in catalogue.models if m.architecture is not None},
            verifiers={v.name: v.architecture for v in catalogue.verifiers if v.architecture is not None},
            verifier=catalogue.verifier,
            own={model.name: model.verifier for model in catalogue.models if model.verifier is not None},
            intensity=INTENSITY if catalogue.hardware is None else catalogue.hardware.intensity,
        )

    def scorer(self, model: str, served: Served | None = None) -> Architecture | None:
        """Return the architecture of the verifier that scored a model's drafts; None if it is unknown.

        `Served.model` is the verifier's name in the catalogue; `Served.name` is the software, for instance `vllm`. If
        `Served.model` is empty, as for a recording, the verifier that the model uses now is assumed.
        """
        usual = self.own.get(model, self.verifier)
        named = usual if served is None else served.model or served.name
        in_use = None if served is not None and served.model else self.verifiers.get(usual)
        return self.verifiers.get(named, in_use)

    def forest_eflops(self, forest: Forest) -> float:
        """Return what a search has cost so far, in eFLOPs times its price factor; 0 before its first step.

        Raises:
            UnpricedAnswer: The search's model is unknown.
        """
        if not forest.drafts:
            return 0.0
        generator = self.generators.get(forest.action.model)
        if generator is None:
            raise UnpricedAnswer("a search under way", "model", forest.action.model)
        scorer = self.scorer(forest.action.model) or generator  # without a verifier, nothing is scored
        cost = search_cost(forest.prompt_tokens, forest.drafts, generator, scorer, self.intensity)
        return cost.eflops * forest.limits.price_factor


def cost_of(answer: Answer, cost_model: CostModel, generator: Architecture | None = None) -> Cost | None:
    """Return the cost of an Answer's search at the price in force when it began; None if nothing was run or billed.

    In USD, it is the price of the tokens as counted by the upstream or, failing that, by the engine; verification is
    free. In eFLOPs, it is the cost of App. D.3 times the price factor. Without a trace, because the upstream billed a
    reply that could not be used, the billed tokens are priced as one sample.

    Args:
        answer: The Answer with its trace.
        cost_model: Architectures of models and verifiers.
        generator: Architecture of the model at the time of the Decision; defaults to that in `cost_model`.

    Raises:
        UnpricedAnswer: The model or the verifier is unknown.
    """
    lost = None if answer.billed == Billed() else answer.billed  # Billed() only in a forged Answer
    if answer.action is None or not (answer.trace or lost):
        return None
    if answer.limits is not None and (prices := answer.limits.prices) is not None:
        billed = answer.billed or Billed(input=answer.prompt_tokens, output=answer.generated_tokens)
        usd = prices.usd(billed)  # 0 only if the Answer is forged: every prompt has a token
        return Cost(cost=usd, unit="usd", billed=billed, prices=prices) if usd else None
    model = generator or cost_model.generators.get(answer.action.model)
    if model is None:
        raise UnpricedAnswer(answer.query_id, "model", answer.action.model)
    prompt_tokens: int = answer.prompt_tokens
    trace: Sequence[DraftNumbers] = answer.trace
    if not trace and lost is not None:
        prompt_tokens, trace = max(lost.input, 1), [_Lost(-1, lost.output)]
    scorer = cost_model.scorer(answer.action.model, answer.verifier)
    if scorer is None and all(draft.score is None for draft in trace):
        scorer = model  # a placeholder: with no draft scored, it adds no cost
    if scorer is None:
        served = answer.verifier.model or answer.verifier.name if answer.verifier else cost_model.verifier
        raise UnpricedAnswer(answer.query_id, "verifier", served)
    cost = search_cost(prompt_tokens, trace, model, scorer, cost_model.intensity)
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
    """A draft that was paid for, not scored, and lost.

    Either the deadline cut it off, and it is taken to have reached its maximum length, or it could not be used.
    """

    parent: int
    tokens: int
    score: float | None = None


def cost_of_cut(answer: Answer, cost_model: CostModel, generator: Architecture | None = None) -> float:
    """Return an upper bound on the cost of the step that an Answer's deadline cut off; 0 if none was.

    Raises:
        UnpricedAnswer: The model is unknown.
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
    whole = search_cost(prompt, [*answer.trace, *lost], model, scorer, intensity).eflops
    known = search_cost(prompt, answer.trace, model, scorer, intensity).eflops if answer.trace else 0.0
    return (whole - known) * (answer.limits.price_factor if answer.limits is not None else 1.0)
