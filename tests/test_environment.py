"""`make` says what is missing before it installs anything, and the CI script reports how pytest ended."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).parent.parent


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def environment(tmp_path: Path, python: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the environment's script in an empty folder, with an index that nobody serves."""
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    env = {**os.environ, "PYTHON": python, "VENV": "new", "TORCH_INDEX": "http://127.0.0.1:9/none", **changes}
    command = ["bash", str(ROOT / "requirements" / "environment.sh")]
    return subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("", "no Python found. Install Python 3.11"),
        ("exit 127", "does not run"),
        ("echo 3.13", "is Python 3.13, but 3.11 is needed"),
        (
            f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"',
            "lacks the modules venv and ensurepip",
        ),
    ],
    ids=["none", "does not run", "wrong version", "without venv"],
)
def test_a_python_that_will_not_do_is_named(tmp_path: Path, python: str, why: str) -> None:
    done = environment(tmp_path, str(script(tmp_path / "python3", python)) if python else "")
    assert done.returncode == 1
    assert why in done.stderr


def test_no_network(tmp_path: Path) -> None:
    """pip is given no index that answers: neither the configured one nor PyTorch's."""
    new = tmp_path / "new"
    # What `python -m venv` makes, without the seconds it takes to unpack pip.
    venv.create(new, with_pip=False, symlinks=True)
    (new / "lib" / "python3.11" / "site-packages" / "pip").symlink_to(Path(pip.__file__).parent)
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/none",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
    }
    done = environment(tmp_path, sys.executable, **nowhere)
    assert done.returncode == 1
    assert "not in the configured index; trying http://127.0.0.1:9/none" in done.stdout
    assert "Is there a network?" in done.stderr
    assert not (new / ".installed").exists()


def ci(tmp_path: Path, body: str, kafka: str = "") -> subprocess.CompletedProcess[str]:
    """Run the CI script, with a stand-in for make that says from where and how it was called."""
    script(
        tmp_path / "make", f'echo "make $* in $PWD, CI=$CI KAFKA_HOME=$KAFKA_HOME"; [ -z "$(cat)" ]; {body}'
    )
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "KAFKA_HOME": kafka,
    }
    done = subprocess.run([ROOT / ".ci" / "run"], env=env, capture_output=True, text=True, check=False)
    assert {path.name for path in tmp_path.iterdir()} == {"make"}, "what it made is gone"
    return done


def ending(**closings: str) -> str:
    """Return a case of the shell: the closing line of each target, and status 2 where something failed."""
    cases = " ".join(f"{target}) echo '{line}';;" for target, line in closings.items()).replace("_", "-")
    failing = [
        target.replace("_", "-") for target, line in closings.items() if "failed" in line or "error" in line
    ]
    return f'case "$1" in {cases} esac; ' + "".join(f'[ "$1" != {target} ] || exit 2; ' for target in failing)


PASSED = "=========== 412 passed, 3 skipped, 9 deselected in 301.22s (0:05:01) ==========="


@pytest.mark.parametrize(
    ("test", "test_kafka", "status", "last"),
    [
        (
            PASSED,
            "== 100 passed, 2909 deselected in 61.20s (0:01:01) ==",
            0,
            "512 passed, 0 failed, 3 skipped",
        ),
        pytest.param(
            "= 9 failed, 90 passed in 113.80s (0:01:53) =",
            PASSED,
            1,
            "502 passed, 9 failed, 3 skipped",
            marks=pytest.mark.seconds,
        ),
        pytest.param(
            PASSED,
            "=========== 1 error in 0.50s ===========",
            1,
            "412 passed, 1 failed, 3 skipped",
            marks=pytest.mark.seconds,
        ),
        pytest.param(
            "= 9 passed, 76 skipped in 1.00s =",
            PASSED,
            1,
            "421 passed, 0 failed, 79 skipped",
            marks=pytest.mark.seconds,
        ),
    ],
)
def test_ci_script_runs_the_new_users_commands_then_kafka(
    tmp_path: Path, test: str, test_kafka: str, status: int, last: str
) -> None:
    done = ci(tmp_path, ending(test=test, test_kafka=test_kafka), kafka="/opt/kafka")
    called = [line.split() for line in done.stdout.splitlines() if line.startswith("make ")]
    assert [words[1] for words in called] == [
        "env",
        "demo",
        "test-fast",
        "test",
        "test-kafka",
        "docs",
        "size",
    ]
    here, *new, again, _, last_of_all = (Path(words[3].rstrip(",")) for words in called)
    assert here == again == last_of_all == ROOT
    assert len(set(new)) == 1
    assert new[0].is_relative_to(tmp_path)
    assert {words[4] for words in called} == {"CI=true"}
    assert [words[5] for words in called[1:4]] == ["KAFKA_HOME="] * 3
    assert {words[5] for words in called[4:]} == {"KAFKA_HOME=/opt/kafka"}
    assert done.stdout.splitlines()[-3:] == [test, test_kafka, last]
    minutes = (
        "env 0:.., clone 0:.., demo .*, test-fast .*, test .*, test-kafka .*, docs .*, size .*; in all 0"
    )
    assert re.search(f"^minutes: {minutes}$", done.stdout, re.M)
    assert done.returncode == status


def test_new_checkout_reuses_the_environment(tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None or not (ROOT / ".venv" / ".installed").exists():
        pytest.skip("needs make and the environment of `make env`")
    done = ci(tmp_path, f'[ "$1" != demo ] || {make} --question env && echo "up to date"')
    assert "up to date" in done.stdout, done.stdout


def test_the_ci_script_says_what_it_did_not_get_to(tmp_path: Path) -> None:
    done = ci(tmp_path, '[ "$1" != test ] || { echo no lint; exit 2; }', kafka="/opt/kafka")
    assert "failed: test (exit 2)" in done.stdout
    assert "pytest did not get to its end: make test failed before it" in done.stdout
    assert done.returncode == 1
    done = ci(tmp_path, "echo no network; exit 2")
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("make ")] == ["env"]
    assert done.returncode == 1


def suite(kafka_home: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run part of this suite."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    env = {**os.environ, "KAFKA_HOME": kafka_home}
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.seconds
def test_kafka_skips_are_listed_or_are_errors_with_kafka(tmp_path: Path) -> None:
    where = "tests/integration/test_secured.py"
    without = suite("", where, "--broker", "embedded").stdout.splitlines()
    at = next(n for n, line in enumerate(without) if re.fullmatch(r"=+ 5 skipped =+", line))
    assert without[at + 1 : at + 5] == [
        "  5 needs Apache Kafka (make test-kafka): the embedded broker has no TLS or SASL listener",
        f"      {where}::test_commands_and_services_connect_by_tls_and_password",
        f"      {where}::test_commands_and_services_connect_by_token",
        f"      {where}::test_what_is_refused_names_the_settings (3)",
    ]
    refused = suite(str(tmp_path), where, "--broker", "kafka")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"KAFKA_HOME={tmp_path}: this is not a Kafka distribution" in refused.stderr


def test_no_test_calls_make_test() -> None:
    """The suite inside the suite would never end. This file's stand-in is no make."""
    called = re.compile(r"""["']make["'],\s*["']test""")
    assert [path for path in (ROOT / "tests").rglob("*.py") if called.search(path.read_text())] == []


def test_every_make_target_is_in_its_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split())
    assert phony == set(re.findall(r"^([a-z-]+):.* ## .+$", makefile, re.MULTILINE))
