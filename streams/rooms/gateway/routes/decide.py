"""`/v1/decide`: which configuration a request would run, and why. Runs nothing and learns nothing."""

import math
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agents.decider.preview import PREVIEW, Configuration, Preview
from schemas.decision import Predicted
from streams.rooms.gateway.deciders import Deciders
from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.openai import responses
from streams.rooms.gateway.openai.request import parse, to_query
from streams.rooms.gateway.routes.guard import Listing, body_of, reply
from streams.rooms.gateway.service import Service


class Decide:
    """Previews of decisions.

    Args:
        service: Model names and limits.
        deciders: Who answers.
    """

    def __init__(self, service: Service, deciders: Deciders) -> None:
        self.service = service
        self.deciders = deciders

    def routes(self) -> Listing:
        """Return the routes."""
        return [("POST", "/v1/decide", self.decide)]

    async def decide(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/decide: the body of a completion."""
        who.require("ask")
        asked = parse(await body_of(request), strict=self.service.runtime.settings.gateway.strict)
        wanted = self.service.asked(asked.model)
        query = to_query(asked, wanted, query_id=PREVIEW, tenant=who.tenant, kept={})
        self.service.gate.check(who, asked.model, query)
        return reply(body(await self.deciders.preview(query)))


def body(found: Preview) -> dict[str, Any]:
    """Return a preview as JSON: the choice, then every configuration with what is predicted of it."""
    chosen = next(each for each in found.configurations if each.action == found.action)
    others = [each for each in found.configurations if each.action != found.action]
    return {
        "object": "decision.preview",
        "model": found.action.partition("/")[0],
        "action": found.action,
        "group": found.group,
        "reason": found.reason,
        "objective": responses.objective(found.objective),
        "shortfall": found.shortfall,
        "policy": {"name": found.policy.name, "version": found.policy.version},
        "seq": found.seq,
        "catalogue_version": found.catalogue_version,
        "candidates": len(found.configurations),
        "masked_models": list(found.masked_models),
        "served": found.served,
        "choice": _configuration(chosen),
        "runner_up": _configuration(others[0]) if others else None,
        "configurations": [_configuration(each) for each in found.configurations],
    }


def _configuration(each: Configuration) -> dict[str, Any]:
    return {
        "action": each.action, "mean": each.mean, "width": each.width, "score": each.score,
        "propensity": each.propensity, "predicted": None if each.predicted is None else _predicted(each.predicted),
    }  # fmt: skip


def _predicted(terms: Predicted) -> dict[str, float | None]:
    # A regression that has seen little may leave the range of a float.
    eflops = math.exp(terms.log_cost) if abs(terms.log_cost) < 700 else None
    return {"correct": terms.correct, "score": terms.score, "log_cost": terms.log_cost, "eflops": eflops}
