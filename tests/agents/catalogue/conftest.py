"""A catalogue file to bend, the paper's catalogue, and a family of tiny real checkpoints."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Catalogue

CATALOGUES = Path(__file__).parents[3] / "infra" / "catalogue"

MODEL: dict[str, Any] = {
    "name": "small",
    "checkpoint": "org/Small",
    "architecture": {"parameters": 1_000_000, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 8},
    "sampling": {"temperature": 0.7, "step_tokens": 64, "depth_limit": 10},
    "anchors": [{"label": "Math_AIME24", "score": 3.4, "source": "a report"}],
}
CONTENT: dict[str, Any] = {
    "name": "test",
    "hardware": {"name": "some card", "intensity": 156},
    "verifier": "judge",
    "cost_range": {"low": 1.0e9, "high": 1.0e12},
    "models": [MODEL, {**MODEL, "name": "large", "checkpoint": "org/Large"}],
    "verifiers": [
        {
            "name": "judge",
            "checkpoint": "org/Judge",
            "family": "skywork",
            "architecture": MODEL["architecture"],
        }
    ],
}


@pytest.fixture
def content() -> dict[str, Any]:
    """A good catalogue as plain values, free to be bent."""
    return copy.deepcopy(CONTENT)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[dict[str, Any]], Catalogue]:
    """Write a catalogue to a file and load it."""

    def write_and_load(values: dict[str, Any]) -> Catalogue:
        path = tmp_path / "cat.yaml"
        path.write_text(yaml.safe_dump(values))
        return load_catalogue(path)

    return write_and_load


@pytest.fixture(scope="session")
def qwen3() -> Catalogue:
    """The paper's catalogue, as shipped."""
    return load_catalogue(CATALOGUES / "qwen3.yaml")


CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 32,
    "tie_word_embeddings": True,
}
FAMILY: dict[str, Any] = {
    "context_tokens": 512,
    "delimiter": "\n\n",
    "step_tag": "<step>",
    "step_tag_id": 5,
    "good_label": 1,
    "sampling": {"temperature": 0.8, "step_tokens": 48, "depth_limit": 12},
    "generators": [
        {"name": "tiny-a", "anchors": {"Arithmetic_Level1": 61.5, "Coding_Mini": 2}},
        {"name": "tiny-b"},
    ],
    "verifiers": [{"name": "tiny-prm"}],
    "notes": "keys that are not read are the family's own business",
}


@pytest.fixture
def family(tmp_path: Path) -> Path:
    """A repository root with models/family.json, two generators and a verifier."""
    models = tmp_path / "models"
    for name, rows in (("tiny-a", 10), ("tiny-b", 20), ("tiny-prm", 15)):
        folder = models / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        tensors = {
            "model.embed_tokens.weight": np.zeros((rows, 32), np.float32),
            "model.norm.weight": np.zeros(32, np.float32),
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (models / "family.json").write_text(json.dumps(FAMILY))
    return tmp_path
