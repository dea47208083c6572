"""The report in a real browser, light and dark, wide and narrow: nothing overflows, and axe finds nothing.

Needs Chromium and `requirements/page.txt` (`make test-page` installs the latter); skips without them.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.demo_runs import report_of

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: run `make test-page`"
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe is not installed: run `make test-page`"
)
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.seconds,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


def test_the_report_fits_and_can_be_read_by_all(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(report_of(40, 0.5, 20.0), encoding="utf-8")
    with playwright.sync_playwright() as running:
        browser: Any = running.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        for width in (1100, 360):
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.goto(f"file://{tmp_path}/report.html")
                assert page.locator("figure").count() == 4
                assert page.evaluate("document.documentElement.scrollWidth") == width
                found = axe.Axe().run(page)
                assert found.response["violations"] == [], found.generate_report()
        browser.close()
