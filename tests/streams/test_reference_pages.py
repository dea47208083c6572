"""docs/commands.md, docs/metrics.md and docs/openapi.json say what the code has: they are written from it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from streams.metrics import Metrics
from tests.support import commands_page, metrics_page, openapi

PAGES = {
    Path("docs/commands.md"): commands_page.page,
    Path("docs/metrics.md"): metrics_page.page,
    Path("docs/openapi.json"): openapi.page,
}


@pytest.mark.parametrize(("path", "page"), PAGES.items(), ids=[path.stem for path in PAGES])
def test_a_page_written_from_the_code_is_as_the_code_is(path: Path, page: Callable[[], str]) -> None:
    text = page()
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, (
        f"WRITE_GOLDEN=1 python -m pytest tests/streams/test_reference_pages.py writes {path} again"
    )


def test_every_command_has_a_section_with_all_its_options() -> None:
    text = commands_page.page()
    sections = dict(re.findall(r"^## ([a-z -]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for name, command in commands_page.commands():
        options = {option for each in command.params for option in each.opts if option.startswith("-")}
        assert {option for option in options if option not in sections[name]} == set(), name


def test_every_metric_and_alert_is_in_the_page() -> None:
    text = metrics_page.page()
    rows = re.findall(r"^\| `(uniscale_\w+)` \|", text, re.MULTILINE)
    exported = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in Metrics("test").registry.collect()
    }
    assert len(rows) == len(set(rows))
    assert set(rows) == exported
    assert [alert for alert in metrics_page.alerts() if alert not in text] == []
