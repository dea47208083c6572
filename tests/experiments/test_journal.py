"""What was played is kept, and goes on where it was cut; who looked at live questions is written down."""

from pathlib import Path

import orjson

from experiments.journal import Game, Journal, code_digest, lines_of, record_live_run

GAME = Game("table", "row", "third", 100, 0.25, 1, "code")


def test_a_game_is_found_again_and_another_is_not(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    Journal.open(path).keep(GAME, [3, 0, 167])
    again = Journal.open(path)
    assert again.games == {GAME: [3, 0, 167]}
    again.conclude({"table": "a"})
    assert Journal.open(path).games == {GAME: [3, 0, 167]}
    assert [line for line in lines_of(path) if "verdict" in line] == [{"verdict": {"table": "a"}}]


def test_truncated_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path)
    journal.keep(GAME, [1, 2])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    other = Game("table", "row", "third", 101, 0.25, 1, "code")
    again = Journal.open(path)
    assert list(again.games) == [GAME]
    again.keep(other, [4])
    assert Journal.open(path).games == {GAME: [1, 2], other: [4]}


def test_a_live_run_is_a_line_with_its_commit(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    record_live_run({"table": "mixed"}, path)
    record_live_run({"table": "math"}, path)
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["table"] for line in lines] == ["mixed", "math"]
    assert all(set(line) == {"commit", "changed", "date", "table"} for line in lines)


def test_the_digest_of_code_is_that_of_its_files() -> None:
    assert code_digest("experiments/ridge.py") == code_digest("experiments/ridge.py")
    assert code_digest("experiments/ridge.py") != code_digest("experiments/contenders.py")
    assert code_digest("experiments/record") != code_digest("experiments/record", "experiments/ridge.py")
