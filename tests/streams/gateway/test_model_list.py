"""`GET /v1/models` under the names of other gateways, and grades of judges over HTTP."""

from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from schemas.reward import Feedback
from tests.streams.gateway.test_passed_through import CATALOGUE, entry
from tests.streams.test_chat_models import start  # noqa: F401  # a fixture
from tests.support.gateway_deployment import ASK, PLAIN, Deploy, refused
from tests.support.upstream import Upstream


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.close()


def test_models_say_their_context_prices_and_parameters(
    start: Deploy,  # noqa: F811
    upstream: Upstream,
) -> None:
    plain = entry("plain", upstream, [], sampling=False)
    able = entry("able", upstream, ["tools", "json"], context_tokens=65_536, n=[1, 4])
    able["price"] = {"input": 0.15, "cached_input": 0.075, "output": 0.6}
    site = start(plain, able, content=CATALOGUE)
    with site.http() as client:
        found = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
        assert client.get("/v1/models/able/4/1/1").json() == found["able/4/1/1"]
    always = ["max_tokens", "stop", "seed"]
    assert found["plain"]["supported_parameters"] == always
    assert found["plain"]["pricing"] == {"prompt": "0.000002", "completion": "0.000008"}
    for name in ("able", "able/1/1/1", "able/4/1/1"):
        assert found[name]["context_length"] == 65_536
        assert found[name]["pricing"] == {
            "prompt": "0.00000015",
            "completion": "0.0000006",
            "input_cache_read": "0.000000075",
        }
        assert set(found[name]["supported_parameters"]) == {
            *always, "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias",
            "tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs",
        }  # fmt: skip
    assert found["auto"]["context_length"] == 65_536
    assert found["auto"]["pricing"] is None
    assert "tools" in found["auto"]["supported_parameters"]


def known(client: httpx.Client) -> bool:
    """Return whether the gateway knows a client's key."""
    return client.get("/v1/models").status_code == 200


def test_grades_of_a_judge_need_the_scope_teach(deploy: Deploy) -> None:
    site = deploy(feedback_wait_s=60.0)
    shop = site.key("shop", scopes=("ask", "feedback", "read"))
    lab = site.key("lab", scopes=("ask", "feedback", "read", "teach"))
    for key, status in ((shop, 403), (lab, 200)):
        with site.http(key) as client:
            site.until(partial(known, client))
            made = client.post(ASK, json=PLAIN).json()["id"]
            told = {"id": made, "value": 0.5, "graded_by": "judge"}
            assert client.post("/v1/feedback", json=told).status_code == status
            if status == 403:
                assert client.post("/v1/feedback", json={**told, "graded_by": "person"}).status_code == 200
            refused(client.post("/v1/feedback", json={**told, "graded_by": "me"}), 400, "graded_by")
    found = site.read(site.topics.feedback, Feedback)
    assert {each.source: each.graded_by for each in found} == {"shop": "person", "lab": "judge"}
