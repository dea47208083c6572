"""Anthropic's own client for Python, where it is installed."""

from typing import Any

import pytest

from tests.support.gateway_deployment import QUESTION, GatewayDeployment

anthropic = pytest.importorskip("anthropic")
PLAIN: dict[str, Any] = {"model": "large/1/1/1", "max_tokens": 100, "messages": QUESTION}


@pytest.fixture(scope="module")
def client(site: GatewayDeployment) -> Any:
    return anthropic.Anthropic(base_url=site.url, api_key="any", max_retries=0)


def test_a_message_and_its_stream_say_the_same(client: Any) -> None:
    made = client.messages.create(**PLAIN)
    with client.messages.stream(**PLAIN) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text
    assert (made.stop_reason, final.stop_reason) == ("end_turn", "end_turn")
    assert final.usage.output_tokens > 0
    assert final.usage.input_tokens == made.usage.input_tokens
    assert made._request_id.startswith("req_")
    kinds = [event.type for event in client.messages.create(**PLAIN, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_tokens_are_counted(client: Any) -> None:
    assert client.messages.count_tokens(model="auto", messages=QUESTION).input_tokens > 0


def test_errors_are_the_client_s_own(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**{**PLAIN, "model": "claude-9"})
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="top_kk"):
        client.messages.create(**PLAIN, extra_body={"top_kk": 5})
