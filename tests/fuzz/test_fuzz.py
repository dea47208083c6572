"""Nothing that a type allows ends a service: not in a record, nor in a row, nor in a request's body."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, batch, settings_in


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_what_the_types_allow_ends_no_service(tmp_path: Path, seed: int) -> None:
    outcome = batch(settings_in(tmp_path), seed)
    assert outcome.faults == []
    assert set(outcome.given) == set(TARGETS)
    assert outcome.decodable.total() >= 0.8 * outcome.given.total()
