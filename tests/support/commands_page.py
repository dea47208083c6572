"""docs/commands.md, made from the command line: each command with what its `--help` prints."""

import inspect
import re
from collections.abc import Iterator

import click

from streams.cli import main

HEAD = """# Commands

Every command of `python -m streams`, or of the console script `uniscale`, in alphabetical order, as `--help` explains
it. [Usage](usage.md) and [operating](operating.md) show them at work. Results go to stdout and messages to stderr;
[operating](operating.md) explains the exit codes.

`WRITE_GOLDEN=1 python -m pytest tests/streams/test_reference_pages.py` writes this page again from `streams/cli/`.
"""


def commands(command: click.Command = main, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Return the name and the command of every leaf of the command line."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from commands(below, f"{name} {each}".strip())
    else:
        yield name, command


def page() -> str:
    """Return the whole page."""
    before = "\n".join(
        [
            "## Options before the command",
            "",
            "They stand between `python -m streams` and the command, and select the deployment.",
            "",
            *_options(main),
            "",
        ]
    )
    return "\n".join([HEAD, before, *(_section(name, command) for name, command in commands())])


def _section(name: str, command: click.Command) -> str:
    usage = " ".join(["python -m streams", name, *command.collect_usage_pieces(_context(command))])
    return "\n".join([f"## {name}", "", f"`{usage}`", "", _prose(command.help or ""), "", *_options(command)])


def _context(command: click.Command) -> click.Context:
    return click.Context(command, show_default=True)


def _options(command: click.Command) -> list[str]:
    context = _context(command)
    records = [
        each.get_help_record(context)
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden
    ]
    rows = [f"| `{_cell(option)}` | {_cell(_prose(text))} |" for option, text in filter(None, records)]
    return ["| option | what it does |", "|---|---|", *rows, ""] if rows else []


def _prose(text: str) -> str:
    """Return help as Markdown: pages it names as links, and nothing that would be taken for HTML."""
    code = re.split(r"(`[^`]*`)", re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text)))
    return "".join(each if each.startswith("`") else _plain(each) for each in code)


def _plain(text: str) -> str:
    linked = re.sub(r"docs/(\w+)\.md", r"[\1](\1.md)", text)
    return (
        linked.replace("docs/records", "[records](records/README.md)")
        .replace("<", "&lt;")
        .replace("*", r"\*")
    )


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("  ", " ")
