"""Chromium for tests of pages. A module that imports this skips where Playwright or axe is not installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: run `make test-page`"
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe is not installed: run `make test-page`"
)
CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Chromium and yield it."""
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def accessible(page: Any) -> None:
    """Fail on what axe finds on a page."""
    found = axe.Axe().run(page)
    assert found.response["violations"] == [], found.generate_report()
