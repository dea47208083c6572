"""A family of checkpoints as a catalogue: nothing is typed twice."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from agents.catalogue.action_space import uis_space
from agents.catalogue.checkpoint import read_architecture
from agents.catalogue.descriptions import describe_actions, describe_model
from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Catalogue, CatalogueError
from agents.catalogue.search_cost import search_cost
from schemas.forest import Draft

ROOT = Path(__file__).parents[3]

MINIMAL: dict[str, Any] = {
    "name": "mini",
    "hardware": {"name": "as an A800", "intensity": 156},
    "verifier": "tiny-prm",
    "cost_range": {"low": 1.0e9, "high": 1.0e12},
    "family": "models/family.json",
    "defaults": {"models": {"engine": {"dtype": "float32"}}},
}


def load(root: Path, **changes: Any) -> Catalogue:
    path = root / "infra" / "catalogue" / "mini-six.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
    return load_catalogue(path)


def edit(file: Path, **changes: Any) -> None:
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def test_all_that_checkpoints_say_is_read(family: Path) -> None:
    catalogue = load(family)
    model = catalogue.model("tiny-a")
    architecture = model.architecture
    assert architecture.parameters == 10 * 32 + 32  # tied embeddings are stored, and counted, once
    assert (architecture.layers, architecture.query_heads, architecture.kv_heads) == (3, 4, 2)
    assert (architecture.head_dim, architecture.weight_bytes, architecture.kv_bytes) == (16, 4, 4)
    assert model.checkpoint == "models/tiny-a"
    assert (model.sampling.temperature, model.sampling.step_tokens, model.sampling.depth_limit) == (
        0.8,
        48,
        12,
    )
    assert model.engine.context_tokens == 512
    verifier = catalogue.verifier_named()
    assert verifier.step_tags is not None
    assert (verifier.step_tags.tag, verifier.step_tags.tag_id, verifier.step_tags.good_label) == (
        "<step>",
        5,
        1,
    )
    assert catalogue.model_names == ("tiny-a", "tiny-b")
    assert catalogue.smallest.name == "tiny-a"


def test_a_description_is_made_of_it(family: Path) -> None:
    catalogue = load(family)
    assert describe_model(catalogue.model("tiny-a")) == (
        "Model: tiny-a | Params: 352 | Arithmetic_Level1: 61.50 | Coding_Mini: 2.00"
    )
    assert describe_model(catalogue.model("tiny-b")) == "Model: tiny-b | Params: 672"


def test_a_catalogue_may_say_more_of_a_model_of_the_family(family: Path) -> None:
    catalogue = load(family, models=[{"name": "tiny-b", "group": "apart", "sampling": {"temperature": 0.1}}])
    assert catalogue.model_names == ("tiny-a", "tiny-b")
    assert catalogue.model("tiny-b").group == "apart"
    assert catalogue.model("tiny-b").sampling.temperature == 0.1
    assert catalogue.model("tiny-b").sampling.step_tokens == 48


def test_shards_are_summed_and_an_output_head_of_its_own_counts(family: Path) -> None:
    folder = family / "models" / "tiny-a"
    save_file({"lm_head.weight": np.zeros((10, 32), np.float16)}, folder / "model-2.safetensors")
    assert read_architecture(folder)["parameters"] == 2 * 10 * 32 + 32


def test_missing_head_dim_and_kv_heads_have_defaults(family: Path) -> None:
    folder = family / "models" / "tiny-a"
    edit(folder / "config.json", head_dim=..., num_key_value_heads=...)
    assert read_architecture(folder) | {"parameters": 0} == {
        "parameters": 0,
        "layers": 3,
        "query_heads": 4,
        "kv_heads": 4,
        "head_dim": 8,
    }


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"generators": ...}, "family.json, field generators: is missing; give it"),
        ({"generators": [{}]}, r"family.json, field generators\[0\].name: is missing; give it"),
        ({"generators": [{"name": "absent"}]}, r"absent/config.json: cannot be read"),
        (
            {"generators": [{"name": "tiny-a", "anchors": [1]}]},
            r"family.json, field generators\[0\].anchors: expected `object`, got `array`",
        ),
        ({"step_tag_id": True}, "family.json, field step_tag_id: expected `int`, got `bool`"),
        ({"sampling": {"temperature": 0.8}}, "model 'tiny-a', field sampling.step_tokens: is missing"),
        ({"sampling": "hot"}, "family.json, field sampling: expected `object`, got `str`"),
    ],
)
def test_a_bad_family_says_where_and_what(family: Path, changes: dict[str, Any], complaint: str) -> None:
    edit(family / "models" / "family.json", **changes)
    with pytest.raises(CatalogueError, match=complaint):
        load(family)


@pytest.mark.parametrize("damage", [b"", b"\x08", b"\xff" * 100, b"\x04\0\0\0\0\0\0\0nope"])
def test_a_damaged_checkpoint_is_refused(family: Path, damage: bytes) -> None:
    (family / "models" / "tiny-a" / "model.safetensors").write_bytes(damage)
    with pytest.raises(CatalogueError, match=r"tiny-a/model.safetensors: is not a complete safetensors file"):
        load(family)


def test_checkpoint_without_or_with_packed_weights_is_refused(family: Path) -> None:
    file = family / "models" / "tiny-a" / "model.safetensors"
    save_file({"packed": np.zeros((3, 3), np.int32)}, file)
    with pytest.raises(CatalogueError, match="tensor packed: dtype 'I32' cannot be counted"):
        load(family)
    file.unlink()
    with pytest.raises(CatalogueError, match=r"tiny-a: holds no .safetensors"):
        load(family)


def test_the_shipped_family_makes_the_mini_catalogue() -> None:
    catalogue = load_catalogue(ROOT / "infra" / "catalogue" / "mini-six.yaml")
    space = uis_space(catalogue)
    assert len(space) == 168
    assert len(set(describe_actions(space, catalogue))) == 168
    sizes = [model.architecture.parameters for model in catalogue.models]
    assert sizes == sorted(set(sizes))
    assert len({verifier.name for verifier in catalogue.verifiers}) == 2
    assert catalogue.verifier_named().name == catalogue.verifier
    known: list[Any] = [*catalogue.models, *catalogue.verifiers]
    for each in known:
        tensors = load_file(ROOT / each.checkpoint / "model.safetensors")
        assert each.architecture.parameters == sum(math.prod(tensor.shape) for tensor in tensors.values())
        assert each.architecture.weight_bytes == 4
    for model in catalogue.models:
        assert model.anchors, f"{model.name} has no anchors measured on validation questions"


def test_a_pretrained_model_joins_the_shipped_family() -> None:
    six, seven = (
        load_catalogue(ROOT / "infra" / "catalogue" / f"{name}.yaml") for name in ("mini-six", "mini")
    )
    assert seven.models[:6] == six.models
    assert (seven.verifiers, seven.cost_range, seven.hardware) == (
        six.verifiers,
        six.cost_range,
        six.hardware,
    )
    assert [action.id for action in uis_space(seven)][168:] == ["smollm2-135m/1/1/1"]
    assert seven.verified == "some"
    model = seven.model("smollm2-135m")
    longest = Draft(parent=-1, depth=1, tokens=model.endpoint.max_output_tokens, finish="length")
    cost = search_cost(200, [longest], model.architecture, model.architecture, seven.hardware.intensity)
    assert seven.cost_range.low < cost.eflops < seven.cost_range.high
