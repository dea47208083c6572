"""What an operator sees of an objective with a target: its account as metrics, and a word where it cannot be met.

The log says once that a target cannot be met, with what can be, and once that it can be again.
"""

import logging
from collections import OrderedDict
from typing import Final

from agents.decider.log.rows import aim_of
from agents.decider.policies.base import Account, Aim
from agents.decider.policies.policy import Policy
from schemas.objective import ObjectiveInForce
from streams.metrics import Metrics

log = logging.getLogger("streams.decider")

EVERY: Final = 100
"""Decisions of an objective between two looks: a look predicts every configuration on every recent query."""

_KEPT: Final = 64
"""Objectives: queries may state targets of their own, as many as they like."""


class Pacing:
    """What was said and is shown, by objective.

    Args:
        metrics: Where accounts are shown.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seen: OrderedDict[str, tuple[int, bool]] = OrderedDict()
        self._shown: dict[str, str] = {}

    def decided(self, objective: ObjectiveInForce, policy: Policy) -> None:
        """Take note of a decision; look for a shortfall at the first and at every hundredth after it."""
        aim = aim_of(objective)
        if objective.name is not None:
            self._forget(objective.name, aim)
        if aim is None:
            return
        count, short = self._seen.pop(aim.key, (0, False))
        if count % EVERY == 0:
            short = self._told(objective, policy.shortfall(aim), short)
        self._seen[aim.key] = count + 1, short
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)
        if objective.name is not None:
            self._show(objective.name, aim, policy.account(aim))

    def _forget(self, name: str, aim: Aim | None) -> None:
        """Remove the metrics of a named objective whose target is another one now, or none."""
        if name not in self._shown or (aim is not None and self._shown[name] == aim.key):
            return
        del self._shown[name]
        shown = self._metrics
        for gauge in (shown.objective_price, shown.objective_cost, shown.objective_accuracy):
            gauge.remove_by_labels({"objective": name})

    def _show(self, name: str, aim: Aim, account: Account | None) -> None:
        """Set the metrics of a named objective; targets that queries state themselves would make a series each."""
        if account is None:
            return
        self._shown[name] = aim.key
        self._metrics.objective_price.labels(name).set(account.price)
        cost, accuracy = self._metrics.objective_cost, self._metrics.objective_accuracy
        if aim.mean_cost is not None:
            cost.labels(name, "target").set(aim.mean_cost)
        cost.labels(name, "spent").set(account.mean_cost)
        if account.predicted is not None and account.correct is not None:
            accuracy.labels(name, "predicted").set(account.predicted)
            accuracy.labels(name, "true").set(account.correct)

    def _told(self, objective: ObjectiveInForce, best: float | None, before: bool) -> bool:
        name = objective.name or "stated by a query"
        if best is None:
            if before:
                log.info("objective %s: its target can be met again", name)
            return False
        if not before and objective.mean_cost is not None:
            log.warning(
                "objective %s: a mean cost of %.4g eFLOPs cannot be met; recent queries cost %.4g at least. "
                "Raise the target, or offer cheaper configurations",
                name, objective.mean_cost, best,
            )  # fmt: skip
        elif not before:
            log.warning(
                "objective %s: %.4g of the best configuration's accuracy cannot be met; %.4g can be had on recent "
                "queries. Lower the target",
                name, objective.accuracy, best,
            )  # fmt: skip
        return True
