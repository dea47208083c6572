"""The cases recorded from `vllm serve`, before the gateway; `tests.support.conformance` has them and the deviations."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import conformance
from tests.support.gateway_deployment import Deploy

EXPECTED = json.loads(conformance.GOLDEN.read_text())["cases"]


@pytest.fixture(scope="module")
def shown(deploy: Deploy) -> dict[str, Any]:
    """What the gateway shows in every case."""
    found: dict[str, Any] = conformance.observed(deploy().url, "large")
    return found


@pytest.mark.parametrize("case", conformance.CASES)
def test_the_gateway_shows_what_vllm_serve_shows(case: str, shown: dict[str, Any]) -> None:
    differ = conformance.differences(EXPECTED[case], shown[case])
    left, _ = conformance.unlisted(case, differ)
    assert left == {}, "(recorded from vLLM, found here); fix it, or list it in DEVIATIONS with its reason"


def test_every_deviation_still_occurs(shown: dict[str, Any]) -> None:
    used: set[Any] = set()
    for case, found in shown.items():
        used |= conformance.unlisted(case, conformance.differences(EXPECTED[case], found))[1]
    assert [each for each in conformance.DEVIATIONS if each not in used] == []


def test_the_record_has_every_case() -> None:
    assert list(EXPECTED) == sorted(conformance.CASES)


def test_a_difference_is_found() -> None:
    was = {"status": 200, "id": "string", "usage": "null", "choices[].finish_reason": "null|string"}
    now = {
        "status": 400,
        "id": "number",
        "usage": "object",
        "choices[].finish_reason": "string",
        "more": "null",
    }
    assert conformance.differences(was, now) == {
        "status": (200, 400), "id": ("string", "number"), "more": ("absent", "null"),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_vllm_serve_still_shows_what_was_recorded(tmp_path: Path) -> None:
    with conformance.vllm_serve(conformance.MODEL, tmp_path) as url:
        found = conformance.observed(url, conformance.MODEL)
    differ = {case: conformance.differences(EXPECTED[case], each) for case, each in found.items()}
    for case, each in differ.items():
        # Answers are sampled, and now and then the small model comes to no end.
        if not case.endswith("cut off"):
            assert each.pop("finish reasons", ([], ["length"]))[1] == ["length"], case
    assert differ == {case: {} for case in EXPECTED}
