"""The console script `uniscale` is the command line, and refuses another project's package `agents`."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def uniscale(*words: str, path: tuple[Path, ...] = (ROOT,)) -> "subprocess.CompletedProcess[str]":
    """Run what an installer makes of the entry point, with the packages of these folders."""
    module, function = PROJECT["scripts"]["uniscale"].split(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}())"
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_says_its_version() -> None:
    done = uniscale("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"uniscale-streams {PROJECT['version']}\n"


@pytest.mark.seconds
def test_it_runs_commands() -> None:
    done = uniscale("topics", "--help")
    assert done.returncode == 0
    assert "create" in done.stdout


def stub(folder: Path) -> Path:
    """Write a package `agents` as another project may have it: ours must not even import it."""
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "__init__.py").write_text("raise SystemExit('imported')\n")
    return folder


def test_another_package_that_comes_first_is_refused(tmp_path: Path) -> None:
    done = uniscale("--version", path=(stub(tmp_path), ROOT))
    assert done.returncode == 1
    assert f"finds {tmp_path}/agents/__init__.py, which is not UniScale-Streams' package" in done.stderr
    assert "environment of its own" in done.stderr


def test_another_package_that_has_replaced_ours_is_refused(tmp_path: Path) -> None:
    stub(tmp_path)
    for name in ("streams", "schemas"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = uniscale("--version", path=(tmp_path,))
    assert done.returncode == 1
    assert "is not UniScale-Streams' package" in done.stderr


def test_a_missing_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "streams").symlink_to(ROOT / "streams")
    done = uniscale("--version", path=(tmp_path,))
    assert done.returncode == 1
    assert "`import agents` finds nothing" in done.stderr
