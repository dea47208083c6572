"""What `python -m tests.size` counts, on a checkout of two modules."""

import subprocess
from pathlib import Path

import click

from tests.size import by_area, leaves, shape, table, tracked

ONE = '''"""One."""
from agents import two


class Same:
    """A class."""

    # Why it is so.
    value = {"a": 1,
        "b": two.VALUE}  # fmt: skip

    text = """not
a docstring"""
'''
TWO = '"""Two."""\nVALUE = 2  # shape (2,)\n\n\nclass Same: ...\n'
SCRIPT = "// what it does\nlet a = 1;\n\n/* more\n   words */\nlet b = 2;\n"


def checkout(folder: Path) -> Path:
    for name, text in {
        "agents/__init__.py": '"""Agents."""\n',
        "agents/deep/one.py": ONE,
        "agents/two.py": TWO,
        "agents/static/page.js": SCRIPT,
        "agents/static/vendor/theirs.js": SCRIPT,
        "notes.md": "no code\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    return folder


def test_lines_are_counted_as_ruff_writes_them_without_docstrings_and_comments(tmp_path: Path) -> None:
    areas = by_area(checkout(tmp_path), tracked(tmp_path))
    # The dictionary fits one line as soon as nothing forbids ruff to join it.
    assert areas["agents"] == {"files": 3, "physical": 19, "code": 7, "docstrings": 4, "comments": 2}
    assert areas["static JavaScript"] == {"files": 1, "physical": 6, "code": 2}
    page = table({"areas": areas, "modules": 2, "one_importer": ["agents.two"]})
    assert "| agents | 3 | 7 | 19 | 57 | 28.6 |" in page
    assert "| modules imported by exactly one other | 1 |" in page


def test_modules_have_importers_depth_and_class_names(tmp_path: Path) -> None:
    assert shape(checkout(tmp_path), tracked(tmp_path)) == {
        "modules": 2, "one_importer": ["agents.two"], "classes_twice": {"Same": 2}, "depth": 2, "fmt_skips": 1,
    }  # fmt: skip


def test_a_command_of_a_group_within_a_group_is_one_leaf() -> None:
    inner = click.Group("inner", commands=[click.Command("b"), click.Command("c")])
    assert leaves(click.Group("all", commands=[click.Command("a"), inner])) == ["a", "inner b", "inner c"]
