"""Catalogues: the shipped one, loading with errors that point, and changes that make a new one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from agents.catalogue.action_space import uis_space
from agents.catalogue.control_state import ControlState
from agents.catalogue.file import beside_catalogue, decode_model, decode_objective, entry_of, load_catalogue
from agents.catalogue.models import Catalogue, CatalogueError
from schemas.control import CatalogueEntry, ObjectiveEntry

Load = Callable[[dict[str, Any]], Catalogue]

# Table "model_parameters" of the paper: P in billions, layers, query heads, KV heads, head dimension, bytes.
TABLE = {
    "qwen3-0.6b": (0.75, 28, 16, 8, 128, 2, 2),
    "qwen3-1.7b": (2.03, 28, 16, 8, 128, 2, 2),
    "qwen3-4b": (4.02, 36, 32, 8, 128, 2, 2),
    "qwen3-8b": (8.19, 36, 32, 8, 128, 2, 2),
    "qwen3-14b": (14.77, 40, 40, 8, 128, 2, 2),
    "qwen3-32b": (32.76, 64, 64, 8, 128, 2, 2),
    "skywork-o1-open-prm-qwen-2.5-1.5b": (1.54, 28, 12, 2, 128, 2, 2),
    "skywork-o1-open-prm-qwen-2.5-7b": (7.61, 28, 28, 4, 128, 2, 2),
}


def test_the_papers_catalogue_holds_its_table(qwen3: Catalogue) -> None:
    found = {}
    known: list[Any] = [*qwen3.models, *qwen3.verifiers]
    for each in known:
        a = each.architecture
        found[each.name] = (
            a.parameters / 1e9,
            a.layers,
            a.query_heads,
            a.kv_heads,
            a.head_dim,
            a.weight_bytes,
            a.kv_bytes,
        )
    assert found == TABLE
    assert qwen3.hardware.intensity == 156
    assert qwen3.verifier_named().name == "skywork-o1-open-prm-qwen-2.5-1.5b"


def test_every_anchor_of_the_paper_is_there_with_its_source(qwen3: Catalogue) -> None:
    for model in qwen3.models:
        assert [anchor.label for anchor in model.anchors] == [
            "ExpertReasoning_GPQA",
            "GeneralMixed_LiveBench",
            "Math_AIME24",
            "Logic_Zebra",
            "Coding_LCB",
        ]
        assert all(anchor.source for anchor in model.anchors)
        assert not model.sampling.thinking


def test_a_good_file_loads_with_its_defaults(load: Load, content: dict[str, Any]) -> None:
    content["defaults"] = {"models": {"group": "both", "sampling": {"top_k": 7, "temperature": 0.1}}}
    catalogue = load(content)
    model = catalogue.model("small")
    assert (model.group, model.sampling.top_k, model.sampling.temperature) == ("both", 7, 0.7)
    assert catalogue.groups == {"both": ("small", "large")}
    assert catalogue.version == -1


def test_bytes_of_weights_follow_the_dtype_served(load: Load, content: dict[str, Any]) -> None:
    content["models"][0]["engine"] = {"dtype": "float32"}
    small, large = (model.architecture for model in load(content).models)
    assert (small.weight_bytes, small.kv_bytes) == (4, 4)
    assert (large.weight_bytes, large.kv_bytes) == (2, 2)


def test_it_travels_as_json_and_back(qwen3: Catalogue) -> None:
    assert msgspec.json.decode(msgspec.json.encode(qwen3), type=Catalogue) == qwen3
    for model in qwen3.models:
        assert decode_model(msgspec.to_builtins(model), "control") == model


def put(values: dict[str, Any], path: str, value: object) -> None:
    *way, last = path.split("/")
    at: Any = values
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("models/0/architecture/layers", 0, "model 'small', field architecture.layers: expected `int` >= 1"),
        ("models/0/architecture/layers", "two", "model 'small', field architecture.layers: expected `int`"),
        ("models/0/architecture/kv_heads", 3, r"field architecture: query_heads \(4\) must be a multiple"),
        ("models/0/architecture/depth", 3, "field architecture.depth: is unknown; correct its name"),
        ("models/1/architecture", {"parameters": 5}, "model 'large', field architecture.layers: is missing"),
        (
            "models/0/architecture",
            None,
            "model 'small', field architecture: is missing: the memory of an in-process model",
        ),
        ("verifiers/0/architecture", None, "verifier 'judge', field architecture: is missing: the memory of"),
        ("models/0/sampling/temperature", 3.5, "field sampling.temperature: expected `float` <= 2"),
        ("models/0/sampling/temperature", float("nan"), "field sampling.temperature"),
        ("models/0/sampling/depth_limit", 0, "field sampling.depth_limit: expected `int` >= 1"),
        ("models/0/engine", {"dtype": "int3"}, "field engine.dtype: invalid enum value 'int3'"),
        ("models/0/engine", {"dtype": ["float32"]}, "field engine.dtype: expected `str`"),
        ("models/0/endpoint", {"kind": "http"}, "field endpoint: url is None: an http endpoint needs one"),
        ("models/0/endpoint", {"url": "http://h"}, "field endpoint: url is 'http://h' on an in-process"),
        ("models/0/anchors/0/score", 101, "field anchors.*score: expected `float` <= 100"),
        ("models/0/anchors/0/score", float("nan"), "field anchors.*score: expected `float`"),
        ("models/0/anchors/0/label", "two words", "field anchors.*label: expected `str` matching regex"),
        ("models/0/name", "Has Spaces", "model 'Has Spaces', field name: expected `str` matching regex"),
        ("models/0/name", "large", "cat.yaml: name 'large' is used twice: rename one"),
        ("models/0/name", "judge", "cat.yaml: name 'judge' is used twice: rename one"),
        ("models", [], "cat.yaml: models is empty: a catalogue holds at least one"),
        ("models", {"small": 1}, "cat.yaml, field models: expected a list, got dict"),
        ("models/0", "small", "cat.yaml, field models, entry 1: expected a mapping"),
        ("verifier", "nobody", "cat.yaml: verifier is 'nobody', verifiers holds judge: name one of them"),
        ("verifiers/0/family", "step-tags", "verifier 'judge': step_tags of verifier 'judge' must be given"),
        ("verifiers/0/family", "oracle", "verifier 'judge', field family: invalid enum value 'oracle'"),
        ("hardware/intensity", 0, "cat.yaml, field hardware.intensity: expected `float` > 0"),
        (
            "hardware/intensity",
            float("inf"),
            "cat.yaml, field hardware: intensity is inf: give FLOPs per byte",
        ),
        (
            "cost_range/unit",
            "usd",
            "cat.yaml: model 'small', field price: is missing, but costs are in usd: give",
        ),
        ("cost_range/unit", "eur", "cat.yaml, field cost_range.unit: invalid enum value 'eur'"),
        ("cost_range/low", 1e13, "cat.yaml, field cost_range.low: is 10000000000000.0"),
        ("modles", [], "cat.yaml: field 'modles' is unknown; did you mean 'models'"),
        ("defaults", {"model": {}}, "cat.yaml, field defaults.model: is unknown; use models and verifiers"),
        ("defaults", [], "cat.yaml, field defaults: expected a mapping"),
        ("family", 7, "cat.yaml, field family: expected a path, got 7"),
        ("family", "no/such.json", "cat.yaml, field family: no file 'no/such.json' in .* or above it; train"),
    ],
)
def test_a_bad_file_says_where_and_what(
    load: Load, content: dict[str, Any], path: str, value: object, complaint: str
) -> None:
    put(content, path, value)
    with pytest.raises(CatalogueError, match=f"cat.yaml.*{complaint.removeprefix('cat.yaml')}"):
        load(content)


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ("name", "field name: is missing; give it"),
        ("hardware", "hardware is missing, but costs are in eflops: give name and intensity"),
        ("verifier", "field verifier: is missing; give it"),
    ],
)
def test_a_missing_field_is_named(load: Load, content: dict[str, Any], field: str, complaint: str) -> None:
    del content[field]
    with pytest.raises(CatalogueError, match=complaint):
        load(content)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"a: [", ": is not YAML"),
        (b"[" * 3000 + b"]" * 3000, ": is nested too deeply for a catalogue"),
        (b"just words", ": expected a mapping"),
        (b"\xff\xfe\xfa", ": cannot be read"),
        (b"", ", field name: is missing"),
    ],
)
def test_a_file_that_is_no_catalogue_is_refused(tmp_path: Path, text: bytes, complaint: str) -> None:
    path = tmp_path / "cat.yaml"
    path.write_bytes(text)
    with pytest.raises(CatalogueError, match=f"cat.yaml{complaint}"):
        load_catalogue(path)
    with pytest.raises(CatalogueError, match=r"absent.yaml: cannot be read"):
        load_catalogue(tmp_path / "absent.yaml")


def test_adding_and_removing_make_new_catalogues(qwen3: Catalogue) -> None:
    names = qwen3.model_names
    less = qwen3.remove("qwen3-8b", version=12)
    more = less.add(qwen3.model("qwen3-8b"))
    assert qwen3.model_names == names
    assert less.model_names == tuple(name for name in names if name != "qwen3-8b")
    assert more.model_names == (*less.model_names, "qwen3-8b")
    assert (qwen3.version, less.version, more.version) == (-1, 12, 13)


def test_replacing_moves_to_the_end(qwen3: Catalogue) -> None:
    other = msgspec.structs.replace(qwen3.model("qwen3-4b"), group="elsewhere")
    left = tuple(name for name in qwen3.model_names if name != "qwen3-4b")
    assert qwen3.replace(other).model_names == (*left, "qwen3-4b")
    assert qwen3.replace(other).model("qwen3-4b").group == "elsewhere"


def test_impossible_changes_are_refused(load: Load, content: dict[str, Any]) -> None:
    catalogue = load(content)
    small = catalogue.model("small")
    with pytest.raises(CatalogueError, match="model 'small' already exists"):
        catalogue.add(small)
    with pytest.raises(CatalogueError, match="no model 'tiny'; choose one of small, large"):
        catalogue.remove("tiny")
    with pytest.raises(CatalogueError, match="'large' is the last model; add another one first"):
        catalogue.remove("small").remove("large")
    with pytest.raises(CatalogueError, match="version 4 does not follow 4"):
        catalogue.remove("small", version=4).add(small, version=4)
    with pytest.raises(CatalogueError, match="no verifier 'nobody'; choose one of judge"):
        catalogue.verifier_named("nobody")


def test_pricing_is_what_eflops_follow_from_and_nothing_else(qwen3: Catalogue) -> None:
    model = qwen3.models[0]
    wider = replace(model, architecture=replace(model.architecture, kv_bytes=4))
    changed = qwen3.remove(model.name).add(wider).cost_basis
    differ = {name for name, value in qwen3.cost_basis.items() if changed[name] != value}
    assert differ == {f"models.{model.name}.kv_bytes"}
    hotter = replace(model, sampling=replace(model.sampling, temperature=1.5))
    assert qwen3.remove(model.name).add(hotter).cost_basis == qwen3.cost_basis
    assert qwen3.with_rate(model.name, 3.0).cost_basis == qwen3.cost_basis
    hardware = replace(qwen3, hardware=replace(qwen3.hardware, intensity=2.0))
    assert hardware.cost_basis["hardware.intensity"] == 2.0 != qwen3.cost_basis["hardware.intensity"]
    assert qwen3.cost_basis["verifier"] == qwen3.verifier


def test_the_fingerprint_is_of_the_content_alone(qwen3: Catalogue) -> None:
    last = qwen3.model("qwen3-32b")
    assert qwen3.remove("qwen3-32b").add(last).fingerprint == qwen3.fingerprint
    assert qwen3.remove("qwen3-32b").fingerprint != qwen3.fingerprint
    assert qwen3.with_rate("qwen3-32b", 3.0).fingerprint == qwen3.fingerprint


def test_a_price_changes_nothing_but_itself(qwen3: Catalogue) -> None:
    dear = qwen3.with_rate("qwen3-4b", 3)
    assert dear.price_factors == {"qwen3-4b": 3.0}
    assert (dear.model_names, dear.version) == (qwen3.model_names, qwen3.version + 1)
    assert dear.with_rate("qwen3-4b", 1.0).models == qwen3.models
    with pytest.raises(CatalogueError, match="no model 'gone'"):
        qwen3.with_rate("gone", 2.0)


@pytest.mark.parametrize("factor", [0, -1.0, float("inf"), float("nan"), 1e300])
def test_what_is_no_price_is_refused_naming_field_and_fix(qwen3: Catalogue, factor: float) -> None:
    with pytest.raises(
        CatalogueError, match=r"model 'qwen3-4b'.*price_factor is .*give a finite number above 0"
    ):
        qwen3.with_rate("qwen3-4b", factor)
    entry = msgspec.to_builtins(qwen3.model("qwen3-4b")) | {"price_factor": factor}
    with pytest.raises(
        CatalogueError, match=r"control, offset 3, model 'qwen3-4b'.*price_factor.*give a finite"
    ):
        decode_model(entry, "control, offset 3")


def test_the_smallest_is_by_parameters_not_by_place(qwen3: Catalogue) -> None:
    moved = qwen3.remove("qwen3-0.6b").add(qwen3.model("qwen3-0.6b"))
    assert moved.smallest.name == "qwen3-0.6b"


def test_the_example_of_the_docs_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "catalogue.md").read_text(encoding="utf-8")
    example = tmp_path / "mine.yaml"
    example.write_text(page.split("```yaml\n")[1].split("```")[0])
    catalogue = load_catalogue(example)
    assert catalogue.model("writer-8b").sampling.delimiter == "\n\n"
    assert catalogue.verifier_named().family == "skywork"


def test_a_prior_that_a_catalogue_names_must_be_there(
    tmp_path: Path, load: Load, content: dict[str, Any]
) -> None:
    content["prior"] = "prior.bin"
    load(content)
    with pytest.raises(
        CatalogueError, match=r"cat.yaml, field prior: no file 'prior.bin' in .* make it with"
    ):
        beside_catalogue(tmp_path / "cat.yaml")
    (tmp_path / "prior.bin").touch()
    assert beside_catalogue(tmp_path / "cat.yaml").prior == tmp_path / "prior.bin"


def test_a_catalogue_may_stand_in_a_configuration_file(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "uniscale.yaml"
    path.write_text(yaml.safe_dump({"seed": 7, "catalogue": {**content, "parallelism": ["1/1"]}}))
    assert load_catalogue(path).model_names == tuple(each["name"] for each in content["models"])
    assert beside_catalogue(path).parallelism == ("1/1",)
    path.write_text(yaml.safe_dump({"catalogue": {**content, "modles": []}}))
    with pytest.raises(CatalogueError, match=r"uniscale.yaml, catalogue: .*modles.*did you mean 'models'"):
        load_catalogue(path)


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cat.yaml"
    path.write_text("name: a\nhardware: {name: b, intensity: 1, intensity: 2}\n")
    with pytest.raises(CatalogueError, match=r"cat.yaml: is not YAML \('intensity' appears twice"):
        load_catalogue(path)


def test_configured_objectives_hold_until_control_replaces_them(qwen3: Catalogue) -> None:
    asked = {"thrifty": {"accuracy": 0.9}, "careful": {"mean_cost": 1e12}}
    start = ControlState.of(qwen3, {name: decode_objective(name, goal) for name, goal in asked.items()})
    assert start.objectives.in_force("thrifty").accuracy == 0.9
    assert start.objectives.in_force("careful").mean_cost == 1e12
    after = start.after(ObjectiveEntry(name="thrifty", op="set", accuracy=0.8), 0)
    assert after.objectives.in_force("thrifty").accuracy == 0.8


@pytest.mark.parametrize("file", ["mini", "qwen3"])
def test_the_entry_shown_of_a_model_can_be_added_again(file: str) -> None:
    """The family's models say no nominal size of their own."""
    found = load_catalogue(Path(f"infra/catalogue/{file}.yaml"))
    assert any(not model.params for model in found.models) == (file == "mini")
    for model in found.models:
        entry = yaml.safe_load(entry_of(model))
        assert decode_model(entry, "shown") == model
        record = CatalogueEntry(name=model.name, op="add", model=entry)
        after = ControlState.of(found, {}, "careful").after(record, 5).catalogue
        assert after.model(model.name) == model


def test_any_of_the_verifiers_can_be_the_one_in_use(qwen3: Catalogue) -> None:
    other = qwen3.scored_by("skywork-o1-open-prm-qwen-2.5-7b")
    assert other.verifier_named().architecture.parameters == 7_610_000_000
    assert other.scored_by(qwen3.verifier) == qwen3
    with pytest.raises(
        CatalogueError, match=r"no verifier 'qwen3-8b'; choose one of skywork-o1-open-prm-qwen-2\.5-1"
    ):
        qwen3.scored_by("qwen3-8b")


def test_models_whose_paths_the_verifier_cannot_hold_are_known(qwen3: Catalogue) -> None:
    """40 steps of 512 tokens; the verifiers hold 4,096."""
    assert qwen3.overlong == dict.fromkeys(qwen3.model_names, 20_480)
    mini = load_catalogue(Path("infra/catalogue/mini-six.yaml"))
    assert mini.overlong == {}, "40 steps of 50 tokens; the verifiers hold 16,384"
    short = tuple(replace(each, engine=replace(each.engine, context_tokens=4096)) for each in qwen3.models)
    assert replace(qwen3, models=short).overlong == {}


def test_an_entry_without_a_verifier_has_the_catalogues(load: Load, content: dict[str, Any]) -> None:
    other = {**content["verifiers"][0], "name": "other"}
    assert load(content).verified == "all"
    content["verifiers"].append(other)
    content["models"][1]["verifier"] = "other"
    two = load(content)
    assert two.verified == "some", "two verifiers cannot be compared"
    assert [each.name for each in two.scoring] == ["judge", "other"]
    assert (two.cost_basis["verifier"], two.cost_basis["models.large.verifier"]) == ("judge", "other")
    content["models"][0]["verifier"] = "other"
    both = load(content)
    assert (both.verified, [each.name for each in both.scoring]) == ("all", ["other"])
    content["models"][0]["verifier"] = "none"
    assert load(content).verified == "some"


def test_without_a_verifier_candidate_parallelism_is_not_offered(load: Load, content: dict[str, Any]) -> None:
    content["models"][0]["verifier"] = "none"
    mixed = load(content)
    space = uis_space(mixed, ((1, 1), (4, 1), (4, 4)))
    assert [str(action) for action in space.restrict(["small"])] == ["small/1/1/1", "small/4/1/1"]
    assert len(space.restrict(["large"])) == 3
    assert [str(a) for a in uis_space(mixed, ((4, 4),)).restrict(["small"])] == ["small/1/1/1"]
    content |= {"verifier": "none", "verifiers": []}
    nothing = load(content)
    assert (nothing.verified, nothing.scoring, nothing.overlong) == ("none", (), {})
    assert nothing.cost_basis["verifier"] == "none"


def test_the_verifier_of_an_entry_is_one_that_there_is(load: Load, content: dict[str, Any]) -> None:
    content["models"][1]["verifier"] = "nobody"
    with pytest.raises(CatalogueError, match="model 'large': verifier is 'nobody', verifiers holds judge"):
        load(content)
    content["models"][1]["verifier"] = "judge"
    added = {**content["models"][0], "name": "new", "verifier": "nobody"}
    record = CatalogueEntry(name="new", op="add", model=added)
    with pytest.raises(CatalogueError, match="model 'new': verifier is 'nobody'"):
        ControlState.of(load(content)).after(record, 1)
    content["verifiers"][0]["name"] = "none"
    with pytest.raises(CatalogueError, match="a verifier is named 'none', which means no verifier: rename"):
        load(content)


def test_fingerprint_of_the_shipped_catalogue_is_unchanged(qwen3: Catalogue) -> None:
    """Recordings name it."""
    assert qwen3.fingerprint == "cb6b8148b638f7b4"
