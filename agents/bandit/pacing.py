"""The pacer: finds the shadow price λ per unit of cost that meets an objective's target for mean cost or accuracy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from agents.bandit.policy import BudgetStatus, Matrix, Target, Vector
from schemas.prices import Rate

# The choices that current predictions imply for recent queries at a given λ, and the λ that meets a target.

STEPS: Final = 30
"""Number of bisection steps on ln λ within e^±10 of the predictions' scale. They determine λ to eight digits."""


@dataclass(frozen=True)
class Forecast:
    """Predictions for every available action in each of m contexts.

    Attributes:
        accuracy: Predicted accuracy, shape (m, n).
        cost: Predicted cost, shape (m, n).
        doubt: Standard deviation of the mean over contexts of the best action's predicted accuracy.
        learning: Whether the predictions come from the traffic's own first outcomes, without a history.
    """

    accuracy: Matrix
    cost: Matrix
    doubt: float = 0.0
    learning: bool = False

    def choices(self, shadow_price: float) -> np.ndarray:
        """Return the index of the action chosen for each context at a given shadow price, shape (m,)."""
        return np.asarray((self.accuracy - shadow_price * self.cost).argmax(axis=1))

    def mean_cost(self, shadow_price: float) -> float:
        """Return the mean cost of the choices at a given shadow price."""
        return _mean(self.cost, self.choices(shadow_price))

    def mean_accuracy(self, shadow_price: float) -> float:
        """Return the mean accuracy of the choices at a given shadow price."""
        return _mean(self.accuracy, self.choices(shadow_price))

    def best_accuracy(self, *, reachable: bool) -> float:
        """Return the mean accuracy of the action that is best on average, or of the best action for each context.

        Args:
            reachable: Whether to use the best action for each context. Because the best of many predictions is often
                just the luckiest, the uncertainty of their mean is subtracted, but the result is never below the
                accuracy of the action that is best on average.
        """
        single = float(self.accuracy.mean(axis=0).max())
        return max(single, float(self.accuracy.max(axis=1).mean()) - self.doubt) if reachable else single


def shadow_price_for_cost(forecast: Forecast, target: float) -> float:
    """Return the smallest λ at which the mean cost of the choices stays within a target.

    >>> two = Forecast(np.array([[0.5, 0.9]] * 2), np.array([[1.0, 3.0], [1.0, 9.0]]))
    >>> shadow_price_for_cost(two, 2.0).__round__(3)
    0.05
    """

    def within(shadow_price: float) -> bool:
        return forecast.mean_cost(shadow_price) <= target

    return 0.0 if within(0.0) else _least(within, _scale(forecast))


def shadow_price_for_accuracy(forecast: Forecast, share: float, *, reachable: bool = False) -> float:
    """Return the largest λ at which the mean accuracy of the choices is a share of the best (`best_accuracy`).

    If every predicted accuracy is 0, so is λ. Any λ would then meet the target, but λ is accuracy per eFLOP and tends
    to 0 as the accuracies do. The largest λ would be wrong: it would choose the cheapest action forever and never
    discover that a more expensive one is sometimes right.

    >>> cost = np.array([[1.0, 3.0], [1.0, 9.0]])
    >>> right = np.array([[0.5, 0.9]] * 2)
    >>> [
    ...     round(shadow_price_for_accuracy(Forecast(share * right, cost), 0.8), 6)
    ...     for share in (1.0, 0.01, 0.0)
    ... ]
    [0.05, 0.0005, 0.0]
    """
    best = forecast.best_accuracy(reachable=reachable)
    if best <= 0.0:
        return 0.0
    # If the target is the best action's own accuracy, rounding must not decide whether it is met.
    target = share * best * (1.0 - 1e-9)

    def below(shadow_price: float) -> bool:
        return forecast.mean_accuracy(shadow_price) < target

    # Just below the smallest shadow price at which the accuracy falls short.
    return _least(below, _scale(forecast)) * (1.0 - 1e-6)


def _mean(of: Matrix, chosen: np.ndarray) -> float:
    return float(np.take_along_axis(of, chosen[:, None], axis=1).mean())


def _scale(forecast: Forecast) -> float:
    return 1.0 / max(float(np.median(forecast.cost)), 1e-300)


def _least(holds: Callable[[float], bool], scale: float) -> float:
    """Return the smallest λ, within e^±10 of a scale, at which a monotone condition holds."""
    low, high = -10.0, 10.0
    if not holds(scale * float(np.exp(high))):
        return scale * float(np.exp(high))
    for _ in range(STEPS):
        middle = (low + high) / 2
        if holds(scale * float(np.exp(middle))):
            high = middle
        else:
            low = middle
    return scale * float(np.exp(high))


# The window of recent queries that represents a tenant. Predictions for these queries determine λ and which targets
# are infeasible.
#
# A target is met on its own tenant's queries, so other tenants' queries change neither its λ nor its charges. A prior's
# questions belong to no tenant, and represent every tenant until it has enough queries of its own. Without a prior, a
# tenant with few queries borrows the same number of queries from every other tenant, so that no single tenant sets λ
# for a newcomer.

WINDOW: Final = 500
"""Maximum number of contexts per tenant, and per prior, used to compute λ."""

FEW: Final = 10
"""A tenant with fewer contexts than this, including a prior's, borrows contexts from other tenants."""

KEPT: Final = 10_000
"""Maximum number of contexts across all tenants: 2 MB at 8 bytes per coordinate. Beyond it, the tenant with the most
contexts loses its oldest one."""


class RecentContexts:
    """Every tenant's latest contexts, as rows of shape (rank,).

    Attributes:
        prior: A prior's contexts.
        of: Each tenant's contexts.
    """

    def __init__(self) -> None:
        self.prior: deque[Vector] = deque(maxlen=WINDOW)
        self.of: dict[str, deque[Vector]] = {}
        self._count = 0

    def add(self, tenant: str, context: Vector) -> None:
        """Add a context for a tenant."""
        own = self.of.setdefault(tenant, deque(maxlen=WINDOW))
        self._count += len(own) < WINDOW
        own.append(context)
        if self._count > KEPT:
            fullest = max(self.of, key=lambda each: len(self.of[each]))
            self.of[fullest].popleft()
            self._count -= 1
            if not self.of[fullest]:  # a tenant without contexts would be kept here but lost in a snapshot
                del self.of[fullest]

    def replace(self, contexts: Iterable[tuple[str | None, Vector]]) -> None:
        """Replace all contexts with (tenant, context) pairs, where a prior's have tenant None.

        The latest of each tenant are kept, and of a prior evenly spaced ones, because a table is often sorted.
        """
        self.prior.clear()
        self.of, self._count = {}, 0
        prior: list[Vector] = []
        for tenant, context in contexts:
            if tenant is None:
                prior.append(context)
            else:
                self.add(tenant, context)
        kept = min(len(prior), WINDOW)
        self.prior.extend(prior[at * len(prior) // kept] for at in range(kept))

    def change(self, of: Callable[[Vector], Vector]) -> None:
        """Replace each context with `of(context)` after the meaning of its coordinates has changed."""
        for contexts in (self.prior, *self.of.values()):
            for at, context in enumerate(contexts):
                contexts[at] = of(context)

    def window(self, tenant: str) -> list[Vector]:
        """Return a tenant's window: the contexts that its targets are to be met on, newest last."""
        own = [*self.prior, *self.of.get(tenant, ())][-WINDOW:]
        if not self.borrows(tenant):
            return own
        others = [list(each) for name, each in self.of.items() if name != tenant]
        share = max(1, (FEW - len(own)) // len(others))
        return [*[context for each in others for context in each[-share:]][len(own) - FEW :], *own]

    def borrows(self, tenant: str) -> bool:
        """Return whether a tenant's window contains other tenants' contexts."""
        own = len(self.of.get(tenant, ()))
        return len(self.prior) + own < FEW and self._count > own

    def snapshot(self) -> tuple[dict[str, int], dict[str, Matrix]]:
        """Return the number of contexts per tenant, and arrays with the prior's and the tenants' contexts."""
        counts = {tenant: len(own) for tenant, own in self.of.items()}
        windows = [context for own in self.of.values() for context in own]
        return counts, {"window": np.array(self.prior), "windows": np.array(windows)}

    def restore(self, counts: dict[str, int], arrays: dict[str, Matrix]) -> None:
        """Restore what `snapshot` returned."""
        names = [tenant for tenant, count in counts.items() for _ in range(count)]
        self.replace(
            [
                *((None, context) for context in arrays["window"]),
                *zip(names, arrays["windows"], strict=True),
            ]
        )


# The pacer: finds the shadow price λ per unit of cost that meets an objective's target for mean cost or accuracy.
#
# For either target, λ is found from the choices that current predictions imply for the latest contexts:
#
# - mean cost: the smallest λ at which the mean predicted cost stays within the target, corrected for spending since the
#   target was set, so that a bias in the predictions cannot accumulate;
# - accuracy: the largest λ at which the mean predicted accuracy is the requested share of the best possible accuracy.
#
# The pacer's state is a fold over decisions and updates in log order. The current λ is read once per batch.

EVERY: Final = 20
"""Number of decisions between computations of λ, each of which takes about 5 ms with 168 actions."""

CATCH_UP: Final = 50.0
"""Number of decisions used to compensate for earlier overspending or underspending. If λ jumps between two mixes of
actions, spending oscillates about the target: after 1,000 queries, by up to 14 % with a value of 100, by 3 % with
50."""

TRUST: Final = 20.0
"""Weight of the uncorrected predictions in an account's correction, as a number of outcomes."""

RARE: Final = 0.2
"""If the share of correct answers is below this, a policy without a history keeps looking for a model that can answer
at all."""

FADING: Final = 0.95
"""Weight of an outcome's cost relative to the next one's. The latest 20 outcomes carry two thirds of the total."""

MARGIN: Final = (0.3, 2.0)
"""Bounds on the adjusted target, as multiples of the target, so that compensating for overspending does not sacrifice
all quality."""

KEYS: Final = 1024
"""Maximum number of accounts, at 300 bytes each. Beyond it, the tenant with the most accounts loses its least recently
used one."""


@dataclass(slots=True)
class BudgetAccount:
    """The account of one tenant under one objective.

    Attributes:
        price: The current λ.
        decisions: Number of decisions since the target was set, excluding the control group's.
        spent: Total cost of these decisions: realised if known, otherwise predicted.
        known: Number of decisions with known correctness.
        predicted: Sum of the predicted accuracies of the decisions in `known`.
        correct: Sum of their true accuracies. Its ratio to `predicted` is the calibration.
        told, paid: Discounted sums of predicted and realised cost. When searches become more expensive, their ratio
            changes long before the regression does.
        factors: The price factors that λ was computed for.
    """

    price: float = 0.0
    decisions: int = 0
    spent: float = 0.0
    known: int = 0
    predicted: float = 0.0
    correct: float = 0.0
    told: float = 0.0
    paid: float = 0.0
    factors: dict[str, Rate] = field(default_factory=dict)

    @property
    def dearer(self) -> float:
        """Return the ratio of the choices' true cost to their predicted cost; 1 before the first outcome."""
        return self.paid / self.told if self.paid > 0 and self.told > 0 else 1.0

    @property
    def optimism(self) -> float:
        """Return the ratio of true to predicted accuracy, capped at 1. The best of many tends to be overestimated."""
        return min(1.0, (self.correct + TRUST) / (self.predicted + TRUST))

    def judged(self, predicted: float, correct: float) -> None:
        """Add one decision's correctness to the calibration."""
        self.known += 1
        self.predicted += predicted
        self.correct += correct

    def momentary(self, target: float) -> float:
        """Return the target for the predicted mean cost, adjusted for past spending and prediction bias."""
        saved = target * self.decisions - self.spent
        low, high = (share * target for share in MARGIN)
        wanted = min(max(target + saved / CATCH_UP, low), high)
        return wanted * self.told / self.paid if self.paid > 0 and self.told > 0 else wanted


@lru_cache(maxsize=4096)
def _account(tenant: str, key: str) -> tuple[str, str]:
    """Return an account's id, cached so that the account's possibly many open decisions share one object."""
    return tenant, key


class Pacer:
    """All tenants' accounts under all objectives with a target, and their shadow prices.

    Args:
        predict: Maps contexts as rows, shape (m, rank), to the predictions for every available action, or to None
            before the first outcome.
        reachable: Which accuracy a target is a share of (`Forecast.best_accuracy`).

    Attributes:
        factors: The models' current price factors or prices.
        recent: The windows of contexts that targets are to be met on.
        accounts: The accounts, keyed by tenant and objective.
        open: For each decision without an outcome, its account, predicted cost and predicted accuracy.
    """

    def __init__(self, predict: Callable[[Matrix], Forecast | None], *, reachable: bool) -> None:
        self._predict, self._reachable = predict, reachable
        self.factors: dict[str, Rate] = {}
        self.recent = RecentContexts()
        self.accounts: dict[tuple[str, str], BudgetAccount] = {}
        self.open: dict[str, tuple[tuple[str, str], float, float]] = {}

    def shadow_price(self, target: Target) -> float:
        """Return λ, the shadow price per unit of cost that currently meets a target, without changing state.

        This is the last value computed, or a new one if the target is new or price factors have changed since.
        """
        account = self.accounts.get(target.account_id)
        return self._solved(target) if account is None or account.factors != self.factors else account.price

    def _solved(self, target: Target) -> float:
        """Return the λ that meets a target on its tenant's window; 0 before the first outcome."""
        forecast = self.forecast(target.tenant)
        if forecast is None:
            return 0.0
        if target.mean_cost is not None:
            return shadow_price_for_cost(forecast, self._account_of(target).momentary(target.mean_cost))
        assert target.accuracy is not None
        share = target.accuracy / self._optimism(target, forecast)
        return shadow_price_for_accuracy(forecast, share, reachable=self._reachable)

    def shortfall(self, target: Target) -> float | None:
        """Return the closest feasible value for an infeasible target; None if it is feasible or nothing is learned yet.

        This is the smallest mean cost, or the largest share of the best possible accuracy, on the tenant's window.
        """
        forecast = self.forecast(target.tenant)
        if forecast is None:
            return None
        if target.mean_cost is not None:
            least = float(forecast.cost.min(axis=1).mean()) * self._account_of(target).dearer
            return least if least > target.mean_cost else None
        assert target.accuracy is not None
        best = forecast.best_accuracy(reachable=self._reachable)
        if best <= 0.0:
            return None  # no answer was right yet: the feasible share is unknown
        most = forecast.mean_accuracy(0.0) / best * self._optimism(target, forecast)
        return most if most < target.accuracy else None

    def forecast(self, tenant: str = "") -> Forecast | None:
        """Return the predictions for every available action on a tenant's window; None if the window is empty."""
        window = self.recent.window(tenant)
        return self._predict(np.array(window)) if window else None

    def decided(self, target: Target, query_id: str, cost: float, accuracy: float) -> None:
        """Record a decision, and recompute λ if that is due.

        Args:
            target: The target of the decision's objective.
            query_id: The decision's query.
            cost: Predicted cost of the chosen action.
            accuracy: Predicted accuracy of the chosen action.
        """
        shadow_price = self.shadow_price(target)
        account_id = _account(*target.account_id)
        account = self.accounts.pop(account_id, None) or BudgetAccount()
        account.price, account.factors = shadow_price, self.factors
        self.accounts[account_id] = account  # the newest comes last
        if len(self.accounts) > KEYS:
            oldest = spare(self.accounts)
            del self.accounts[oldest]
            self.open = {i: entry for i, entry in self.open.items() if entry[0] != oldest}
        account.decisions += 1
        account.spent += cost
        self.open[query_id] = (account_id, cost, accuracy)
        if account.decisions % EVERY == 0 or self.recent.borrows(target.tenant):
            account.price = self._solved(target)

    def settled(
        self, query_id: str, cost: float | None, correct: float | None, *, usual: bool = True
    ) -> None:
        """Record the outcome of a decision.

        Args:
            query_id: The decision's query. A query that was not paced has no effect.
            cost: The decision's cost; None if nothing was run.
            correct: The decision's correctness; None if unknown, or not yet known (`judged`).
            usual: Whether the cost counts towards the prediction bias. The cost of a failure does not.
        """
        entry = self.open.pop(query_id, None)
        if entry is None:
            return
        account_id, expected, accuracy = entry
        account = self.accounts[account_id]
        account.spent += (cost or 0.0) - expected
        if cost is not None and usual:
            account.told = FADING * account.told + expected
            account.paid = FADING * account.paid + cost
        if correct is not None:
            account.judged(accuracy, correct)

    def judged(self, target: Target, accuracy: float, correct: float) -> None:
        """Record the correctness of a decision whose outcome was recorded without it.

        Args:
            target: The target of the decision's objective.
            accuracy: The decision's predicted accuracy.
            correct: The decision's correctness.
        """
        if (account := self.accounts.get(target.account_id)) is not None:
            account.judged(accuracy, correct)

    def status(self, target: Target) -> BudgetStatus | None:
        """Return the mean results of all tenants' decisions under an objective; None until this tenant has made one."""
        own = self.accounts.get(target.account_id)
        if own is None or not own.decisions:
            return None
        accounts = [account for (_, key), account in self.accounts.items() if key == target.key]
        known = sum(account.known for account in accounts) or None
        return BudgetStatus(
            shadow_price=own.price,
            mean_cost=sum(account.spent for account in accounts)
            / sum(account.decisions for account in accounts),
            predicted=known and sum(account.predicted for account in accounts) / known,
            correct=known and sum(account.correct for account in accounts) / known,
        )

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Matrix]]:
        """Return the accounts and windows as (plain values, arrays)."""
        counts, arrays = self.recent.snapshot()
        accounts = {
            "paces": [[*account_id, _plain(account)] for account_id, account in self.accounts.items()],
            "open": {
                i: [*account_id, cost, accuracy] for i, (account_id, cost, accuracy) in self.open.items()
            },
        }
        return {"pacer": accounts, "windows": counts}, arrays

    def restore(self, meta: dict[str, Any], arrays: dict[str, Matrix]) -> None:
        """Restore what `snapshot` returned."""
        self.recent.restore(meta["windows"], arrays)
        accounts = meta["pacer"]
        self.accounts = {(tenant, key): _account_from(account) for tenant, key, account in accounts["paces"]}
        self.open = {i: (_account(e[0], e[1]), e[2], e[3]) for i, e in accounts["open"].items()}

    def _optimism(self, target: Target, forecast: Forecast) -> float:
        """Return the correction factor for the choices' predicted accuracy, relative to the best accuracy.

        Without a history, both accuracies are predicted from the same few outcomes, and both are too high by the same
        factor. If only the choices' accuracy were corrected, the target would seem out of reach, λ would fall to 0, and
        any cost would be paid for no gain. That is intended only while answers are rarely right, because every model
        then has to be tried, even the most expensive one.
        """
        account = self._account_of(target)
        rare = account.correct < RARE * account.known
        return 1.0 if forecast.learning and not rare else account.optimism

    def _account_of(self, target: Target) -> BudgetAccount:
        return self.accounts.get(target.account_id) or BudgetAccount()


def spare(accounts: Mapping[tuple[str, str], object]) -> tuple[str, str]:
    """Return the account to evict, given all in LRU order: the first belonging to the tenant with the most accounts.

    >>> spare({("shop", "careful"): 1, ("evil", "1"): 2, ("evil", "2"): 3})
    ('evil', '1')
    """
    most, _ = Counter(tenant for tenant, _ in accounts).most_common(1)[0]
    return next(account_id for account_id in accounts if account_id[0] == most)


def _plain(account: BudgetAccount) -> dict[str, Any]:
    """Return an account as plain values, omitting `factors` if no model has a price factor."""
    return {name: value for name, value in asdict(account).items() if value != {}}


def _account_from(plain: dict[str, Any]) -> BudgetAccount:
    """Return an account from plain values. Accounts saved by earlier releases lose their calibration."""
    if "rewarded" in plain:
        plain = {
            name: value for name, value in plain.items() if name not in ("rewarded", "predicted", "correct")
        }
    factors = msgspec.convert(plain.get("factors", {}), dict[str, Rate])
    return BudgetAccount(**{**plain, "factors": factors})
