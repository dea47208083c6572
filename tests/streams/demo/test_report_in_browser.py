"""The report in a real browser, light and dark, wide and narrow: nothing overflows, and axe finds nothing.

Needs Chromium and `requirements/page.txt` (`make test-page` installs the latter); skips without them.
"""

from pathlib import Path

import pytest

from tests.support.chromium import NEEDS_CHROMIUM, accessible, chromium
from tests.support.demo_runs import report_of

pytestmark = [pytest.mark.seconds, NEEDS_CHROMIUM]


def test_the_report_fits_and_can_be_read_by_all(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(report_of(40, 0.5, 20.0), encoding="utf-8")
    with chromium() as browser:
        for width in (1100, 360):
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.goto(f"file://{tmp_path}/report.html")
                assert page.locator("figure").count() == 4
                assert page.evaluate("document.documentElement.scrollWidth") == width
                accessible(page)
