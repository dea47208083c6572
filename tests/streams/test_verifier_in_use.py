"""`UNISCALE_VERIFIER` names which of the catalogue's verifiers scores: of either head, and only one that is there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.serving.prompts import ChatPrompts
from agents.serving.registry import HostingOptions
from agents.verifier.formats import SkyworkFormat, StepTagFormat
from agents.verifier.prm import start_verifier
from streams.control_follower import Control
from streams.settings import Settings, SettingsError
from tests.support.checkpoints import CONTEXT_TOKENS

SHAPE = {"parameters": 100_000, "layers": 2, "query_heads": 2, "kv_heads": 1, "head_dim": 32}


def test_the_setting_wins_over_the_file() -> None:
    qwen3 = Settings().replace(catalogue="infra/catalogue/qwen3.yaml")
    for name in ("1.5b", "7b"):
        verifier = f"skywork-o1-open-prm-qwen-2.5-{name}"
        control = Control(qwen3.replace(verifier=verifier))
        assert control.catalogue.verifier_named().name == control.cost_model.verifier == verifier
    assert Control(qwen3).catalogue.verifier == "skywork-o1-open-prm-qwen-2.5-1.5b", "the file's"


def test_unknown_verifier_is_refused_by_name() -> None:
    known = "choose one of mini-prm-s, mini-prm-l"
    with pytest.raises(SettingsError, match=f"UNISCALE_VERIFIER: .*no verifier 'mini-prm-x'; {known}"):
        Control(Settings().replace(verifier="mini-prm-x"))


@pytest.mark.vllm
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["micro-prm", "micro-skywork"])
def test_a_verifier_of_either_head_scores_as_its_weights_say(
    name: str, host: Any, micro: Any, tmp_path: Path
) -> None:
    """From the setting to the score, of checkpoints with two labels a step tag and with a value head."""
    prompts = ChatPrompts.load(micro.path(name))
    tag = {"tag": "<|step|>", "tag_id": prompts.token_id("<|step|>")}
    written = {
        "name": "micro",
        "hardware": {"name": "some card", "intensity": 156},
        "verifier": "micro-skywork" if name == "micro-prm" else "micro-prm",  # the setting takes the other
        "cost_range": {"low": 1.0e6, "high": 1.0e9},
        "models": [
            {
                "name": "micro-a",
                "checkpoint": micro.path("micro-a"),
                "architecture": SHAPE,
                "sampling": {"temperature": 0.7, "step_tokens": 16, "depth_limit": 4},
            }
        ],
        "defaults": {
            "verifiers": {
                "architecture": SHAPE,
                "engine": {"dtype": "float32", "context_tokens": CONTEXT_TOKENS},
            }
        },
        "verifiers": [
            {
                "name": "micro-prm",
                "checkpoint": micro.path("micro-prm"),
                "family": "step-tags",
                "step_tags": tag,
            },
            {"name": "micro-skywork", "checkpoint": micro.path("micro-skywork"), "family": "skywork"},
        ],
    }
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    settings = Settings.from_env({"UNISCALE_VERIFIER": name}, catalogue=str(tmp_path / "catalogue.yaml"))
    entry = Control(settings).catalogue.verifier_named()
    verifier = asyncio.run(start_verifier(entry, HostingOptions(), host))
    path = ("12 + 7 is 18.\n\n", "So \\boxed{18}.")
    [scored] = asyncio.run(verifier.score("How many is 12 + 7?", [path]))
    form = SkyworkFormat(prompts) if name == "micro-skywork" else StepTagFormat(prompts, "<|step|>")
    rendered = form.render("How many is 12 + 7?", path)
    column = 0 if name == "micro-skywork" else 1
    plain = micro.rewards(name, rendered.token_ids)[rendered.positions[-1]][column]
    assert verifier.served.model == name
    assert scored.score == pytest.approx(float(plain), rel=1.5e-2)  # what vLLM's own golden test allows
