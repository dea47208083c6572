"""Every name builds its policy; impossible settings are refused by field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from agents.decider.policies.base import Policy
from agents.decider.policies.build import Name, PolicySettings, build_policy


@pytest.mark.parametrize("name", get_args(Name))
def test_every_name_builds_its_policy(name: Any, world: Any) -> None:
    policy = build_policy(PolicySettings(name=name, iterations=2, hidden=4), query_dim=12, action_dim=10)
    assert isinstance(policy, Policy)
    assert policy.name == name
    policy.add_actions(world.actions())
    world.train(policy, 3)
    assert policy.version == 3


def test_a_floor_or_a_warm_up_wraps_the_policy(world: Any, quality: Any) -> None:
    policy = build_policy(PolicySettings(warm_up=2, floor=0.5), query_dim=12, action_dim=10)
    policy.add_actions(world.actions())
    assert policy.select([world.context()], [quality], 0)[0].reason == "warm-up"


@pytest.mark.parametrize(
    "options",
    [
        {"ridge": 0.0},
        {"alpha": -1.0},
        {"neighbours": 0},
        {"iterations": 0},
        {"gamma": 1.0, "name": "discounted"},
        {"window": 0, "name": "sliding-window"},
        {"floor": 1.5},
        {"interactions": "model", "name": "mlp"},
    ],
)
def test_impossible_settings_are_refused_by_field(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        build_policy(PolicySettings(**options), query_dim=12, action_dim=10)


def test_a_linear_policy_does_not_load_torch() -> None:
    """The decider's process stays under 300 MB only without it."""
    code = "import sys, agents.decider.agent, agents.decider.policies.build; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
