"""Rows in a file: the same as a dictionary, no larger than the most that was there, and gone with whoever made it."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.runtime.errors import Crash
from streams.runtime.table import FileRows

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"\x00action/x"])
STEPS = st.lists(
    st.one_of(
        st.tuples(KEYS, st.sampled_from([0, 1, 255, 256, 257, 700]), st.binary(max_size=3)),
        st.tuples(KEYS, st.none(), st.none()),
    ),
    max_size=60,
)


@given(STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_it_is_a_dictionary(tmp_path: Path, steps: list[tuple[bytes, int | None, bytes | None]]) -> None:
    rows, model = FileRows(tmp_path), dict[bytes, bytes]()
    for key, length, content in steps:
        if length is None or content is None:
            assert rows.pop(key, None) == model.pop(key, None)
        else:
            rows[key] = model[key] = (content or b"x") * length
        assert dict(rows) == model
        assert list(rows) == list(model)
        assert (len(rows), b"a" in rows) == (len(model), b"a" in model)
    rows.clear()
    assert dict(rows) == {}


def test_the_file_does_not_outgrow_what_was_there_at_once(tmp_path: Path) -> None:
    rows = FileRows(tmp_path)
    for round_ in range(50):
        for n in range(20):
            rows[b"%d" % n] = bytes([round_]) * 3000
        for n in range(0, 20, 2):
            del rows[b"%d" % n]
    assert os.fstat(rows._file).st_size <= 21 * 3072, "one more while a value is replaced"


def test_nothing_of_it_is_left_or_read_again(tmp_path: Path) -> None:
    rows = FileRows(tmp_path / "state")
    rows[b"q"] = b"value"
    assert list((tmp_path / "state").iterdir()) == [], "it has no name: no crash leaves it behind"
    assert dict(FileRows(tmp_path / "state")) == {}
    assert rows[b"q"] == b"value"


def test_a_folder_that_cannot_hold_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Crash, match=r"state_dir: rows cannot be kept in a file in .*file"):
        FileRows(tmp_path / "file")
    rows = FileRows(tmp_path)
    rows[b"q"] = b"value"
    os.ftruncate(rows._file, 2)
    with pytest.raises(Crash, match="2 bytes of 5"):
        rows[b"q"]
