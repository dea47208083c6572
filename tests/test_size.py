"""What `python -m tests.size` counts, on a checkout of two modules."""

import subprocess
from pathlib import Path

import click
import pytest

from tests.size import by_area, checked_out, last_release, leaves, passages, sampled, shape, table, tracked

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
QUERY = "-- what it finds\nSELECT 1;\n\n"
SCRIPT = "// what it does\nlet a = 1;\n\n/* more\n   words */\nlet b = 2;\n"


def checkout(folder: Path) -> Path:
    for name, text in {
        "agents/__init__.py": '"""Agents."""\n',
        "agents/deep/one.py": ONE,
        "agents/two.py": TWO,
        "agents/static/page.js": SCRIPT,
        "agents/static/vendor/theirs.js": SCRIPT,
        "agents/checks.sql": QUERY,
        "notes.md": "no code\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    return folder


def commit(folder: Path, message: str) -> None:
    by = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *by, "commit", "-aqm", message], cwd=folder, check=True)


def test_lines_are_counted_formatted_without_prose(tmp_path: Path) -> None:
    areas = by_area(checkout(tmp_path), tracked(tmp_path))
    # The dictionary fits one line as soon as nothing forbids ruff to join it.
    assert areas["agents"] == {"files": 3, "physical": 19, "code": 7, "docstrings": 4, "comments": 2}
    assert areas["static JavaScript"] == {"files": 1, "physical": 6, "code": 2}
    assert areas["SQL"] == {"files": 1, "physical": 3, "code": 1}
    assert areas["all"]["code"] == 10
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


def test_growth_is_counted_from_a_commit(tmp_path: Path) -> None:
    commit(checkout(tmp_path), "before")
    (tmp_path / "agents" / "two.py").write_text(TWO + "MORE = 3\nMOST = 4\n")
    (tmp_path / "agents" / "checks.sql").write_text("SELECT 1,\n  2;\n")
    with checked_out(tmp_path, "HEAD") as (then, files):
        assert (then / "agents" / "two.py").read_text() == TWO
        before = by_area(then, files)
    page = table({"areas": by_area(tmp_path, tracked(tmp_path)), "since": ("0.1.0", before)})
    assert "| area | files | code lines | since 0.1.0 | physical |" in page
    assert "| agents | 3 | 9 | +2 |" in page
    assert "| SQL | 1 | 2 | +1 |" in page
    assert "| static JavaScript | 1 | 2 | +0 |" in page


def test_an_unknown_commit_is_named(tmp_path: Path) -> None:
    commit(checkout(tmp_path), "before")
    with (
        pytest.raises(SystemExit, match=r"--since gone: .*give a commit or a tag"),
        checked_out(tmp_path, "gone"),
    ):
        pass


def test_the_last_release_is_a_tag_or_a_changelog_line(tmp_path: Path) -> None:
    log = checkout(tmp_path) / "CHANGELOG.md"
    log.write_text("# Changelog\n\n## Unreleased\n")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    commit(tmp_path, "nothing is released")
    assert last_release(tmp_path) is None
    log.write_text("# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-11-21\n")
    commit(tmp_path, "release")
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=tmp_path, capture_output=True, text=True
    )
    log.write_text("# Changelog\n\n## Unreleased\n\n- A change.\n\n## 0.1.0 - 2026-11-21\n")
    commit(tmp_path, "a change since")
    assert last_release(tmp_path) == head.stdout.strip()
    subprocess.run(["git", "tag", "v0.2.0"], cwd=tmp_path, check=True)
    assert last_release(tmp_path) == "v0.2.0"


def test_passages_are_docstrings_and_comments_with_lines() -> None:
    source = '''"""One.

    More of it.
    """
# Why it
# is so.
value = 1  # shape (2,)
# Another reason.
"""About the value."""
other = 2  # noqa: E501
'''
    assert passages(source) == [
        (1, "One.\n\nMore of it."), (5, "# Why it\n# is so."), (7, "# shape (2,)"), (8, "# Another reason."),
        (9, "About the value."),
    ]  # fmt: skip


def test_a_sample_is_drawn_by_its_seed(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    drawn = [sampled(folder, tracked(folder), 3, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    everything = sampled(folder, tracked(folder), 99, 0)
    assert len(everything) == 6
    assert set(drawn[0]) < set(everything)
    assert "agents/deep/one.py:8\n    # Why it is so." in everything
