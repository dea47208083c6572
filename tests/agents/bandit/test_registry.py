"""Every registered policy is built by name, by service and lab alike; impossible settings are refused by field."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.bandit import registry
from agents.bandit.baselines import Uniform
from agents.bandit.errors import PolicyRefused
from agents.bandit.features import COUNTS
from agents.bandit.learner import choose
from agents.bandit.policy import Policy
from agents.bandit.registry import Inputs, Options, build_policy, kinds, options_of, register_policy
from tests.support.worlds import QUALITY, World

ROOT = Path(__file__).parents[3]


def built(name: str, **options: Any) -> Policy:
    return build_policy(name, options, query_dim=12, action_dim=10)


@pytest.mark.parametrize("name", sorted(kinds()))
def test_every_name_builds_its_policy(name: str, world: World) -> None:
    options = {"iterations": 2, "hidden": 4} if hasattr(options_of(name), "iterations") else {}
    # The world's queries of 12 stand for embedding and surface counts together.
    dim = 12 - len(COUNTS) if built(name, **options).traits.surface else 12
    made = build_policy(name, options, query_dim=dim, action_dim=10)
    assert isinstance(made, Policy)
    assert made.name == name
    made.offer(world.actions())
    world.train(made, 3)
    assert made.version == 3


def test_a_floor_or_a_warm_up_wraps_the_policy(world: World) -> None:
    made = built("linucb", warm_up=2, floor=0.5)
    made.offer(world.actions())
    assert choose(made, [world.context()], [QUALITY], 0)[0].reason == "warm-up"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linucb", {"ridge": 0.0}),
        ("linucb", {"alpha": -1.0}),
        ("linucb", {"floor": 1.5}),
        ("linucb", {"control_share": 0.05}),
        ("linucb", {"control_action": "m"}),
        ("linucb", {"control_share": 2.0, "control_action": "m/1/1/1"}),
        ("linucb", {"k": 3}),
        ("linucb", {"alpha": "much"}),
        ("knn", {"k": 0}),
        ("mlp", {"iterations": 0}),
        ("mlp", {"interactions": "model"}),
        ("discounted", {"gamma": 1.0}),
        ("sliding-window", {"window": 0}),
    ],
)
def test_impossible_settings_are_refused_by_field(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(PolicyRefused, match=r"^policy_options: .*(" + "|".join(options) + ")"):
        built(name, **options)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PolicyRefused, match="policy: 'ucb' is unknown; choose one of contextual, discounted"):
        built("ucb")


class ToyOptions(Options, frozen=True, kw_only=True):
    """An option of its own."""

    luck: float = 0.5


@pytest.fixture
def toy() -> Iterator[None]:
    """Add a policy as its one file would."""

    @register_policy("toy", ToyOptions)
    def _toy(options: ToyOptions, on: Inputs) -> Policy:
        made = Uniform(on.features(options))
        made.name = "toy"
        return made

    yield
    del registry._KINDS["toy"]


@pytest.mark.usefixtures("toy")
def test_a_policy_is_added_in_one_place(world: World) -> None:
    made = built("toy", luck=0.9, warm_up=1)
    assert made.name == "explored-toy"
    made.offer(world.actions())
    world.train(made, 2)
    with pytest.raises(PolicyRefused, match=r"'alpha' is unknown to policy 'toy'; choose from .*luck"):
        built("toy", alpha=1.0)
    with pytest.raises(ValueError, match="policy 'toy' is registered twice"):
        register_policy("toy", ToyOptions)(lambda options, on: Uniform(on.features(options)))


def test_docs_list_every_policy_with_its_options() -> None:
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|(.*)$", page, re.MULTILINE))
    assert rows.keys() == kinds().keys()
    shared = set(Options.__struct_fields__)
    for name, kind in kinds().items():
        own = set(kind.options.__struct_fields__) - shared
        assert own <= set(re.findall(r"`(\w+)`", rows[name])), name
    assert shared <= set(re.findall(r"`(\w+)`", page))


def test_a_linear_policy_does_not_load_torch() -> None:
    """The decider's process stays under 300 MB only without it."""
    code = (
        "import sys, agents.decider.decider; from agents.bandit.registry import kinds; kinds(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
