"""Examples in docstrings run, and print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("schemas", "agents", "streams", "experiments", "bench")
FILES = sorted(
    path
    for name in PACKAGES
    for path in (ROOT / name).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    "path",
    # The laboratory imports torch.
    [
        pytest.param(file, marks=[pytest.mark.torch] * file.is_relative_to(ROOT / "experiments"))
        for file in FILES
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_examples_run(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0, "run python -m doctest -v on it"


def test_the_example_in_the_docs_says_what_it_prints() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "usage.md"), module_relative=False)
    assert result.attempted > 3
    assert result.failed == 0, "run python -m doctest -v docs/usage.md"
