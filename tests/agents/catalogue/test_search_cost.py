"""The closed form of the price against a token-by-token sum written from App. D.3, position by position."""

import doctest
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.catalogue.models import Architecture
from agents.catalogue.search_cost import INTENSITY, PhaseCost, search_cost

DOC = Path(__file__).parents[3] / "docs" / "eflops.md"


@dataclass(frozen=True)
class Row:
    parent: int
    tokens: int
    score: float | None = 0.5


def architecture(**changes: int) -> Architecture:
    numbers = {"parameters": 1000, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 8}
    return Architecture(**{**numbers, **changes})


# Assumption D.8, the four atoms, as printed.
def p_comp(m: Architecture, b: int) -> Fraction:
    return Fraction(2 * m.parameters * b)


def p_mem(m: Architecture) -> Fraction:
    return m.parameters * Fraction(m.weight_bytes)


def a_comp(m: Architecture, b: int, context: Fraction | int) -> Fraction:
    return Fraction(4 * b * context * m.layers * m.query_heads * m.head_dim)


def a_mem(m: Architecture, b: int, context: Fraction | int) -> Fraction:
    return Fraction(2 * b * context * m.layers * m.kv_heads * m.head_dim * m.kv_bytes)


def token_by_token(
    prompt: int, rows: list[Row], m: Architecture, v: Architecture
) -> dict[str, tuple[Fraction, Fraction]]:
    """Sum (flops, bytes) of each phase over single positions; the average context is formed and used as printed."""
    pre = (
        prompt * p_comp(m, 1) + sum(a_comp(m, 1, i) for i in range(1, prompt + 1)),
        p_mem(m) + a_mem(m, 1, prompt),
    )

    def ancestors(row: Row) -> list[Row]:
        return [] if row.parent < 0 else [*ancestors(rows[row.parent]), rows[row.parent]]

    dec_flops = dec_bytes = ver_flops = ver_bytes = Fraction(0)
    depth = {index: len(ancestors(row)) for index, row in enumerate(rows)}
    for j in range(max(depth.values(), default=-1) + 1):
        step = [
            (prompt + sum(a.tokens for a in ancestors(row)), row)
            for i, row in enumerate(rows)
            if depth[i] == j
        ]
        for n in range(1, max(row.tokens for _, row in step) + 1):
            active = [init + n for init, row in step if row.tokens >= n]
            b, mean = len(active), Fraction(sum(active), len(active))
            dec_flops += p_comp(m, b) + a_comp(m, b, mean)
            dec_bytes += p_mem(m) + a_mem(m, b, mean)
        scored = [init + row.tokens for init, row in step if row.score is not None]
        for final in scored:
            ver_flops += sum((p_comp(v, 1) + a_comp(v, 1, n) for n in range(1, final + 1)), Fraction(0))
            ver_bytes += a_mem(v, 1, final)
        if scored:
            ver_bytes += p_mem(v)
    return {"prefill": pre, "decoding": (dec_flops, dec_bytes), "verification": (ver_flops, ver_bytes)}


@st.composite
def traces(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    level = [-1]
    for _ in range(draw(st.integers(0, 4))):
        children = []
        for parent in level:
            for _ in range(draw(st.integers(0, 3))):
                score = draw(st.sampled_from([0.5, 0.5, 0.5, None]))
                rows.append(Row(parent, draw(st.integers(0, 12)), score))
                children.append(len(rows) - 1)
        level = [c for c in children if draw(st.booleans())]
    return rows


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    kv_heads = draw(st.integers(1, 4))
    return Architecture(
        parameters=draw(st.integers(1, 5000)),
        layers=draw(st.integers(1, 4)),
        query_heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 16)),
        weight_bytes=draw(st.sampled_from((0.5, 0.625, 1, 2, 4))),
        kv_bytes=draw(st.integers(1, 4)),
    )


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), traces(), architectures(), architectures())
def test_closed_form_equals_the_sum_over_single_tokens(
    prompt: int, rows: list[Row], generator: Architecture, verifier: Architecture
) -> None:
    got = search_cost(prompt, rows, generator, verifier)
    expected = token_by_token(prompt, rows, generator, verifier)
    for phase, (flops, moved) in expected.items():
        assert getattr(got, phase) == PhaseCost(flops, moved)  # type: ignore[arg-type]  # exact
    total = sum(flops + moved * Fraction(INTENSITY) for flops, moved in expected.values())
    assert got.eflops == pytest.approx(float(total), rel=1e-12)
    assert got.compute_flops == sum(flops for flops, _ in expected.values())
    assert got.memory_bytes == sum(moved for _, moved in expected.values())
    flops, moved = expected["verification"]
    assert got.verifier_eflops == pytest.approx(float(flops + moved * Fraction(INTENSITY)), rel=1e-12)
    assert got.log_cost == pytest.approx(math.log(float(total)), rel=1e-12)


def test_a_mixture_of_experts_costs_as_its_active_parameters() -> None:
    rows = [Row(-1, 5, 0.5), Row(0, 7, 0.5)]
    dense, mixture = architecture(), architecture(parameters=8000, active_parameters=1000)
    assert search_cost(9, rows, mixture, mixture) == search_cost(9, rows, dense, dense)
    assert search_cost(9, rows, mixture, dense) != search_cost(9, rows, architecture(parameters=8000), dense)
    assert "active_parameters" not in msgspec.to_builtins(dense), (
        "records and priors of others stay what they are"
    )
    with pytest.raises(ValueError, match=r"active_parameters \(2000\) is more than parameters \(1000\)"):
        architecture(active_parameters=2000)


def test_weights_load_once_per_position_and_verified_step() -> None:
    generator, verifier = architecture(), architecture(parameters=500)
    narrow = search_cost(10, [Row(-1, 8)], generator, verifier)
    wide = search_cost(10, [Row(-1, 8)] * 4, generator, verifier)
    assert wide.decoding.flops == 4 * narrow.decoding.flops
    assert wide.decoding.bytes == 4 * narrow.decoding.bytes - 3 * 8 * 1000 * 2
    assert wide.verification.flops == 4 * narrow.verification.flops
    assert wide.verification.bytes == 4 * narrow.verification.bytes - 3 * 500 * 2


def test_one_more_token_raises_even_the_dearest_cost() -> None:
    large = Architecture(parameters=32_760_000_000, layers=64, query_heads=64, kv_heads=8, head_dim=128)
    small = Architecture(parameters=1_540_000_000, layers=28, query_heads=12, kv_heads=2, head_dim=128)
    rows = [Row(-1, 200) for _ in range(64)] + [Row(i, 200) for i in range(64)]
    base = search_cost(300, rows, large, small).eflops
    assert search_cost(300, [*rows[:-1], Row(63, 201)], large, small).eflops > base > 1e15


@pytest.mark.parametrize(
    ("prompt", "rows", "named"),
    [
        (0, [Row(-1, 1)], "prompt_tokens is 0"),
        (1, [Row(0, 1)], "draft 0 has parent 0"),
        (1, [Row(-1, 1), Row(-2, 1)], "draft 1 has parent -2"),
        (1, [Row(-1, -1)], "draft 0 has -1 tokens"),
    ],
)
def test_a_broken_trace_is_refused_by_name(prompt: int, rows: list[Row], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        search_cost(prompt, rows, architecture(), architecture())


def test_the_worked_example_runs() -> None:
    results = doctest.testfile(str(DOC), module_relative=False)
    assert results.attempted >= 3
    assert results.failed == 0


def test_the_table_of_the_worked_example_adds_up() -> None:
    rows = re.findall(
        r"^\| \*{0,2}(\w[\w ]*?)\*{0,2} \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$",
        DOC.read_text(),
        re.MULTILINE,
    )
    table = {name: [int(cell.replace(",", "")) for cell in cells] for name, *cells in rows}
    generator = architecture()
    verifier = architecture(parameters=500, layers=1, query_heads=2, kv_heads=1)
    example = [Row(-1, 3), Row(-1, 5), Row(1, 2), Row(1, 4)]
    expected = token_by_token(10, example, generator, verifier)
    for phase, (flops, moved) in expected.items():
        assert table[phase] == [flops, moved, flops + moved * 156]
    assert table["total"] == [sum(table[phase][column] for phase in expected) for column in range(3)]
