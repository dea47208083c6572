"""What the decider says of models that are no longer what was learned: metrics, and a line once."""

import math

import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.policy import Drift
from streams.metrics import Metrics
from streams.services.decider import DriftNotice
from tests.support.traffic import actions, contextual


@pytest.fixture
def policy() -> Contextual:
    """A policy that knows three models. How it comes to notice anything is tested in its own package."""
    made = contextual()
    made.offer(actions())
    made.estimates.tried = {"small": 1000, "middle": 1000, "large": 1000}
    return made


def cost_surprise(policy: Contextual, model: str, times: float) -> float:
    """Let a model's latest searches have cost so many times what was predicted; return the correction."""
    costs = policy.estimates.costs
    costs.sums[model] = (20.0, 20.0 * math.log(times))
    return costs.factor(model)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [message.partition(";")[0] for message in caplog.messages]
    caplog.clear()
    return said


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("decider")


def cost(metrics: Metrics, model: str) -> float | None:
    return metrics.registry.get_sample_value("uniscale_model_cost_drift", {"model": model})


def changes(metrics: Metrics, model: str) -> float | None:
    return metrics.registry.get_sample_value("uniscale_model_accuracy_drifts_total", {"model": model})


def test_each_change_is_said_once_and_shown_while_it_lasts(
    metrics: Metrics, caplog: pytest.LogCaptureFixture, policy: Contextual
) -> None:
    caplog.set_level("INFO")
    notice = DriftNotice(metrics)
    notice.learned(policy)
    assert told(caplog) == []
    assert cost_surprise(policy, "small", 3.0) == pytest.approx(2.4, abs=0.05)
    notice.learned(policy)
    assert told(caplog) == ["small: its searches cost 2.4 times what was learned"]
    factor = cost_surprise(policy, "small", 4.0)
    policy.estimates.accuracy.changed["large"] = 900
    notice.learned(policy)
    assert told(caplog) == ["large: its answers are right more or less often than was learned"]
    assert (cost(metrics, "small"), changes(metrics, "large")) == (factor, 1.0)
    notice.learned(policy)
    assert told(caplog) == []
    assert cost_surprise(policy, "small", 1.1) == 1.0
    policy.estimates.accuracy.changed["large"] = 1200
    notice.learned(policy)
    assert told(caplog) == [
        "large: its answers are right more or less often than was learned",
        "small: its searches cost what was learned again",
    ]
    assert (cost(metrics, "small"), changes(metrics, "large")) == (1.0, 2.0)


def test_after_a_restart_it_is_shown_and_not_said_again(
    metrics: Metrics, caplog: pytest.LogCaptureFixture, policy: Contextual
) -> None:
    factor = cost_surprise(policy, "small", 0.2)
    policy.estimates.accuracy.changed["large"] = 900
    again = contextual()
    again.load(policy.state())
    notice = DriftNotice(metrics)
    notice.recovered(again)
    notice.learned(again)
    assert told(caplog) == []
    assert again.drifted() == {"small": Drift(factor), "large": Drift(accuracy_seq=900)}
    assert cost(metrics, "small") == factor
    assert changes(metrics, "large") is None, "it was counted when it happened"
