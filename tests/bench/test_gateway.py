"""The client of the gateway's benchmark keeps its connections busy and hides no error; figures are medians."""

import asyncio

import pytest
from aiohttp import web

from bench.gateway import compared, summary
from bench.load import ChatLoad, LoadFigures, measure

# So long that some request ends within it, however busy the machine is.
SECONDS = 2.0
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "7"}}]}


class Endpoint:
    """A chat endpoint that takes a while, fails every seventh request, and answers none before all connections ask."""

    def __init__(self, wrong_every: int) -> None:
        self.wrong_every = wrong_every
        self.asked: list[str] = []
        self.open = self.most_open = 0
        self.expected = 0
        self.all_ask = asyncio.Event()

    async def chat(self, request: web.Request) -> web.Response:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        body = await request.json()
        self.asked.append(body["messages"][0]["content"])
        assert body["model"] == "m"
        wrong = self.wrong_every and len(self.asked) % self.wrong_every == 0
        if self.open == self.expected:
            self.all_ask.set()
        await self.all_ask.wait()
        await asyncio.sleep(0.02)
        self.open -= 1
        return web.json_response(ANSWER, status=503 if wrong else 200)


async def loaded(endpoint: Endpoint, connections: int) -> LoadFigures:
    endpoint.expected = connections
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        url = f"http://127.0.0.1:{port}/v1"
        return await measure(
            ChatLoad(url=url, model="m", connections=connections, seconds=SECONDS, warm_s=0.2)
        )
    finally:
        await runner.cleanup()


def test_every_connection_has_one_request_in_flight() -> None:
    endpoint = Endpoint(wrong_every=0)
    found = asyncio.run(loaded(endpoint, 5))
    assert endpoint.most_open == 5
    assert found.errors == {}
    assert found.sent == len(endpoint.asked) == len(set(endpoint.asked))
    assert 0 < found.requests < found.sent
    assert found.requests_per_s == pytest.approx(found.requests / SECONDS)
    assert found.p50_ms is not None
    assert found.p99_ms is not None
    assert 20 <= found.p50_ms <= found.p99_ms


def test_errors_are_counted() -> None:
    endpoint = Endpoint(wrong_every=7)
    found = asyncio.run(loaded(endpoint, 3))
    assert found.errors == {"status 503": len(endpoint.asked) // 7}


def run(requests_per_s: float, p50_ms: float | None = 10.0) -> LoadFigures:
    return LoadFigures(1, requests_per_s, p50_ms, p50_ms, 1, {})


def test_figures_are_medians_and_shares_say_what_is_reached() -> None:
    found = {
        "ours": {"4": summary([run(60, 90), run(40, 100), run(50, 95)]), "32": summary([run(90, None)])},
        "litellm": {"4": summary([run(80)]), "32": summary([run(200)])},
    }
    assert found["ours"]["4"]["p50_ms"] == 95
    assert found["ours"]["4"]["runs"] == [60, 40, 50]
    assert compared(found) == {
        "ours_share": {"4": 0.625, "32": 0.45}, "ours_share_reached": False, "ours_p50_reached": True,
    }  # fmt: skip
    found["litellm"]["32"] = summary([run(0, None)])
    assert compared(found)["ours_share_reached"] is None
    assert compared({"ours": found["ours"]}) == {"ours_p50_reached": True}
