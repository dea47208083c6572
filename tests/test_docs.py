"""The documents name only what exists: commands and their options, make targets, modules, files."""

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

from tests.integration import test_short_forms

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "infra/README.md",
        "requirements/README.md",
        "experiments/README.md",
    )
    for path in ROOT.glob(pattern)
)
_PYTHON = re.compile(r"python -m ([\w.]+)((?:[ \t]+[^\n`#;|&)]+)?)")
_MAKE = re.compile(r"(?:^|`)make ([a-z.-]+)", re.MULTILINE)
_PATH = re.compile(r"`((?:schemas|agents|streams|experiments|bench|infra|tests|docs|requirements)/[\w./-]*)`")


def commands() -> list[tuple[str, str, str]]:
    """Return (document, module, arguments) of every `python -m` in the documents."""
    return [
        (path.name, found[1], found[2].strip())
        for path in DOCUMENTS
        for found in _PYTHON.finditer(path.read_text())
    ]


def test_the_readme_shows_the_two_commands() -> None:
    assert {"demo", "test"} <= set(_MAKE.findall((ROOT / "README.md").read_text()))


@pytest.mark.parametrize(("document", "module", "arguments"), commands())
def test_every_python_command_exists(document: str, module: str, arguments: str) -> None:
    assert importlib.util.find_spec(module) is not None, f"{document}: no module {module}"
    if module not in ("streams", "bench") or not arguments:
        return
    main: click.Command = importlib.import_module(
        {"streams": "streams.cli", "bench": "bench.commands"}[module]
    ).main
    words = [word for word in shlex.split(arguments.replace("…", "x")) if word]
    command: click.Command = main
    # Options before the command are the group's own.
    context = click.Context(main)
    while words and words[0].startswith("-"):
        option = next((p for p in command.params if words[0] in p.opts), None)
        assert option is not None or words[0] in ("--help", "-h"), f"{document}: {module} has no {words[0]}"
        words = words[2:]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"{document}: no command {words[0]!r} in {arguments!r}"
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--") and word != "--help":
            assert word in known, f"{document}: {arguments!r}: no option {word}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z.][a-z.-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(_MAKE.findall(document.read_text())) - targets == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_named_exists(document: Path) -> None:
    missing = [name for name in _PATH.findall(document.read_text()) if not (ROOT / name).exists()]
    assert missing == []


def test_the_site_has_every_page_once() -> None:
    """`make docs` says as much, but needs MkDocs."""
    listed = re.findall(
        r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2], re.MULTILINE
    )
    assert len(listed) == len(set(listed))
    assert [name for name in listed if not (ROOT / name).exists()] == []
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} - set(listed) == set()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_benchmark_says_policy_commit_and_date() -> None:
    from agents.bandit.registry import kinds

    table = [
        line for line in (ROOT / "docs" / "benchmarks.md").read_text().splitlines() if line.startswith("|")
    ]
    head, _, *rows = (line.strip("| ").split(" | ") for line in table)
    assert head[-1] == "policy, commit, date"
    assert len(rows) >= 20
    for row in rows:
        assert len(row) == len(head), row[0]
        found = re.match(r"(none|drawn|`([\w-]+)`), [0-9a-f]{7}, \d{1,2} [A-Z][a-z]{2} \d{4}\b", row[-1])
        assert found is not None, f"{row[0]}: {row[-1]}"
        assert found[1] in ("none", "drawn") or found[2] in kinds(), row[0]


def test_every_command_and_option_has_help() -> None:
    from streams.cli import main

    pending: list[tuple[str, click.Command | None]] = [("streams", main)]
    while pending:
        name, command = pending.pop()
        assert command is not None
        assert command.help, f"{name} has no help"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and "help" not in parameter.name.split("_"):
                assert parameter.help or parameter.name in command.help, f"{name} {parameter.opts}: no help"
        if isinstance(command, click.Group):
            context = click.Context(command)
            names = command.list_commands(context)
            pending += [(f"{name} {each}", command.get_command(context, each)) for each in names]


def test_every_command_with_a_figure_has_a_short_form() -> None:
    table = (ROOT / "docs" / "benchmarks.md").read_text()
    rest = "\n".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    named = set(
        re.findall(r"`(make [a-z-]+|python -m (?:experiments(?:\.\w+)? |bench |streams\.)[.\w]+)", table)
    )
    named |= set(re.findall(r"`(make bench-[a-z]+|python -m bench [a-z]+)", table + rest))
    assert named - {"make test-kafka"} == set(test_short_forms.COVERED)
    for where in test_short_forms.COVERED.values():
        file = Path(test_short_forms.__file__).with_name(where)
        assert where in vars(test_short_forms) or (ROOT / where).exists() or file.exists()
