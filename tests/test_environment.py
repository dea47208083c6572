"""`make` says what is missing before it installs anything, and the CI script reports how pytest ended."""

import os
import re
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


def test_no_python_at_all(tmp_path: Path) -> None:
    done = environment(tmp_path, "")
    assert done.returncode == 1
    assert "no Python found. Install Python 3.11" in done.stderr


def test_a_python_that_does_not_run(tmp_path: Path) -> None:
    done = environment(tmp_path, str(script(tmp_path / "python3.11", "exit 127")))
    assert done.returncode == 1
    assert "does not run" in done.stderr


def test_the_wrong_python(tmp_path: Path) -> None:
    done = environment(tmp_path, str(script(tmp_path / "python3", "echo 3.13")))
    assert done.returncode == 1
    assert "is Python 3.13, but 3.11 is needed" in done.stderr


def test_a_python_without_venv(tmp_path: Path) -> None:
    body = f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"'
    done = environment(tmp_path, str(script(tmp_path / "python3", body)))
    assert done.returncode == 1
    assert "lacks the modules venv and ensurepip" in done.stderr


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


@pytest.mark.parametrize(
    ("closing", "status"),
    [
        ("=========== 412 passed, 3 skipped, 9 deselected in 301.22s (0:05:01) ===========", 0),
        ("= 9 failed, 90 passed in 113.80s (0:01:53) =", 2),
        ("=========== 1 error in 0.50s ===========", 2),
    ],
)
def test_the_ci_script_ends_with_pytests_closing_line(tmp_path: Path, closing: str, status: int) -> None:
    """It calls `make test` and nothing else, without stdin; here make is a stand-in that prints what pytest would."""
    body = f'echo "called: $* CI=$CI"; [ -z "$(cat)" ] || exit 9; echo "{closing}"; echo "make: bye"; exit {status}'
    script(tmp_path / "make", body)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci" / "run"], env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines[0] == "called: test CI=true"
    assert lines[-1] == closing
    assert done.returncode == status


def test_the_ci_script_says_when_pytest_was_never_reached(tmp_path: Path) -> None:
    script(tmp_path / "make", "echo no network; exit 2")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci" / "run"], env=env, capture_output=True, text=True, check=False)
    assert (
        done.stdout.splitlines()[-1] == "pytest did not get to its end: make test failed before it (exit 2)"
    )
    assert done.returncode == 2


def test_no_test_calls_make_test() -> None:
    """The suite inside the suite would never end. This file's stand-in is no make."""
    called = re.compile(r"""["']make["'],\s*["']test""")
    assert [path for path in (ROOT / "tests").rglob("*.py") if called.search(path.read_text())] == []


def test_every_make_target_is_in_its_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    assert phony == set(re.findall(r"^([a-z-]+):.* ## .+$", makefile, re.MULTILINE))
