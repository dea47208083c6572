"""LinUCB that forgets, for traffic that drifts; off by default, since the paper keeps every observation.

`SlidingWindow` removes the oldest row exactly: A - x xᵀ by a downdate of A⁻¹. `Discounted` weighs a row by
γ^(age in decisions). Age counts decisions, not rewards, so that a burst of late rewards ages nothing (as in
ParetoBandit). The width stays α√(xᵀA⁻¹x); the second matrix of D-LinUCB is not kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from agents.decider.features import FeatureMap
from agents.decider.policies.base import Context, Matrix, Objective, Observation, Pending, Scores
from agents.decider.policies.envelope import pack, unpack
from agents.decider.policies.linear.linucb import LinearOptions, LinUCB, LinUCBSettings
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, policy

RIDGE_FLOOR: Final = 0.9
"""When the discount has left this share of λ, A is factorised again with the full λ. Decay also shrinks the
regulariser, and restoring it is a full-rank change: O(d³), once in ln(0.9)/ln(γ) decisions (105 at γ = 0.999)."""


class SlidingWindow(LinUCB):
    """LinUCB over the last `window` rewarded rows, in the order in which their rewards came."""

    order_free = False

    def __init__(self, features: FeatureMap, settings: LinUCBSettings | None = None, *, window: int) -> None:
        if window < 1:
            raise ValueError(f"window is {window!r}; give the number of rows to keep, one or more")
        super().__init__(features, settings, name="sliding-window")
        self.window = window
        self._kept: deque[Observation] = deque()

    def update(self, observations: Sequence[Observation]) -> None:
        """Add new rows and remove those that leave the window."""
        super().update(observations)
        self._kept.extend(observations)
        leaving = [self._kept.popleft() for _ in range(len(self._kept) - self.window)]
        if leaving:
            x, targets = self.rows(leaving)
            self.learn(x, targets, -1.0)
            self._widen_by(leaving, -1.0)

    def correct(self, observations: Sequence[Observation]) -> None:
        """Correct rows that are still in the window; corrections of other rows are counted but change nothing."""
        late = {o.observation_id: o for o in observations}
        inside = {o.observation_id for o in self._kept} & late.keys()
        super().correct([o for o in observations if o.observation_id in inside])
        self._corrections += len(observations) - len(inside)
        self._kept = deque(late.get(o.observation_id, o) for o in self._kept)

    def state(self) -> bytes:
        """Serialise LinUCB's state and the window's rows."""
        rows = [
            [
                o.observation_id,
                o.action_id,
                o.correct,
                o.score,
                o.log_cost,
                o.imputed,
                o.clock,
                *_plain(o.objective),
            ]
            for o in self._kept
        ]
        queries = np.array([o.embedding for o in self._kept]).reshape(
            len(rows), self.features.settings.query_dim
        )
        inner = np.frombuffer(super().state(), dtype=np.uint8)
        return pack("window", {"window": self.window}, {"rows": rows}, {"inner": inner, "queries": queries})

    def load(self, data: bytes) -> None:
        """Become a serialised state."""
        meta, arrays = unpack(data, "window", {"window": self.window})
        super().load(arrays["inner"].tobytes())
        self._kept = deque(
            Observation(
                observation_id=i,
                embedding=query,
                action_id=action,
                correct=correct,
                score=score,
                log_cost=log_cost,
                imputed=imputed,
                clock=clock,
                objective=Objective(*objective),
            )
            for query, (i, action, correct, score, log_cost, imputed, clock, *objective) in zip(
                arrays["queries"], meta["rows"], strict=True
            )
        )


class Discounted(LinUCB):
    """LinUCB that weighs each row by γ to the power of the number of decisions made since its own.

    A is kept in units of an epoch t₀: A_t = γ^(t - t₀)·A. A row decided at s then enters with the fixed weight
    γ^(t₀ - s), θ̂ is the same in both units, and only the width needs the factor γ^(-(t - t₀)/2).
    """

    def __init__(self, features: FeatureMap, settings: LinUCBSettings | None = None, *, gamma: float) -> None:
        if not 0.0 < gamma < 1.0:
            raise ValueError(f"gamma is {gamma!r}; give a discount above 0 and below 1")
        super().__init__(features, settings, name="discounted")
        if self.settings.widths != "rewarded":
            raise ValueError(
                "widths is 'decided'; a discounted policy counts rewarded rows only, set 'rewarded'"
            )
        self.gamma = gamma
        self.counts_decisions = True
        self.clock = 0
        self._period = max(1, math.ceil(math.log(RIDGE_FLOOR) / math.log(gamma)))
        self._epoch = 0

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Score with the width in today's units."""
        factor = self.gamma ** (-(self.clock - self._epoch) / 2.0)
        return self.scores_at(contexts, objectives, seed, self.settings.alpha * factor)

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Advance the decision clock; restore λ when the discount has eaten a tenth of it."""
        self.clock += len(decisions)
        # Epochs are multiples of the period, so that decisions lead to the same state alone or in a batch.
        epoch = self.clock // self._period * self._period
        if epoch > self._epoch:
            self.gram.rescale(self.gamma ** (epoch - self._epoch))
            self._epoch = epoch

    def rows(self, observations: Sequence[Observation]) -> tuple[Matrix, Matrix]:
        """Return rows scaled by the root of their weight."""
        x, targets = super().rows(observations)
        root = np.array([self.gamma ** ((self._epoch - o.clock) / 2.0) for o in observations])[:, None]
        return x * root, targets * root

    def corrections(self, observations: Sequence[Observation]) -> Any:
        """Return corrections scaled like their rows."""
        root = np.array([self.gamma ** ((self._epoch - o.clock) / 2.0) for o in observations])
        return super().corrections(observations) * root

    def state(self) -> bytes:
        """Serialise LinUCB's state and the clock."""
        inner = np.frombuffer(super().state(), dtype=np.uint8)
        return pack(
            "discount", {"gamma": self.gamma}, {"clock": self.clock, "epoch": self._epoch}, {"inner": inner}
        )

    def load(self, data: bytes) -> None:
        """Become a serialised state."""
        meta, arrays = unpack(data, "discount", {"gamma": self.gamma})
        super().load(arrays["inner"].tobytes())
        self.clock, self._epoch = meta["clock"], meta["epoch"]


def _plain(objective: Objective) -> tuple[float, ...]:
    o = objective
    return o.correct, o.score, o.cost, o.log_cost_min, o.log_cost_max


class WindowOptions(LinearOptions, frozen=True, kw_only=True):
    """Options of `sliding-window`.

    Attributes:
        window: Rows kept.
    """

    window: int = 10_000


class DiscountOptions(LinearOptions, frozen=True, kw_only=True):
    """Options of `discounted`.

    Attributes:
        gamma: Discount per decision.
    """

    gamma: float = 0.999


@policy("sliding-window", WindowOptions)
def _sliding_window(options: WindowOptions, on: Inputs) -> Policy:
    return SlidingWindow(on.features(options), options.linear, window=options.window)


@policy("discounted", DiscountOptions)
def _discounted(options: DiscountOptions, on: Inputs) -> Policy:
    return Discounted(on.features(options), options.linear, gamma=options.gamma)
