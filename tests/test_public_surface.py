"""What is public stands in an `__all__`: examples and documents import nothing else, and the smallest programs run."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("schemas", "agents", "streams", "experiments")
THEIRS = "agents.md"
"""The page with programs of agent frameworks, which import nothing of ours: one of them has a package `agents`, too."""
PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
EXTENDING = BLOCK.findall((ROOT / "docs" / "extending.md").read_text())


def programs() -> Iterator[tuple[str, str]]:
    """Yield every example, and every piece of Python in the documents, with where it stands."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for at, block in enumerate(BLOCK.findall(path.read_text()) if path.name != THEIRS else ()):
            typed = "\n".join(PROMPT.findall(block)) if ">>>" in block else block
            yield f"{path.name} {at}", typed


@pytest.mark.parametrize(
    ("where", "source"), list(programs()), ids=lambda each: each if len(each) < 40 else ""
)
def test_only_public_names_are_imported(where: str, source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            public = getattr(importlib.import_module(node.module), "__all__", ())
            assert {each.name for each in node.names} <= set(public), f"{where}: {node.module}"


@pytest.mark.parametrize(
    "package", ["schemas", "agents.bandit", "agents.search", "streams.client", "streams.services"]
)
def test_what_is_named_public_is_there_and_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    beside = {path.stem for path in (ROOT / package.replace(".", "/")).glob("*.py")}
    assert not beside & set(module.__all__), "a name that hides a module of its package"
    for name in module.__all__:
        found = getattr(module, name)
        assert not isinstance(found, type | FunctionType) or found.__doc__, f"{package}.{name}"


@pytest.mark.parametrize("at", range(len(EXTENDING)), ids=["policy", "service"])
def test_the_smallest_of_each_runs(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's code as it stands, and the test in it; both fit on a screen."""
    from agents.bandit import registry

    monkeypatch.setattr(registry, "_KINDS", dict(registry.kinds()))
    assert len(EXTENDING[at].splitlines()) <= 64
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(EXTENDING[at], "docs/extending.md", "exec"), names)
    [test] = [each for name, each in names.items() if name.startswith("test_")]
    assert callable(test)
    test()


def test_type_checkers_read_our_annotations() -> None:
    assert all((ROOT / package / "py.typed").exists() for package in OURS)
