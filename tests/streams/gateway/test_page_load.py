"""Every view of the page with 10,000 queries in the index: shown within a second, in real Chromium.

Needs Chromium and `requirements/page.txt` (`make test-page` installs the latter); skips without them. With
PAGE_IMAGES=docs/images it also keeps a screenshot of each view at two widths.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from schemas.answer import Answer
from schemas.control import ObjectiveEntry
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.objective import Weights
from schemas.query import Origin, Query
from schemas.record import decode, encode
from schemas.reward import Reward
from streams.runtime.memory_cluster import Cluster
from tests.support.chromium import NEEDS_CHROMIUM, accessible, chromium
from tests.support.gateway_deployment import Deploy

pytestmark = NEEDS_CHROMIUM

QUERIES = 10_000
MOST_S = 1.0
MOST_TRIES = 8
FAMILIES = ("algebra", "geometry", "counting", None)
SIGNS = {
    "overview": "figcaption:has-text('algebra')",
    "ask": "#preview",
    "inspect": "table a",
    "failures": "button:has-text('Retry')",
}


@pytest.fixture(scope="module")
def model(deploy: Deploy, ask: Callable[..., Query]) -> Any:
    """A whole deployment, whose answers are the patterns of the 10,000."""
    alive = deploy()
    with alive.http() as client:
        for number in range(24):
            query = ask(number)
            body = {
                "model": ("auto", "large/4/4/2", "small/2/2/1")[number % 3],
                "messages": [{"role": "user", "content": query.text}],
                "uniscale": {"reference": query.reference},
            }
            assert client.post("/v1/chat/completions", json=body).status_code == 200
    topics = alive.cluster.topics
    for _ in range(100):
        if len(alive.records(topics.reward)) >= 24:
            break
    return alive


@pytest.fixture(scope="module")
def full(deploy: Deploy, model: Any) -> Any:
    """A gateway with 10,000 queries of ten minutes in its index, control group, changes and dead letters included."""
    topics = model.cluster.topics
    decisions = sorted(
        (decode(r.value, Decision) for r in model.records(topics.decision)), key=lambda d: d.seq
    )
    answers = {r.key: decode(r.value, Answer) for r in model.records(topics.answer)}
    rewards = {
        x.query_id: x
        for r in model.records(topics.reward)
        if (x := decode(r.value, Reward)).correct is not None
    }
    urls = f"http://127.0.0.1:{model.settings.previews.port}"
    # An executor without work: its heartbeats say that the models are served.
    found = deploy(("executor", "gateway"), gateway_recent=12_000, decider_url=urls)

    def fill(cluster: Cluster) -> None:
        now_ms = cluster.broker.now_ms()
        for at in range(QUERIES):
            pattern = decisions[at % len(decisions)]
            query_id = f"q-{at:05d}"
            metadata = {"level": str(at % 5 + 1)} | ({"family": name} if (name := FAMILIES[at % 4]) else {})
            query = structs.replace(pattern.query, query_id=query_id, metadata=metadata)
            decision = structs.replace(
                pattern, query=query, seq=2 * at, cohort="control" if at % 10 == 0 else "policy", randomised=True,
                appended_ms=now_ms + 30_000 - 60 * (QUERIES - at),
            )  # fmt: skip
            answer = structs.replace(answers[pattern.query_id.encode()], query_id=query_id)
            reward = structs.replace(
                rewards[pattern.query_id], query_id=query_id, reward_id=f"{query_id}/final"
            )
            for topic, value in (
                (topics.decision, encode(decision)), (topics.answer, encode(answer)), (topics.reward, encode(reward)),
            ):  # fmt: skip
                cluster.produce(topic, query_id.encode(), value)
        for at in range(200):
            letter = DeadLetter.of(
                b"{", ValueError("not JSON: the record ends too early"), service="embedder",
                origin=Origin(topic="m.query", partition=0, offset=at),
            )  # fmt: skip
            cluster.produce(topics.dead_letter, letter.key.encode(), encode(letter))

    entry = ObjectiveEntry(name="thrift", op="set", weights=Weights(correct=0.3, score=0.2, cost=0.5))
    found.produce(topics.control, entry.key.encode(), encode(entry))
    found.call(fill, 300.0)
    with found.http() as client:
        while client.get("/health/ready").json()["queries"] < QUERIES:
            pass
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def loaded_s(browser: Any, url: str, sign: str, errors: list[str]) -> float:
    """Return the seconds from the request of a view, in a browser that has cached nothing, to its contents."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    # Noted by the page itself, once a frame: the driver's own polling would count as the page's time.
    page.add_init_script(
        f"""const look = () => {{
            const [tag, text] = {json.dumps(_parts(sign))};
            const all = [...document.querySelectorAll(tag)];
            if (all.some((each) => each.textContent.includes(text))) window.shownAt = performance.now();
            else requestAnimationFrame(look);
        }};
        requestAnimationFrame(look);"""
    )
    page.goto(url)
    page.wait_for_selector(sign)
    page.wait_for_timeout(50)
    shown = float(page.evaluate("window.shownAt"))
    context.close()
    return shown / 1000


def _parts(sign: str) -> list[str]:
    tag, _, text = sign.partition(":has-text('")
    return [tag, text.removesuffix("')")]


def test_every_view_is_shown_within_a_second(
    full: Any, browser: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[str] = []
    times = {}
    for view, sign in {**SIGNS, "inspect/q-09999": "h3:has-text('Price')"}.items():
        times[view] = [loaded_s(browser, f"{full.url}/#{view}", sign, errors)]
        while min(times[view]) >= MOST_S and len(times[view]) < MOST_TRIES:
            times[view].append(loaded_s(browser, f"{full.url}/#{view}", sign, errors))
    with capsys.disabled():
        print("\nseconds to each view, until one is below the limit:", json.dumps(times))
    assert errors == []
    # The fastest load counts: a neighbour on this machine only makes one slower.
    late = {view: s for view, s in times.items() if min(s) >= MOST_S}
    busy = os.getloadavg()[0]
    if late and busy > 2 * (os.cpu_count() or 1):
        pytest.skip(f"the machine is too busy to measure on (load {busy:.0f}): {late}")
    assert late == {}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (360, "light")])
def test_a_full_overview_is_accessible_and_as_wide_as_its_window(
    full: Any, browser: Any, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(full.url)
    page.wait_for_selector(SIGNS["overview"])
    page.wait_for_selector("figure.chart >> nth=3")
    page.click("summary")
    accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    accessible(page)
    page.close()


def test_many_viewers_do_not_compare_the_groups_anew(full: Any) -> None:
    with full.http() as client:
        first = client.get("/v1/now").json()
        assert client.get("/v1/now").json()["uplift"] == first["uplift"]
        assert client.get("/v1/now").elapsed.total_seconds() < MOST_S
    assert {each["of"] for each in first["by"]["family"]} == set(FAMILIES)
    assert [each["what"] for each in first["marks"]] == ["objective thrift set"]


@pytest.mark.skipif("PAGE_IMAGES" not in os.environ, reason="PAGE_IMAGES names no folder for screenshots")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_screenshots(
    full: Any, model: Any, browser: Any, ask: Callable[..., Query], width: int, scheme: str
) -> None:
    folder = Path(os.environ["PAGE_IMAGES"])
    with full.http() as client:
        latest = client.get("/v1/queries?limit=100").json()["data"]
        stories = [client.get(f"/v1/queries/{each['id']}").json() for each in latest]
    wide = max(
        stories, key=lambda story: max(draft["depth"] for draft in story["search"]) * len(story["search"])
    )["id"]
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for view, sign in SIGNS.items():
        address = f"{full.url}/#{view}" if view != "inspect" else f"{full.url}/#inspect/{wide}"
        page.goto(address)
        page.wait_for_selector(sign if view != "inspect" else "h3:has-text('Search')")
        if view == "ask":
            page.goto(f"{model.url}/#ask")
            page.fill("#question", str(ask(2).text))
            page.wait_for_selector("#preview b")
            page.click("button.main")
            page.wait_for_selector("article h3:has-text('Time')", timeout=30_000)
        page.wait_for_timeout(600)
        page.screenshot(path=str(folder / f"page-{view}-{width}.png"), full_page=view != "failures")
    page.close()
