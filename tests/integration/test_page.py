"""The page in a real browser: every view, a question asked and answered, feedback, login, no error in the console.

Needs Chromium and `requirements/page.txt` (`make test-page` installs the latter); skips without them.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from streams.local.broker import free_port
from tests.support.chromium import NEEDS_CHROMIUM, accessible, chromium

pytestmark = [pytest.mark.broker, NEEDS_CHROMIUM]
VIEWS = {
    "overview": ".tile",
    "ask": "#question",
    "inspect": "table a",
    "failures": "h3:has-text('Records that could not be handled')",
}


@pytest.fixture(scope="module")
def site(deploy_gateway: Callable[..., tuple[Any, str]]) -> tuple[Any, str]:
    return deploy_gateway(decider_port=free_port())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(params=[(1280, "light"), (360, "dark")], ids=["wide", "narrow"])
def page(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    width, scheme = request.param
    opened = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    errors: list[str] = []
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert errors == []


def test_a_question_is_asked_answered_and_judged(site: tuple[Any, str], page: Any) -> None:
    _, url = site
    page.goto(f"{url}/#ask")
    page.fill("#question", "What is 4 + 5, number 2?")
    page.select_option("#model", "large")
    page.click("button.main")
    page.wait_for_selector("h3:has-text('Why this configuration')", timeout=60_000)
    assert "\\boxed{" in page.inner_text("pre")
    assert page.locator(".tree circle").count() > 1
    page.click("button:has-text('Wrong')")
    page.wait_for_selector("[role=status]:has-text('Thank you. The policy learns from it.')")
    page.goto(f"{url}/#inspect")
    page.click("table a >> nth=0")
    page.wait_for_selector("h3:has-text('Why this configuration')")
    page.wait_for_selector("h3:has-text('Price')")
    frame, tree = (page.locator(name).bounding_box() for name in (".tree", ".tree svg"))
    assert tree["x"] >= frame["x"]
    assert tree["x"] + tree["width"] <= frame["x"] + frame["width"] + 1


def test_the_slider_shows_what_would_run_and_why(site: tuple[Any, str], page: Any) -> None:
    deployment, url = site
    before = len(deployment.raw(deployment.topics.query))
    page.goto(f"{url}/#ask")
    page.wait_for_selector("#preview:has-text('Type a question')")
    page.fill("#question", "What is 4 + 5, number 2?")
    page.wait_for_selector("#preview b")
    page.fill("#spend", "100")
    page.select_option(
        "#model", "small/1/1/1" if page.locator("option[value='small/1/1/1']").count() else "small"
    )
    page.wait_for_selector("#preview b:has-text('small/')")
    accessible(page)
    assert len(deployment.raw(deployment.topics.query)) == before
    page.select_option("#model", "auto")
    page.wait_for_selector(".preview tbody button")
    asked = str(page.get_attribute(".preview tbody button >> nth=0", "aria-label")).removeprefix("Ask ")
    page.click(".preview tbody button >> nth=0")
    page.wait_for_selector(f"article h2:has-text('Answer of {asked}')", timeout=60_000)
    page.wait_for_selector("article h3:has-text('Why this configuration')", timeout=60_000)
    page.click("button.main")
    page.wait_for_selector("article >> nth=1", timeout=60_000)


def test_filters_hold_in_every_view(site: tuple[Any, str], page: Any) -> None:
    _, url = site
    for model in ("large", "small"):  # with one model alone there is nothing to choose
        asked = {"model": model, "messages": [{"role": "user", "content": "What is 4 + 5, number 2?"}]}
        httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60.0).raise_for_status()
    page.goto(url)
    page.wait_for_selector(".tile")
    page.select_option("select[aria-label=Model]", "large")
    page.wait_for_selector("tfoot td:has-text('(100 %)')")
    page.click("nav a[href='#inspect']")
    page.wait_for_selector("#query-id")  # Overview has cells with the model's name, too
    page.wait_for_selector("tbody td:has-text('large/')")
    assert page.input_value("select[aria-label=Model]") == "large"
    assert page.locator("tbody td:nth-child(3):not(:has-text('large/'))").count() == 0
    page.focus("select[aria-label=Time]")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("select[aria-label=Time] option[value='900']:checked", state="attached")


def test_a_dead_letter_is_sent_again_after_a_question(site: tuple[Any, str], page: Any) -> None:
    deployment, url = site
    topic = deployment.topics.query
    known = {each["origin"] for each in httpx.get(f"{url}/v1/dead-letters").json()["data"]}
    deployment.put(topic, b"bad", b"no query at all")

    def fresh() -> list[dict[str, Any]]:
        found = httpx.get(f"{url}/v1/dead-letters").json()["data"]
        return [each for each in found if each["origin"] not in known]

    deployment.until(lambda: bool(fresh()), what="the dead letter")
    (letter,) = fresh()
    assert letter["retried"] is False
    sent = len(deployment.raw(topic))
    page.goto(f"{url}/#failures")
    button = page.locator(f"button[aria-label='Retry {letter['origin']}']")
    button.click()
    page.wait_for_selector("dialog[open]")
    accessible(page)
    page.click("dialog button:has-text('Cancel')")
    page.wait_for_selector("dialog", state="detached")
    assert len(deployment.raw(topic)) == sent
    button.click()
    page.click("dialog button:has-text('Send again')")
    page.wait_for_selector("[role=status]:has-text('is sent again')", timeout=30_000)
    deployment.until(lambda: len(deployment.raw(topic)) == sent + 1, what="the record is sent again")
    told = {"origin": letter["origin"]}
    assert httpx.post(f"{url}/v1/dead-letters/retry", json=told).json()["duplicate"] is True
    assert httpx.post(f"{url}/v1/dead-letters/retry", json={"origin": "none/0/1"}).status_code == 404
    assert httpx.post(f"{url}/v1/dead-letters/retry", json={}).status_code == 400
    assert len(deployment.raw(topic)) == sent + 1
    deployment.until(lambda: len(fresh()) == 2, what="its cause stands, so it comes back")


def test_what_people_and_models_write_is_never_markup(site: tuple[Any, str], page: Any) -> None:
    _, url = site
    script = "<img src=x onerror=\"document.title='owned'\">"
    body = {"model": "small/1/1/1", "messages": [{"role": "user", "content": script}]}
    made = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    page.goto(f"{url}/#inspect/{made['id']}")
    page.wait_for_selector("h3:has-text('Answer')")
    said = page.inner_text("main")
    assert "was chosen because the request asked for it" in said
    assert "null" not in said
    page.goto(f"{url}/#overview")
    page.wait_for_selector(f"text={json.dumps(script)[1:20]}")
    assert page.title() == "UniScale-Streams"
    assert page.locator("main img").count() == 0


def test_every_view_is_accessible(site: tuple[Any, str], page: Any) -> None:
    _, url = site
    for view, sign in VIEWS.items():
        page.goto(f"{url}/#{view}")
        page.wait_for_selector(sign)
        accessible(page)


def test_a_key_logs_in_and_out(site: tuple[Any, str], page: Any) -> None:
    """Last in this file: from here on the deployment has keys."""
    deployment, url = site
    key = deployment.first_key(url, "boss", scopes=("ask", "feedback", "read", "admin"))
    page.goto(url)
    page.fill("#key", key)
    page.click("button.main")
    page.wait_for_selector(".tile")
    assert page.evaluate("document.cookie") == ""
    page.click("#logout")
    page.wait_for_selector("#key")
    time.sleep(0.1)
