"""eFLOPs compared with the seconds of a GPU: the comparison, and that a pass is the model's own, on a CPU."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Architecture
from agents.catalogue.search_cost import decode_step, prefill
from bench import gpu
from bench.gpu_timing import QWEN3, Shape

ROOT = Path(__file__).parents[2]
BATCHES = (1, 4, 16, 64)


@pytest.fixture(scope="module")
def models() -> dict[str, Architecture]:
    listed = load_catalogue(ROOT / "infra" / "catalogue" / "qwen3.yaml").models
    return {each.name: each.architecture for each in listed if each.architecture is not None}


def measured(models: dict[str, Architecture], floor_s: float = 0.0, left_out: str = "") -> dict[str, Any]:
    """Return the measurement of a GPU whose seconds are eFLOPs, above a floor. One model has no room for batch 64."""

    def row(batch: int, context: int, eflops: float) -> dict[str, float]:
        seconds = max(floor_s, eflops / 1e14)
        return {"batch": batch, "context": context, "seconds": seconds, "least": seconds, "most": seconds}

    def model(name: str, architecture: Architecture) -> dict[str, Any]:
        decode: list[dict[str, Any]] = [
            row(batch, context, decode_step([(context - 1, 1)] * batch, architecture).eflops(156))
            for batch in BATCHES
            for context in (512, 2048)
        ]
        if name == left_out:
            decode[-2:] = [{"batch": 64, "context": each, "left_out": "no room"} for each in (512, 2048)]
        prompts = [row(1, tokens, prefill(tokens, architecture).eflops(156)) for tokens in (256, 512, 2048)]
        return {"parameters": architecture.parameters, "decode": decode, "prefill": prompts}

    named = {name: model(name, architecture) for name, architecture in models.items()}
    return {"ceilings": {"copy_tb_per_s": 3.0}, "models": named}


def test_shapes_are_the_catalogues(models: dict[str, Architecture]) -> None:
    assert list(QWEN3) == list(models), "the smallest first"
    for name, shape in QWEN3.items():
        listed = models[name]
        assert (shape.layers, shape.query_heads, shape.kv_heads, shape.head_dim) == (
            listed.layers,
            listed.query_heads,
            listed.kv_heads,
            listed.head_dim,
        )
        assert shape.kv_bytes == (decode_step([(1, 1)], listed).bytes - decode_step([(0, 1)], listed).bytes)


def test_a_gpu_that_takes_eflops_is_equal(models: dict[str, Architecture]) -> None:
    compared = gpu.compare(measured(models))
    # Context 512 stands for 256 to 767, whose mean is 511.5.
    assert all(
        each["gpu_ratio"] == pytest.approx(each["eflops_ratio"], rel=1e-3) for each in compared["searches"]
    )
    assert compared["equal"] == compared["roughly"] == len(compared["searches"]) == 24
    assert compared["order"]["alike"] == compared["order"]["pairs"] > 250
    assert compared["worst_by_batch"]["1"] == pytest.approx(1)
    assert compared["order_busy"]["alike"] < compared["order_busy"]["pairs"], "64 samples cost 64 times one"


def test_a_floor_of_each_step_hides_the_small_models(models: dict[str, Architecture]) -> None:
    """As many small kernels make one: eFLOPs then overstate what a larger model costs beside a smaller one."""
    compared = gpu.compare(measured(models, floor_s=0.012))
    one = {each["model"]: each for each in compared["searches"] if each["samples"] == 1}
    assert one["qwen3-1.7b"]["gpu_ratio"] == pytest.approx(1, rel=0.01)
    assert one["qwen3-1.7b"]["eflops_ratio"] == pytest.approx(2.64, abs=0.01)
    assert "| qwen3-1.7b | 1.00, 2.64: 2.6 times |" in gpu.markdown(compared)
    assert compared["worst_by_batch"]["1"] > 2.6
    assert compared["equal"] < 24


def test_what_does_not_fit_is_left_empty(models: dict[str, Architecture]) -> None:
    compared = gpu.compare(measured(models, left_out="qwen3-32b"))
    assert len(compared["searches"]) == 20
    last = gpu.markdown(compared).splitlines()[-1]
    assert last.startswith("| qwen3-32b |")
    assert "|  |" in last


def test_the_documents_tables_are_the_measured_ones() -> None:
    found = msgspec.json.decode((ROOT / "docs" / "results" / "gpu-h100.json").read_bytes())
    assert {"commit", "date", "device", "versions"} <= found.keys()
    compared = gpu.compare(found)
    document = (ROOT / "docs" / "eflops.md").read_text()
    for table in gpu.markdown(compared).split("\n\n"):
        assert table in document
    document = " ".join(document.split())
    order, busy = (
        f"{each['alike']} of {each['pairs']} pairs" for each in (compared["order"], compared["order_busy"])
    )
    assert order in document
    assert busy in document
    assert (
        f"{compared['equal']} are within 1.25 of the ratio in seconds and {compared['roughly']} within 2"
        in document
    )
    by_batch = compared["worst_by_batch"], compared["worst_by_batch_limited_by_memory"]
    assert [f"{each[batch]:.2f}" for each in by_batch for batch in ("1", "64")] == [
        "2.96",
        "4.64",
        "1.12",
        "1.22",
    ]


@pytest.mark.torch
@pytest.mark.seconds
def test_a_pass_is_the_models_own() -> None:
    """A prompt, and its last token again by itself from the cache, both give the logits of transformers' forward."""
    import torch

    from bench.gpu_timing import build, layer_pass, slots_of, whole_pass

    model = build(Shape(64, 96, 3, 4, 2, tied=True, head_dim=16, vocabulary=200), "cpu").float()
    tokens = torch.randint(200, (2, 9))
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits[:, -1]
        slots = slots_of(model, 2, 9, 9)
        assert torch.allclose(whole_pass(model, tokens, slots, layer_pass), expected, atol=1e-5)
        for own in slots:
            own.written = own.written[-1:]
        assert torch.allclose(whole_pass(model, tokens[:, -1:], slots, layer_pass), expected, atol=1e-5)
