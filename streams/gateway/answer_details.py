"""What every protocol returns besides an answer's text: usage, cost, decision, search, times and headers."""

import math
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from agents.catalogue.cost_model import CostModel, UnpricedAnswer, cost_of, cost_of_cut
from schemas.answer import Answer
from schemas.decision import Decision, Predicted, ScoredAction
from schemas.forest import Draft
from schemas.objective import CostUnit, ObjectiveInForce
from schemas.reward import Cost, Reward
from schemas.spent import Spent
from streams.gateway.errors import why, why_earlier
from streams.timeline import Timeline


def picked(record: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a record under their own names.

    >>> picked(1 + 2j, "real", "imag")
    {'real': 1.0, 'imag': 2.0}
    """
    return {name: getattr(record, name) for name in names}


def priced_usage(answer: Answer, decision: Decision | None, cost_model: CostModel) -> dict[str, Any]:
    """Return the usage and, if costs are in USD, the cost of all attempts."""
    found, cost = usage(answer), usd(answer, decision, cost_model)
    if cost is not None:
        found |= {"cost": cost, "cost_details": {"upstream_inference_cost": cost}}
    return found


def usd(answer: Answer, decision: Decision | None, cost_model: CostModel) -> float | None:
    """Return the cost of all attempts at a query in US dollars; None if nothing ran, or if costs are in eFLOPs."""
    if answer.limits is None or answer.limits.prices is None:
        return None  # costs are in eFLOPs, which are not returned here
    cost = price(answer, cost_model)
    return None if cost is None else total(cost, decision)


def usage(answer: Answer) -> dict[str, Any]:
    """Return the usage: `completion_tokens` counts all generated tokens, `reasoning_tokens` those not returned."""
    if (billed := answer.billed) is not None:
        return {
            "prompt_tokens": billed.input,
            "completion_tokens": billed.output,
            "total_tokens": billed.input + billed.output,
            "prompt_tokens_details": {"cached_tokens": billed.cached_input},
            "completion_tokens_details": {"reasoning_tokens": billed.reasoning},
        }
    generated = answer.generated_tokens
    # With several answers, the trace does not say which drafts the other answers consist of.
    returned = generated if answer.answers else sum(answer.trace[at].tokens for at in answer.path)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": answer.prompt_tokens + generated,
        # An Answer counts its prompt once and does not say how many tokens came from the prefix cache.
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": generated - returned},
    }


def details(
    answer: Answer, decision: Decision | None, cost_model: CostModel, total_s: float | None
) -> dict[str, Any]:
    """Return the object `uniscale` of a response.

    Args:
        answer: The Answer.
        decision: Its Decision, if known.
        cost_model: Cost model of the current catalogue.
        total_s: Total time in seconds; None if unknown.
    """
    return {
        "action": answer.action.id if answer.action else None,
        "objective": None if decision is None else objective(decision.objective),
        "group": None if decision is None else decision.cohort,
        **picked(answer, "status", "complete", "score", "seq"),
        "scores": [one.score for one in answer.answers],
        "restricted": [] if decision is None else list(decision.required),
        "attempts": answer.attempt,
        "earlier": [
            {
                "action": each.action.id,
                "cost": each.cost,
                **picked(each, "attempt", "cause"),
                "error": why_earlier(each.error, answer.query_id) if each.error else "",
            }
            for each in (() if decision is None else decision.earlier)
            if each.attempt < answer.attempt
        ],
        **_costs(answer, cost_model),
        "timings": timings(answer.spent, total_s),
        "error": why(answer),
    }


def timings(spent: Spent, total_s: float | None) -> dict[str, float]:
    """Return how a query's time was spent, in seconds; `rest_s` is the part of `total_s` outside all components."""
    found = structs.asdict(spent)
    if total_s is not None:
        found |= {"rest_s": max(0.0, total_s - spent.total_s), "total_s": total_s}
    return {name: round(float(seconds), 4) for name, seconds in found.items()}


def objective(in_force: ObjectiveInForce) -> dict[str, Any]:
    """Return an objective as JSON."""
    weights = {"weights": picked(in_force.weights, "correct", "score", "cost")}
    return (
        {"name": in_force.name, "aim": in_force.kind}
        | picked(in_force, "mean_cost", "accuracy", "price")
        | {"unit": in_force.cost_range.unit}
        | weights
    )


def _costs(answer: Answer, cost_model: CostModel) -> dict[str, Any]:
    """Return the cost under the name of its unit; both units are null if nothing ran or the cost is unknown."""
    cost = price(answer, cost_model)
    if cost is None or cost.unit == "usd":
        return {"eflops": None, "usd": None if cost is None else cost.cost}
    return {"eflops": parts(cost), "usd": None}


def price(answer: Answer, cost_model: CostModel) -> Cost | None:
    """Return the cost of the search; None if nothing ran or the cost is unknown."""
    try:
        return cost_of(answer, cost_model)
    except (UnpricedAnswer, ValueError, ArithmeticError):
        return None  # a foreign trace may hold anything the schema allows


def parts(cost: Cost) -> dict[str, float]:
    """Return a cost in eFLOPs by its parts."""
    return {
        "total": cost.cost,
        "prefill": cost.prefill_eflops,
        "decoding": cost.decoding_eflops,
        "verifier": cost.verifier_eflops,
    }


def total(price: Cost | None, decision: Decision | None) -> float | None:
    """Return a query's total cost, given that of its last attempt; None if nothing ran or the cost is unknown."""
    before = sum(each.cost for each in decision.earlier) if decision is not None else 0.0
    return before + price.cost if price is not None else before or None


def cut(answer: Answer, cost_model: CostModel) -> float:
    """Return an upper bound on the cost of a step cut by the deadline; 0 if unknown."""
    try:
        return cost_of_cut(answer, cost_model)
    except (UnpricedAnswer, ValueError, ArithmeticError):
        return 0.0


def finish_reason(answer: Answer) -> str:
    """Return `stop` for a completed path (a client's stop text completes it), `length` for one cut off.

    An upstream's own reason for a completed path, such as `tool_calls`, takes precedence.
    """
    if answer.upstream is not None and answer.complete:
        return answer.upstream.finish_reason
    return "stop" if answer.complete else "length"


def fingerprint(decision: Decision | None) -> str | None:
    """Return `action@seq`: the configuration that ran, and the state of the policy that chose it."""
    return None if decision is None else f"{decision.action.id}@{decision.seq}"


def model_of(answer: Answer) -> str:
    """Return the model that ran, never the virtual name in the request."""
    return answer.action.model if answer.action else ""


def headers(decision: Decision | None, query_id: str, request_id: str, *, debug: bool) -> dict[str, str]:
    """Return the headers that report the choice and, with `debug`, how it was made."""
    found = {"x-request-id": request_id, "x-uniscale-query-id": query_id}
    if decision is None:
        return found
    found |= {"x-uniscale-model": decision.action.model, "x-uniscale-action": decision.action.id}
    if debug:
        found |= {
            "x-uniscale-seq": str(decision.seq),
            "x-uniscale-policy": f"{decision.policy.name}@{decision.policy.version}",
            "x-uniscale-reason": decision.reason,
            "x-uniscale-cohort": decision.cohort,
            "x-uniscale-candidates": str(decision.candidates),
        }
        if decision.propensity is not None:
            found["x-uniscale-propensity"] = f"{decision.propensity:.6g}"
    return found


def query_object(timeline: Timeline, cost_model: CostModel) -> dict[str, Any]:
    """Return what is known about one query: `GET /v1/queries/{id}`."""
    decision, answer = timeline.decision, timeline.answer
    found: dict[str, Any] = {
        "id": timeline.query_id,
        "object": "query",
        "status": answer.status if answer else "pending",
    }
    if decision is not None:
        found["decision"] = {
            **picked(decision, "cohort", "reason", "seq", "mean", "width"),
            **picked(decision, "candidates", "propensity", "price_factor"),
            "prices": None
            if decision.prices is None
            else picked(decision.prices, "input", "cached_input", "output"),
            "question": decision.query.question,
            "action": decision.action.id,
            "objective": objective(decision.objective),
            "policy": picked(decision.policy, "name", "version"),
            "features": list(decision.features),
            "predicted": terms(decision.predicted, decision.objective.cost_range.unit),
            "runners_up": [_runner_up(each, decision) for each in decision.runners_up],
        }
    if answer is not None:
        found["answer"] = {
            **picked(answer, "text", "extracted", "complete"),
            "message": None if answer.upstream is None else answer.upstream.message,
            "usage": priced_usage(answer, decision, cost_model),
            **details(answer, decision, cost_model, timeline.total_s),
        }
        found["search"] = drafts(answer.trace, answer.path)
    if timeline.reward is not None:
        found["reward"] = reward(timeline.reward)
    return found


def _runner_up(each: ScoredAction, decision: Decision) -> dict[str, Any]:
    predicted = terms(each.predicted, decision.objective.cost_range.unit)
    return picked(each, "action", "mean", "width", "score") | {"predicted": predicted}


def terms(predicted: Predicted | None, unit: CostUnit) -> dict[str, float | None] | None:
    """Return predicted terms as JSON, with the typical cost under the name of its unit; None if there are none."""
    if predicted is None:
        return None
    # With little data, a regression's prediction may exceed the range of a float.
    cost = math.exp(predicted.log_cost) if abs(predicted.log_cost) < 700 else None
    return {**picked(predicted, "correct", "score", "log_cost"), unit: cost}


def reward(stage: Reward) -> dict[str, Any]:
    """Return one stage of a query's reward."""
    terms = (
        "correct",
        "score",
        "log_cost",
        "reward",
        "graded_by",
        "grader",
        "rule",
        "missing",
        "latency_s",
        "closed_early",
    )
    return picked(stage, "kind", "closes", *terms)


def drafts(trace: Sequence[Draft], path: Sequence[int]) -> list[dict[str, Any]]:
    """Return drafts as the page draws them, a parent before its children.

    Args:
        trace: The drafts.
        path: Indices of the chosen path.
    """
    shown = ("parent", "tree", "depth", "tokens", "score", "fate", "bound", "text")
    return [{"at": at, "chosen": at in path, **picked(draft, *shown)} for at, draft in enumerate(trace)]
