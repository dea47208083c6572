"""The page says what became of each attempt at a query whose models fail, in Inspect and in Failures.

Needs Chromium and `requirements/page.txt` (`make test-page` installs the latter); skips without them.
"""

from typing import Any

from tests.streams.gateway.test_passed_through import CATALOGUE, entry
from tests.streams.test_chat_models import start  # noqa: F401  # a fixture
from tests.support.chromium import NEEDS_CHROMIUM, accessible, chromium
from tests.support.gateway_deployment import ASK, PLAIN, Deploy
from tests.support.upstream import Upstream

pytestmark = NEEDS_CHROMIUM
BROKEN: tuple[int, dict[str, Any], dict[str, str]] = (500, {"error": {"message": "out of memory"}}, {})


def test_the_page_shows_attempts_and_what_failed(start: Deploy) -> None:  # noqa: F811
    first, second = Upstream(), Upstream()
    entries = entry("hosted", first, []), entry("other", second, [])
    site = start(*entries, content=CATALOGUE, engine_attempts=1, attempts=2)
    with site.http() as client, chromium() as browser:
        assert client.post(ASK, json=PLAIN).status_code == 200
        first.spoilt += [BROKEN] * 9
        answered = client.post(ASK, json=PLAIN).json()
        assert answered["uniscale"]["attempts"] == 2
        second.spoilt += [BROKEN] * 9
        assert client.post(ASK, json=PLAIN).status_code == 502
        page = browser.new_page()
        page.goto(f"{site.url}/#inspect/{answered['id']}")
        page.wait_for_selector("h3:has-text('Attempts')")
        rows = page.locator("[aria-label=Attempts] tbody tr").all_inner_texts()
        assert [row.split("\t")[:2] for row in rows] == [["1", "hosted/1/1/1"], ["2", "other/1/1/1"]]
        assert rows[1].split("\t")[2] == "answered"
        assert page.locator(".tree").count() == 0
        accessible(page)
        page.goto(f"{site.url}/#overview")
        page.wait_for_selector("section:has-text('1 failed, of 3 queries.')")
        page.click("a:has-text('All failures')")
        page.wait_for_selector("td:has-text('the search failed')")
        accessible(page)
    for each in (first, second):
        each.close()
