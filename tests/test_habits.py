"""Hooks and workflows run what `make lint` and `.ci/run` run; the version is one the changelog knows."""

import re
import shlex
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def lint_commands() -> list[list[str]]:
    """The commands of `make lint`, as words, without the folder of the tools."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    return [shlex.split(line.strip().replace("$(BIN)/", "")) for line in recipe[1].splitlines()]


def test_pre_commit_runs_the_commands_of_make_lint() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    words = [shlex.split(entry.removeprefix("env ").replace(".venv/bin/", "")) for entry in entries]
    assert words == lint_commands()
    assert {hook["language"] for repo in config["repos"] for hook in repo["hooks"]} == {"system"}


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    python = next(step for step in steps if str(step.get("uses")).startswith("actions/setup-python"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={python['with']['python-version']}"


def test_the_version_is_the_latest_release_of_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    released = re.fullmatch(r"(\d+\.\d+\.\d+) - \d{4}-\d{2}-\d{2}", headings[1])
    assert released is not None, f"{headings[1]!r}: write VERSION - YYYY-MM-DD"
    assert released[1] == project["version"]
