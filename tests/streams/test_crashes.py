"""Failures at one record are counted across restarts."""

from pathlib import Path

from streams.crashes import Crashes


def test_the_count_survives_the_process_and_forgets_when_told(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "crashes.json"
    assert Crashes(path).add("t/0/1") == 1
    assert Crashes(path).add("t/0/1") == 2
    assert Crashes(path).add("t/0/2") == 1
    Crashes(path).forget("t/0/1")
    assert Crashes(path).add("t/0/1") == 1


def test_a_torn_file_starts_the_count_again(tmp_path: Path) -> None:
    path = tmp_path / "crashes.json"
    path.write_bytes(b'{"t/0/1": 2')
    assert Crashes(path).add("t/0/1") == 1
