"""The limits of a search: set once when it begins, from catalogue, deployment and query."""

from dataclasses import dataclass

import msgspec

from agents.space.models import Sampling
from schemas.decision import Decision
from schemas.forest import Limits


@dataclass(frozen=True)
class SearchRules:
    """The deployment's rules for searches. Attributes as in `schemas.forest.Limits`, whose defaults they replace.

    Attributes:
        timeout_s: For queries without their own.
        search_share: Share of the time until a query expires that its search may take. The rest is for the step in
            progress and for returning the Answer.
    """

    eta: float = 1.2
    early_exit: bool = True
    cut_completes: bool = False
    box_completes: bool = False
    timeout_s: float = 600.0
    search_share: float = 0.9


def limits(sampling: Sampling, rules: SearchRules) -> Limits:
    """Return the limits of any search, from the model's sampling and the rules; no budget, no deadline."""
    return Limits(
        depth_limit=sampling.depth_limit,
        step_tokens=sampling.step_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        delimiter=sampling.delimiter,
        thinking=sampling.thinking,
        eta=rules.eta,
        early_exit=rules.early_exit,
        cut_completes=rules.cut_completes,
        box_completes=rules.box_completes,
    )


def limits_of(decision: Decision, sampling: Sampling, rules: SearchRules) -> Limits:
    """Return the limits of a query's search, from the model's sampling, the rules, and the query's budget and time."""
    query = decision.query
    timeout_s = query.timeout_s if query.timeout_s is not None else rules.timeout_s
    # Without an append time, a deadline has no starting point.
    began_ms = decision.appended_ms or None
    return msgspec.structs.replace(
        limits(sampling, rules),
        budget_tokens=query.budget.tokens if query.budget else None,
        budget_eflops=query.budget.eflops if query.budget else None,
        max_tokens=query.max_tokens,
        stop=query.stop,
        seeded=query.seed is not None,
        answers=query.n,
        deadline_ms=began_ms and began_ms + int(timeout_s * rules.search_share * 1000),
        expires_ms=began_ms and began_ms + int(timeout_s * 1000),
        price_factor=decision.price_factor,
    )


def sampling_of(limits: Limits, max_tokens: int) -> Sampling:
    """Return the sampling with which a search began, whatever the catalogue says now."""
    return Sampling(
        temperature=limits.temperature,
        step_tokens=max_tokens,
        depth_limit=limits.depth_limit,
        top_p=limits.top_p,
        top_k=limits.top_k,
        delimiter=limits.delimiter,
        thinking=limits.thinking,
    )
