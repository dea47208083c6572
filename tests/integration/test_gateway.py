"""The gateway before a whole deployment, as the official client of OpenAI and plain HTTP see it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest

from schemas.answer import Answer
from schemas.query import Query
from schemas.reward import Feedback
from schemas.spent import Spent

pytestmark = pytest.mark.broker

QUESTION = "What is 2 + 3, number 0?"


class Gateway:
    """A deployment, and where its gateway listens."""

    def __init__(self, deployment: Any, url: str) -> None:
        self.deployment = deployment
        self.url = url

    def client(self, key: str = "none", **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, **more)

    def searches(self) -> int:
        """Return how many queries were ever sent."""
        return len(self.deployment.raw(self.deployment.topics.query))


@pytest.fixture(scope="module")
def gateway(deploy_gateway: Callable[..., Any]) -> Gateway:
    return Gateway(*deploy_gateway())


def chat(client: openai.OpenAI, text: str = QUESTION, model: str = "auto", **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)


def test_a_completion_says_what_ran_and_what_it_cost(gateway: Gateway) -> None:
    made = chat(gateway.client(), extra_body={"uniscale": {"reference": "5", "metadata": {"team": "a"}}})
    assert made.object == "chat.completion"
    assert "\\boxed{" in made.choices[0].message.content
    assert made.choices[0].finish_reason == "stop"
    assert made.model in ("small", "large")
    details = made.model_extra["uniscale"]
    assert made.system_fingerprint == f"{details['action']}@{details['seq']}"
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    timings = details["timings"]
    assert set(timings) == {*Spent.__struct_fields__, "rest_s", "total_s"}
    assert timings["total_s"] == pytest.approx(sum(timings.values()) - timings["total_s"], abs=0.002)
    told = httpx.get(f"{gateway.url}/v1/queries/{made.id}").json()["answer"]["timings"]
    assert told == {**timings, "rest_s": told["rest_s"], "total_s": told["total_s"]}
    (listed,) = (
        each for each in httpx.get(f"{gateway.url}/v1/queries").json()["data"] if each["id"] == made.id
    )
    assert listed["timings"] == told
    parts = details["eflops"]
    assert parts["total"] == pytest.approx(parts["prefill"] + parts["decoding"] + parts["verifier"])
    deployment = gateway.deployment
    sent = {query.query_id: query for query in deployment.read(deployment.topics.query, Query)}
    assert sent[made.id].reference == "5"
    assert sent[made.id].metadata["team"] == "a"
    assert next(
        a for a in deployment.read(deployment.topics.answer, Answer) if a.query_id == made.id
    ).text == (made.choices[0].message.content)


def test_stream_equals_the_whole_completion(gateway: Gateway) -> None:
    client, parts = gateway.client(), []
    for model in (*["large/1/1/1"] * 5, "auto", "small/4/4/2"):
        chunks = list(
            chat(client, model=model, stream=True, stream_options={"include_usage": True},
                 extra_body={"uniscale": {"progress": True}})
        )  # fmt: skip
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        query_id = chunks[0].id
        told = httpx.get(f"{gateway.url}/v1/queries/{query_id}").json()
        assert told["answer"]["text"] == text
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert {c.id for c in chunks} == {query_id}
        assert told["decision"]["action"].startswith(chunks[-1].model)
        if model == "large/1/1/1":
            parts.append(sum(bool(c.choices and c.choices[0].delta.content) for c in chunks))
    # Steps that the gateway reads at once are one chunk, which a busy machine may make of all of an answer's.
    assert max(parts) > 1


def test_n_answers_come_best_first_with_their_scores(gateway: Gateway) -> None:
    made = chat(gateway.client(), n=2, model="large")
    scores = made.model_extra["uniscale"]["scores"]
    assert 1 <= len(made.choices) <= 2
    assert len(scores) == len(made.choices)
    assert scores == sorted(scores, reverse=True)
    qp, cp = (int(part) for part in made.model_extra["uniscale"]["action"].split("/")[1:3])
    assert qp * cp >= 2


@pytest.mark.parametrize(
    ("more", "error", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "tools"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"model": "small/3/3/3"}, openai.NotFoundError, "model"),
        ({"extra_body": {"uniscale": {"objective": "none such"}}}, openai.BadRequestError, None),
        (
            {"extra_body": {"uniscale": {"allowed_models": ["none such"]}}},
            openai.BadRequestError,
            "uniscale.allowed_models",
        ),
    ],
)
def test_errors_have_the_clients_classes_and_cost_one_search(
    gateway: Gateway, more: dict[str, Any], error: type[openai.APIStatusError], param: str | None
) -> None:
    before = gateway.searches()
    with pytest.raises(error) as refused:
        chat(gateway.client(), **more)
    assert refused.value.param == param
    assert gateway.searches() - before <= (0 if param else 1)


def test_client_retries_do_not_search_an_expired_query_again(gateway: Gateway) -> None:
    before = gateway.searches()
    with pytest.raises(openai.InternalServerError) as expired:
        chat(gateway.client(max_retries=2), extra_body={"uniscale": {"timeout_s": 0.001}})
    assert expired.value.status_code == 504
    assert gateway.searches() - before == 1


def test_a_retry_joins_the_query_that_it_repeats(gateway: Gateway) -> None:
    body = {"model": "large/1/1/1", "messages": [{"role": "user", "content": f"{QUESTION} again"}]}
    url = f"{gateway.url}/v1/chat/completions"
    before = gateway.searches()
    with suppress(httpx.ReadTimeout):
        waits = {"x-stainless-read-timeout": "0.01"}
        httpx.post(url, json=body, headers=waits, timeout=httpx.Timeout(10, read=0.01))
        pytest.skip("the answer came within 10 ms")
    gateway.deployment.until(lambda: gateway.searches() == before + 1, what="the query is sent")
    again = httpx.post(url, json=body, headers={"x-stainless-retry-count": "1"})
    other = httpx.post(url, json=body, headers={"x-stainless-retry-count": "1"})
    assert again.is_success
    assert again.json()["id"] != other.json()["id"], "its first try was answered"
    assert gateway.searches() - before == 2


def test_an_idempotency_key_is_one_search(gateway: Gateway) -> None:
    body = {"model": "small/1/1/1", "messages": [{"role": "user", "content": QUESTION}]}
    url = f"{gateway.url}/v1/chat/completions"
    before = gateway.searches()
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(httpx.post, url, json=body, headers={"Idempotency-Key": "k-1"}) for _ in range(4)]
        answers = [each.result() for each in sent]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert gateway.searches() - before == 1
    other = httpx.post(url, json={**body, "user": "x"}, headers={"Idempotency-Key": "k-1"})
    assert (other.status_code, other.headers["x-should-retry"]) == (422, "false")


def test_hanging_up_cancels_the_search(gateway: Gateway) -> None:
    deployment = gateway.deployment
    body = {"model": "large/1/1/1", "messages": [{"role": "user", "content": f"{QUESTION} never mind"}]}
    before = gateway.searches()
    # The connection closes long before an answer can come.
    with suppress(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=httpx.Timeout(10, read=0.01))
    deployment.until(lambda: gateway.searches() == before + 1, what="the query is sent")
    sent = deployment.read(deployment.topics.query, Query)[-1]
    deployment.until(
        lambda: any(a.query_id == sent.query_id for a in deployment.read(deployment.topics.answer, Answer)),
        what="the search ends",
    )
    ended = next(a for a in deployment.read(deployment.topics.answer, Answer) if a.query_id == sent.query_id)
    # A search of one step may have ended first.
    assert ended.status in ("cancelled", "ok")


def test_feedback_reaches_the_topic_once(gateway: Gateway) -> None:
    made = chat(gateway.client())
    url = f"{gateway.url}/v1/feedback"
    first = httpx.post(url, json={"id": made.id, "value": True, "comment": "right"}).json()
    again = httpx.post(url, json={"id": made.id, "value": False}).json()
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    deployment = gateway.deployment
    told = [f for f in deployment.read(deployment.topics.feedback, Feedback) if f.query_id == made.id]
    assert [(f.correct, f.metadata) for f in told] == [(True, {"comment": "right"})]


def test_wrong_keys_and_limits(gateway: Gateway) -> None:
    """From here on the gateway serves nobody without a key, so that this test is the file's last."""
    key = gateway.deployment.first_key(gateway.url, "slow", per_minute=1)
    with pytest.raises(openai.AuthenticationError):
        chat(gateway.client(f"{key}x"))
    slow = gateway.client(key, max_retries=0)
    chat(slow)
    with pytest.raises(openai.RateLimitError) as limited:
        chat(slow)
    assert int(limited.value.response.headers["retry-after"]) > 0
