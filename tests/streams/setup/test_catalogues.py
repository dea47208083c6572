"""The complete catalogues that ship as examples load, and offer what they say."""

from pathlib import Path

import pytest

from streams.control_follower import Control
from streams.services.decider import baseline_of
from streams.settings import Settings

FOLDER = Path(__file__).parents[3] / "infra" / "catalogue"


def _searched(*models: str) -> list[str]:
    return [f"{model}/{paths}/1/1" for model in models for paths in (1, 4, 16)]


OFFERED = {
    "vllm-only": _searched("qwen3-8b", "qwen3-32b", "llama-3.3-70b"),
    "vllm-and-api": [*_searched("qwen3-8b", "qwen3-32b"), "hosted-large/1/1/1"],
    "apis-only": ["small/1/1/1", "medium/1/1/1", "medium/4/1/1", "large/1/1/1"],
}


@pytest.mark.parametrize("name", OFFERED)
def test_example_catalogue_loads(name: str) -> None:
    settings = Settings().replace(catalogue=str(FOLDER / f"{name}.yaml"))
    control = Control(settings)
    catalogue, space = control.base, control.space(control.base)
    assert (catalogue.name, catalogue.unit, catalogue.verified, list(catalogue.groups)) == (
        name,
        "usd",
        "none",
        ["default"],
    )
    assert sorted(action.id for action in space) == sorted(OFFERED[name])
    assert baseline_of(settings, catalogue, space) == OFFERED[name][0]
    low, high = catalogue.cost_range.low, catalogue.cost_range.high
    assert high / low > 100, "from a short answer of the cheapest to long ones of the dearest"
