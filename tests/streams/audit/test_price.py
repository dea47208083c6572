"""The second reading of App. D.3: against the appendix position by position, and against the one that is checked."""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.catalogue.cost_model import CostModel, cost_of
from agents.catalogue.file import load_catalogue
from schemas.action import Action
from schemas.answer import Answer
from schemas.forest import Draft
from schemas.search import Served
from streams.audit.price import Numbers, PriceList, numbers, price
from tests.support.recorded import CATALOGUE


def by_position(prompt: int, trace: list[dict[str, Any]], m: Numbers, v: Numbers, i: float) -> float:
    """Return C_UIS as Propositions D.13 to D.15 write it: sums over positions, with b_j(n) and the mean context."""

    def p_comp(n: Numbers, b: float) -> float:
        return 2 * n.P * b

    def a_comp(n: Numbers, b: float, length: float) -> float:
        return 4 * b * length * n.layers * n.q * n.head

    def p_mem(n: Numbers) -> float:
        return n.P * n.prec_p

    def a_mem(n: Numbers, b: float, length: float) -> float:
        return 2 * b * length * n.layers * n.kv * n.head * n.prec_kv

    total = prompt * p_comp(m, 1) + sum(a_comp(m, 1, at) for at in range(1, prompt + 1))
    total += (p_mem(m) + a_mem(m, 1, prompt)) * i
    initial: list[int] = []
    for draft in trace:
        above = draft["parent"]
        initial.append(prompt if above < 0 else initial[above] + trace[above]["tokens"])
    for step in sorted({draft["depth"] for draft in trace}):
        own = [(initial[at], d["tokens"], d.get("score")) for at, d in enumerate(trace) if d["depth"] == step]
        for n in range(1, max(new for _, new, _ in own) + 1):
            live = [start + n for start, new, _ in own if new >= n]
            b, mean = len(live), sum(live) / len(live)
            total += p_comp(m, b) + a_comp(m, b, mean) + (p_mem(m) + a_mem(m, b, mean)) * i
        final = [start + new for start, new, score in own if score is not None]
        for length in final:
            total += length * p_comp(v, 1) + sum(a_comp(v, 1, n) for n in range(1, length + 1))
        if final:
            total += i * (p_mem(v) + sum(a_mem(v, 1, length) for length in final))
    return total


@pytest.mark.parametrize("seed", range(12))
def test_the_closed_form_is_the_appendix_position_by_position(seed: int) -> None:
    rng = random.Random(seed)
    generator, verifier = Numbers(1000, 2, 4, 2, 8), Numbers(500, 1, 2, 1, 8, 4, 4)
    trace: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 14)):
        parent = rng.randrange(-1, len(trace))
        depth = 1 if parent < 0 else trace[parent]["depth"] + 1
        trace.append({"parent": parent, "depth": depth, "tokens": rng.randint(1, 9)})
        if rng.random() < 0.8:
            trace[-1]["score"] = rng.random()
    prompt = rng.randint(1, 20)
    worked = price(prompt, trace, generator, verifier, 156.0)
    assert worked.cost == pytest.approx(by_position(prompt, trace, generator, verifier, 156.0), rel=1e-12)
    assert worked.cost == pytest.approx(
        worked.prefill_eflops + worked.decoding_eflops + worked.verifier_eflops, rel=1e-12
    )
    assert worked.cost == pytest.approx(worked.compute_flops + 156.0 * worked.memory_bytes, rel=1e-12)


def test_the_example_of_the_docs() -> None:
    trace = [
        {"parent": -1, "depth": 1, "tokens": 3, "score": 0.4}, {"parent": -1, "depth": 1, "tokens": 5, "score": 0.9},
        {"parent": 1, "depth": 2, "tokens": 2, "score": 0.8}, {"parent": 1, "depth": 2, "tokens": 4, "score": 0.7},
    ]  # fmt: skip
    found = price(10, trace, Numbers(1000, 2, 4, 2, 8), Numbers(500, 1, 2, 1, 8), 156.0)
    assert (found.cost, found.compute_flops, found.memory_bytes) == (8_238_400, 213_760, 51_440)
    assert (found.prefill_eflops, found.decoding_eflops, found.verifier_eflops) == (
        545_760,
        6_961_696,
        730_944,
    )


@pytest.mark.parametrize("name", ["mini", "qwen3"])
def test_both_readings_of_a_shipped_catalogue_price_alike(name: str) -> None:
    path = Path(f"infra/catalogue/{name}.yaml")
    catalogue, second = load_catalogue(path), PriceList(path)
    cost_model = CostModel.of(catalogue)
    trace = (
        Draft(parent=-1, depth=1, tokens=40, finish="separator", score=0.5),
        Draft(parent=-1, depth=1, tokens=31, finish="separator", score=0.75),
        Draft(parent=1, depth=2, tokens=17, finish="eos"),
    )
    assert {model.name for model in catalogue.models} == set(second.models)
    for model in catalogue.models:
        answer = Answer(
            query_id="q", status="failed", by="executor", action=Action(model=model.name, qp=2, cp=1, bs=1),
            trace=trace, prompt_tokens=55, error="none", verifier=Served(name="any", model=catalogue.verifier),
        )  # fmt: skip
        stated = cost_of(answer, cost_model)
        assert stated is not None
        plain = {
            "action": {"model": model.name}, "prompt_tokens": 55,
            "verifier": {"name": "any", "model": catalogue.verifier},
            "trace": [{"parent": d.parent, "depth": d.depth, "tokens": d.tokens, "score": d.score} for d in trace],
        }  # fmt: skip
        (worked,) = second.prices(plain)
        for field, number in worked._asdict().items():
            assert number == pytest.approx(getattr(stated, field), rel=1e-12), (model.name, field)


def test_a_mixture_of_experts_is_read_with_its_active_parameters() -> None:
    shape = {"parameters": 8000, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 8}
    entry = {"architecture": {**shape, "active_parameters": 1000}}
    assert numbers(entry) == Numbers(1000, 2, 4, 2, 8)


def test_replaced_model_keeps_its_former_numbers() -> None:
    catalogue = PriceList(Path("infra/catalogue/qwen3.yaml"))
    name = next(iter(catalogue.models))
    architecture = {"parameters": 10, "layers": 1, "query_heads": 1, "kv_heads": 1, "head_dim": 1}
    for _ in range(2):
        catalogue.add({"name": name, "architecture": architecture, "engine": {"dtype": "float32"}})
    assert len(catalogue.models[name]) == 2
    assert catalogue.models[name][1].prec_p == 4


def test_catalogue_within_a_configuration_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "catalogue.yaml").write_text(CATALOGUE)
    (tmp_path / "uniscale.yaml").write_text(
        yaml.safe_dump({"prefix": "t.", "catalogue": yaml.safe_load(CATALOGUE)})
    )
    own, written_out = (PriceList(tmp_path / name) for name in ("catalogue.yaml", "uniscale.yaml"))
    assert vars(written_out) == vars(own)
