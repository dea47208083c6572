"""The pacer: the price λ of one eFLOP at which an objective by mean cost, or by accuracy, is met.

Both look back on the last contexts and ask what the policy, as it predicts now, would have chosen for them at some λ:

- mean cost: the least λ at which the mean predicted cost stays within the target, corrected by what was spent since
  the target was set, so that a bias of the predictions cannot accumulate;
- accuracy: the largest λ at which the mean predicted accuracy is the wanted share of the best single configuration's.

Its state is a fold over events in the one order of decisions and updates. The price in force is read once per batch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from agents.decider.policies.base import Account, Aim

EVERY: Final = 20
"""Decisions between two solutions for λ; one solution takes about 5 ms with 168 actions."""

CATCH_UP: Final = 100.0
"""Decisions over which earlier overspending or underspending is compensated."""

TRUST: Final = 20.0
"""Weight of the predictions, in outcomes, against the account's correction of them."""

FADING: Final = 0.95
"""Weight of an outcome's cost relative to the next one's: the last 20 make up two thirds of the total."""

MARGIN: Final = (0.3, 2.0)
"""Bounds of the momentary target, as shares of the target: a debt is paid off slowly, not by giving up all quality."""

KEYS: Final = 64
"""Most objectives paced at a time; the least recently used one is dropped first."""


@dataclass(slots=True)
class Pace:
    """The account of one objective.

    Attributes:
        price: λ in force.
        decisions: Made since the target was set, without the control group's.
        spent: What they cost: realised where it is known, predicted where it is not yet.
        rewarded: Decisions whose outcome is known, and the sums
        predicted: of their predicted accuracy and
        correct: of their true one: the calibration.
        told, paid: Predicted and realised cost, recent outcomes weighing most: where searches come to cost more than
            they did, their ratio says so long before the regression does.
        factors: The models' price factors for which λ was solved.
    """

    price: float = 0.0
    decisions: int = 0
    spent: float = 0.0
    rewarded: int = 0
    predicted: float = 0.0
    correct: float = 0.0
    told: float = 0.0
    paid: float = 0.0
    factors: dict[str, float] = field(default_factory=dict)


class Pacer:
    """The accounts of all objectives with an aim."""

    def __init__(self) -> None:
        self.paces: dict[str, Pace] = {}
        self.open: dict[str, tuple[str, float, float]] = {}

    def price(self, aim: Aim, factors: dict[str, float]) -> float | None:
        """Return the last solution for λ; None if the aim is new, or if models' prices have changed since."""
        pace = self.paces.get(aim.key)
        return None if pace is None or pace.factors != factors else pace.price

    def decided(
        self, aim: Aim, query_id: str, cost: float, accuracy: float, price: float, factors: dict[str, float]
    ) -> bool:
        """Record a decision; return whether the price is due to be solved again.

        Args:
            aim: The aim of its objective.
            query_id: Its query.
            cost: Predicted cost of the chosen action.
            accuracy: Its predicted accuracy.
            price: λ that was in force.
            factors: The models' price factors for which it was solved.
        """
        pace = self.paces.pop(aim.key, None) or Pace()
        pace.price, pace.factors = price, factors
        self.paces[aim.key] = pace  # the newest stands last
        if len(self.paces) > KEYS:
            oldest = next(iter(self.paces))
            del self.paces[oldest]
            self.open = {i: entry for i, entry in self.open.items() if entry[0] != oldest}
        pace.decisions += 1
        pace.spent += cost
        self.open[query_id] = (aim.key, cost, accuracy)
        return pace.decisions % EVERY == 0

    def settled(self, query_id: str, cost: float | None, correct: float | None) -> None:
        """Record the outcome of a decision.

        Args:
            query_id: Its query; a query that was not paced changes nothing.
            cost: Its cost; None if nothing was run.
            correct: Its correctness, or the imputed value.
        """
        entry = self.open.pop(query_id, None)
        if entry is None:
            return
        key, expected, accuracy = entry
        pace = self.paces[key]
        pace.spent += (cost or 0.0) - expected
        if cost is not None:
            pace.told = FADING * pace.told + expected
            pace.paid = FADING * pace.paid + cost
        if correct is not None:
            pace.rewarded += 1
            pace.predicted += accuracy
            pace.correct += correct

    def account(self, aim: Aim) -> Account | None:
        """Return the account of an aim in means; None before its first decision."""
        pace = self.paces.get(aim.key)
        if pace is None or not pace.decisions:
            return None
        known = pace.rewarded or None
        return Account(
            price=pace.price,
            mean_cost=pace.spent / pace.decisions,
            predicted=known and pace.predicted / known,
            correct=known and pace.correct / known,
        )

    def momentary(self, aim: Aim) -> float:
        """Return the predicted mean cost to aim at now, given what was spent and how costs compare with predictions."""
        assert aim.mean_cost is not None
        pace = self.paces.get(aim.key) or Pace()
        saved = aim.mean_cost * pace.decisions - pace.spent
        low, high = (share * aim.mean_cost for share in MARGIN)
        wanted = min(max(aim.mean_cost + saved / CATCH_UP, low), high)
        return wanted * pace.told / pace.paid if pace.paid > 0 and pace.told > 0 else wanted

    def dearer(self, aim: Aim) -> float:
        """Return true divided by predicted cost of the choices; 1 before there is any."""
        pace = self.paces.get(aim.key) or Pace()
        return pace.paid / pace.told if pace.paid > 0 and pace.told > 0 else 1.0

    def optimism(self, aim: Aim) -> float:
        """Return true divided by predicted accuracy of the choices: the best of many predictions is often too high."""
        pace = self.paces.get(aim.key) or Pace()
        return min(1.0, (pace.correct + TRUST) / (pace.predicted + TRUST))

    def snapshot(self) -> dict[str, Any]:
        """Return the accounts as plain values."""
        return {
            "paces": {key: _plain(pace) for key, pace in self.paces.items()},
            "open": {query_id: list(entry) for query_id, entry in self.open.items()},
        }

    def restore(self, meta: dict[str, Any]) -> None:
        """Become what `snapshot` returned."""
        self.paces = {key: Pace(**pace) for key, pace in meta["paces"].items()}
        self.open = {query_id: (e[0], e[1], e[2]) for query_id, e in meta["open"].items()}


def _plain(pace: Pace) -> dict[str, Any]:
    """Return an account as plain values, without `factors` if no model has a price."""
    return {name: value for name, value in asdict(pace).items() if value != {}}
