"""Grading processes: they compare mathematics and run programs, within their limits, and are replaced."""

import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agents.grading import pool as pool_module
from agents.grading.grade import Verdict, grade
from agents.grading.pool import GraderFailed, GradingPool
from bench.streams import cpu_s

QUESTIONS = Path(__file__).parents[4] / "shared" / "data" / "questions"
SHIFT = {"tests": [[[1, 2, 3], [4, 5, 6]], [[0], [3]]]}


def equal(pool: GradingPool, gold: str, answer: str) -> Verdict:
    return pool.ask("math-verify", {"gold": [gold], "answer": answer})


def passed(pool: GradingPool, program: str, tests: object = SHIFT["tests"]) -> Verdict:
    return pool.ask("program", {"program": program, "tests": tests})


def read(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (QUESTIONS / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def pool() -> Iterator[GradingPool]:
    with GradingPool(timeout_s=30.0) as pool:
        yield pool


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        (r"\frac{1}{2}", "0.5", True),
        ("x+1", "1+x", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)", True),
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        ("0.33", "1/3", False),
        ("x+1", "x+2", False),
        ("5", "}{", False),
        ("5", "", False),
        ("5", "a line\nand another \u2028 \x00", False),
    ],
)
def test_math_verify_compares(pool: GradingPool, gold: str, answer: str, correct: bool) -> None:
    verdict = equal(pool, gold, answer)
    assert (verdict.correct, verdict.how) == (correct, "math-verify")


@pytest.mark.seconds
def test_hanging_comparison_is_killed_and_the_next_works() -> None:
    with GradingPool(timeout_s=1.0) as pool, pytest.raises(GraderFailed, match="no result in 1 s"):
        equal(pool, "5", r"(10^{10^{10}})!")
    with GradingPool(timeout_s=30.0) as pool:
        assert equal(pool, r"\frac{1}{2}", "0.5").correct


@pytest.mark.seconds
def test_lost_process_is_replaced_before_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with GradingPool(workers=1, timeout_s=30.0) as pool:
        exchange = pool._exchange

        def dies(process: Any, line: str, timeout_s: float | None = None) -> dict[str, object] | None:
            if "gold" in line:
                process.kill()
            return exchange(process, line, timeout_s)

        def lose_one() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(pool, "_exchange", dies)
                with pytest.raises(GraderFailed, match="its process died"):
                    equal(pool, "x+1", "1+x")

        lose_one()
        assert pool.started == 2
        with monkeypatch.context() as patched:
            for name in ("_start", "_teach"):
                patched.setattr(pool, name, lambda *_: pytest.fail("the next answer waits for a process"))
            assert equal(pool, "x+1", "1+x").correct
        with monkeypatch.context() as patched:
            patched.setattr(pool_module, "_START_TIMEOUT_S", 0.0)
            lose_one()
        assert equal(pool, "x+1", "1+x").correct, "none could be started: the next answer tries again"


@pytest.mark.seconds
def test_a_process_out_of_memory_is_an_error_and_not_a_crash() -> None:
    # Enough to import sympy, not enough for the power of ten that this evaluates to.
    with GradingPool(timeout_s=30.0, memory_mb=600) as pool:
        assert equal(pool, "10^{10^{9}}", "10^{10^{9}}+1").correct is False
        assert equal(pool, r"\frac{1}{2}", "0.5").correct


@pytest.mark.data("questions/math500.jsonl")
def test_worked_solutions_of_real_problems_grade_right(pool: GradingPool) -> None:
    rows = read("math500.jsonl")
    grades = [grade(row["solution"], row["answer"], ask=pool.ask) for row in rows]
    assert sum(g.correct for g in grades) >= 497


def test_a_grading_process_runs_programs(pool: GradingPool) -> None:
    assert passed(pool, "add 3") == Verdict(correct=True, how="program")
    assert passed(pool, "add 4") == Verdict(correct=False, how="program")
    assert passed(pool, "import os") == Verdict(correct=False, how="program")
    with pytest.raises(GraderFailed, match="program: "):
        passed(pool, "add 3", [])


SLOW = " | ".join(["times 1"] * 32), [[list(range(10_000)), list(range(10_000))]] * 400
"""A program of seconds, with its tests."""


@pytest.mark.seconds
def test_process_dying_while_grading_is_an_error() -> None:
    with GradingPool(workers=1, timeout_s=60.0) as pool, ThreadPoolExecutor(1) as threads:
        assert passed(pool, "add 3").correct
        process = pool._idle.get()
        assert process is not None
        pool._idle.put(process)
        before = cpu_s(process.pid)
        graded = threads.submit(passed, pool, *SLOW)
        while cpu_s(process.pid) == before:  # it has not begun
            time.sleep(0.01)
        process.kill()
        assert isinstance(error := graded.exception(), GraderFailed)
        assert "its process died" in str(error)
        assert passed(pool, "add 3").correct


def test_a_grading_process_is_given_no_secret_and_writes_no_file(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "UNISCALE_SASL_PASSWORD": "hunter2", "PYTHONPATH": str(tmp_path)}
    with GradingPool(workers=1, timeout_s=30.0, environ=environ) as pool:
        assert passed(pool, "add 3").correct
        (process,) = [each for each in [pool._idle.get()] if each is not None]
        inherited = Path(f"/proc/{process.pid}/environ").read_bytes()
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        pool._idle.put(process)
    assert b"hunter2" not in inherited
    assert str(tmp_path).encode() not in inherited
    assert re.search(r"Max file size +0 ", limits)
    assert re.search(rf"Max address space +{2048 * 2**20} ", limits)


@pytest.mark.seconds
def test_slow_program_is_killed_while_others_are_graded() -> None:
    # Needs about twice the limit on a fast core: neither a quick machine nor a busy one may end it by itself.
    with GradingPool(workers=2, timeout_s=4.0) as pool, ThreadPoolExecutor(2) as threads:
        hung = threads.submit(passed, pool, *SLOW)
        assert passed(pool, "add 3").correct
        assert not hung.done()
        with pytest.raises(GraderFailed, match="no result in 4 s"):
            hung.result()
        assert all(passed(pool, "add 3").correct for _ in range(2)), "its place is taken again"


@pytest.mark.seconds
def test_mathematics_is_imported_only_where_it_is_needed() -> None:
    def resident_mb(pool: GradingPool) -> float:
        process = pool._idle.get()
        assert process is not None
        pool._idle.put(process)
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    with GradingPool(workers=1, timeout_s=30.0) as pool:
        assert passed(pool, "add 3").correct
        before = resident_mb(pool)
        assert equal(pool, "x^2", "x*x").correct
        assert before < 40 < resident_mb(pool)
        assert passed(pool, "add 3").correct
        assert pool.started == 1
