"""OpenAI's own client asks through `client.responses`: the table of docs/responses.md, and what becomes of it."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from schemas.query import Query
from tests.support.gateway_deployment import WITHOUT_EXECUTOR, Deploy, GatewayDeployment
from tests.support.recorded import write_steps

LONG = "Tell me at length."
ONE = "large/1/1/1"
URL = "/v1/responses"
TOKENS = 10
STEPS = ["One.\n\n", "Two.\n\n", "So \\boxed{3}"]
WHOLE = "".join(STEPS)
STREAM = [
    "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    "response.output_text.delta", "response.output_text.delta", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(deploy: Deploy, tmp_path_factory: pytest.TempPathFactory) -> GatewayDeployment:
    """A deployment whose every answer is the same three steps."""
    recording = tmp_path_factory.mktemp("responses") / "recording.jsonl"
    write_steps(recording, LONG, STEPS, TOKENS)
    return deploy(recorded=str(recording))


@pytest.fixture(scope="module")
def api(site: GatewayDeployment) -> Iterator[openai.OpenAI]:
    with openai_client(site) as client:
        yield client


def openai_client(site: GatewayDeployment, key: str = "any") -> openai.OpenAI:
    http: Any = httpx.Client(trust_env=False)
    return openai.OpenAI(base_url=f"{site.url}/v1", api_key=key, http_client=http, max_retries=0)


def ask(api: openai.OpenAI, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": ONE, "input": LONG, **more}
    return api.responses.create(**asked)


def query_of(site: GatewayDeployment, response_id: str) -> Query:
    return next(q for q in site.read(site.topics.query, Query) if q.query_id == response_id)


def said(query: Query) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in query.chat]


def ignored(made: Any) -> list[str]:
    return list((made.model_extra or {})["uniscale"]["ignored"])


def test_an_answer_is_a_response_with_one_message(site: GatewayDeployment, api: openai.OpenAI) -> None:
    made = ask(api, instructions="Be brief.", max_output_tokens=500, metadata={"team": "a"})
    Response.model_validate(made.to_dict(), strict=False)
    assert (made.output_text, made.status, made.error, made.incomplete_details) == (
        WHOLE,
        "completed",
        None,
        None,
    )
    [message] = made.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert made.model == "large"
    assert (made.instructions, made.max_output_tokens, made.metadata) == ("Be brief.", 500, {"team": "a"})
    assert made.id.startswith("resp_")
    used = made.usage
    assert (used.input_tokens, used.output_tokens, used.total_tokens) == (9, 3 * TOKENS, 9 + 3 * TOKENS)
    assert (used.input_tokens_details.cached_tokens, used.input_tokens_details.cache_write_tokens) == (0, 0)
    assert used.output_tokens_details.reasoning_tokens == 0
    assert made.model_extra["uniscale"]["action"] == ONE
    query = query_of(site, made.id)
    assert said(query) == [("system", "Be brief."), ("user", LONG)]
    assert (query.max_tokens, query.pin_action, query.metadata["team"]) == (500, ONE, "a")


def test_input_items_are_the_conversation(site: GatewayDeployment, api: openai.OpenAI) -> None:
    first = ask(api)
    made = ask(
        api,
        input=[
            {"role": "developer", "content": "In words."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": LONG}]},
            *[item.to_dict() for item in first.output],
            {"role": "user", "content": "And now?"},
        ],
    )
    assert said(query_of(site, made.id)) == [
        ("system", "In words."),
        ("user", LONG),
        ("assistant", WHOLE),
        ("user", "And now?"),
    ]
    assert ignored(made) == []


def test_a_stream_sends_every_event_in_order(api: openai.OpenAI) -> None:
    events = list(ask(api, stream=True))
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event.to_dict())
    assert [event.type for event in events] == STREAM
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == STEPS
    item = next(e.item for e in events if e.type == "response.output_item.added")
    assert {e.item_id for e in events if hasattr(e, "item_id")} == {item.id}
    last = events[-1].response
    assert (last.output_text, last.output[0].id, last.usage.output_tokens) == (WHOLE, item.id, 3 * TOKENS)
    with api.responses.stream(model=ONE, input=LONG) as stream:
        assert stream.get_final_response().output_text == WHOLE


def test_a_text_cut_by_its_limit_is_incomplete(api: openai.OpenAI) -> None:
    made = ask(api, max_output_tokens=15)
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert made.output[0].status == "incomplete"
    events = list(ask(api, max_output_tokens=15, stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == made.output_text


def test_a_response_can_be_read_again(site: GatewayDeployment, api: openai.OpenAI) -> None:
    made = ask(api, instructions="Be brief.")
    again = api.responses.retrieve(made.id)
    assert (again.output_text, again.status, again.instructions) == (WHOLE, "completed", "Be brief.")
    assert again.usage == made.usage
    assert again.created_at == made.created_at
    streamed = list(ask(api, stream=True))[-1].response
    assert api.responses.retrieve(streamed.id).output == streamed.output
    with site.http() as http:
        assert http.get(f"/v1/queries/{made.id}").json()["answer"]["text"] == WHOLE
        assert http.get(f"{URL}/{made.id}", params={"stream": "true"}).json()["error"]["param"] == "stream"
        chat = http.post(
            "/v1/chat/completions", json={"model": ONE, "messages": [{"role": "user", "content": LONG}]}
        )
        assert http.get(f"{URL}/{chat.json()['id']}").status_code == 404
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve("resp_0")


def test_a_response_goes_on_from_an_earlier_one(site: GatewayDeployment, api: openai.OpenAI) -> None:
    first = ask(api, instructions="Be brief.")
    second = ask(api, input="And then?", previous_response_id=first.id, instructions="Be long.")
    third = ask(api, input=[{"role": "user", "content": "Last?"}], previous_response_id=second.id)
    assert second.previous_response_id == first.id
    # Instructions are those of the request alone.
    assert said(query_of(site, second.id))[0] == ("system", "Be long.")
    assert said(query_of(site, third.id)) == [
        ("user", LONG),
        ("assistant", WHOLE),
        ("user", "And then?"),
        ("assistant", WHOLE),
        ("user", "Last?"),
    ]


@pytest.mark.parametrize("unknown", ["resp_0", "chatcmpl-0", "resp_" + "0" * 12 + "1" * 20])
def test_an_unknown_previous_response_is_not_found(api: openai.OpenAI, unknown: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        ask(api, previous_response_id=unknown)
    assert (refused.value.code, refused.value.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )


def test_what_is_not_stored_cannot_be_read(site: GatewayDeployment, api: openai.OpenAI) -> None:
    hidden, shown = ask(api, store=False), ask(api)
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(hidden.id)
    with pytest.raises(openai.NotFoundError):
        ask(api, previous_response_id=hidden.id)
    with site.http() as http:
        for path in (f"/v1/queries/{hidden.id}", f"/v1/queries/{hidden.id}/events"):
            assert http.get(path).status_code == 404
        site.until(lambda: shown.id in {q["id"] for q in http.get("/v1/queries").json()["data"]})
        assert hidden.id not in http.get("/v1/queries", params={"limit": 1000}).text
        # It still counts, and can be judged by who has its id.
        assert http.post("/v1/feedback", json={"id": hidden.id, "value": True}).status_code == 200
        counted = http.get("/v1/now").json()
    assert counted["in_flight"] == 0


def test_another_tenant_s_response_is_unknown(deploy: Deploy) -> None:
    keyed = deploy()
    mine, other = openai_client(keyed, keyed.key("acme")), openai_client(keyed, keyed.key("other"))
    asks = openai_client(keyed, keyed.key("asks", tenant="acme", scopes=("ask",)))
    made = ask(mine, input="What is 2 + 3, number 0?")
    for unauthorised in (
        lambda: other.responses.retrieve(made.id),
        lambda: ask(other, previous_response_id=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            unauthorised()
    # A key that may only ask goes on from its own responses, not from those of others.
    own = ask(asks, input="What is 2 + 3, number 0?")
    assert ask(asks, input="And?", previous_response_id=own.id).status == "completed"
    with pytest.raises(openai.PermissionDeniedError):
        ask(asks, previous_response_id=made.id)


def test_no_response_follows_one_in_progress(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR)
    client = openai_client(held)
    stream = ask(client, input="What is 2 + 3, number 0?", stream=True)
    made = next(iter(stream)).response
    assert client.responses.retrieve(made.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, previous_response_id=made.id)
    assert refused.value.param == "previous_response_id"
    stream.close()


def test_a_failed_response_says_why(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR)
    client = openai_client(held)
    asked = {"input": "What is 2 + 3, number 0?", "extra_body": {"uniscale": {"timeout_s": 0.5}}}
    events = list(ask(client, **asked, stream=True))
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    failed = events[-1].response
    assert (failed.status, failed.error.code, failed.output) == ("failed", "server_error", [])
    assert client.responses.retrieve(failed.id).status == "failed"
    with pytest.raises(openai.InternalServerError):
        ask(client, **asked)


IGNORED: dict[str, Any] = {
    "max_tool_calls": 3, "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"},
    "include": ["reasoning.encrypted_content"], "truncation": "auto",
    "prompt_cache_key": "a", "prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h",
    "safety_identifier": "b", "service_tier": "flex", "context_management": [{"type": "compaction"}],
}  # fmt: skip
NAMES = {
    "reasoning": ["reasoning.effort", "reasoning.summary"],
    "text": ["text.verbosity"],
    "include": ["include.reasoning.encrypted_content"],
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_has_no_effect_is_named(api: openai.OpenAI, name: str) -> None:
    raw: Any = api.responses.with_raw_response.create(model=ONE, input=LONG, **{name: IGNORED[name]})
    expected = sorted(NAMES.get(name, [name]))
    assert sorted(ignored(raw.parse())) == expected
    assert sorted(raw.headers["x-uniscale-ignored"].split(", ")) == expected


REFUSED: dict[str, Any] = {
    "background": True, "conversation": "conv_1", "prompt": {"id": "p"}, "moderation": {"model": "m"},
    "tools": [{"type": "web_search"}], "text": {"format": {"type": "json_object"}}, "top_logprobs": 3,
    "tool_choice": "required", "uniscale": {"progress": True}, "include": ["message.output_text.logprobs"],
    "top_k": 5, "max_output_tokens": 0, "instructions": 5, "reasoning": {"effrot": "low"},
    "stream_options": {"include_obfuscation": True}, "input": [{"type": "item_reference", "id": "x"}],
    "truncation": "\u2028",
}  # fmt: skip
FIELDS = {
    "tools": "tools[0].type",
    "text": "text.format",
    "uniscale": "uniscale.progress",
    "reasoning": "reasoning.effrot",
    "input": "input[0].type",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_answered_is_refused_by_name(site: GatewayDeployment, name: str) -> None:
    before = len(site.records(site.topics.query))
    with site.http() as http:
        answer = http.post(URL, json={"model": ONE, "input": LONG, name: REFUSED[name]})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == FIELDS.get(name, name)
    assert name in error["message"]
    assert len(site.records(site.topics.query)) == before


def test_a_value_that_no_header_can_carry_is_refused(site: GatewayDeployment) -> None:
    with site.http() as http:
        answer = http.post(URL, json={"model": ONE, "input": LONG, "include": ["\u2028"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "include[0]"), answer.text


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([], "input"),
        ("", "input"),
        ({}, "input"),
        (None, "input"),
        ([{"role": "robot", "content": "?"}], "input[0].role"),
        ([{"content": "?"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": LONG}, {"role": "user", "content": [5]}], "input[1].content[0]"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": LONG, "mood": "x"}], "input[0].mood"),
        ([{"type": "web_search_call", "id": "w"}], "input[0].type"),
        ("x" * 300_000, "input"),
    ],
)
def test_wrong_input_names_the_item(site: GatewayDeployment, items: Any, param: str) -> None:
    with site.http() as http:
        answer = http.post(URL, json={"model": ONE, "instructions": "Be brief.", "input": items})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_strict_gateway_refuses_what_it_would_ignore(deploy: Deploy) -> None:
    strict = deploy(("gateway",), gateway_strict=True)
    with strict.http() as http:
        for name, value in IGNORED.items():
            answer = http.post(URL, json={"model": ONE, "input": LONG, name: value})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] in NAMES.get(name, [name])


def test_an_idempotency_key_sends_one_query(site: GatewayDeployment) -> None:
    headers = {"idempotency-key": "once"}
    with site.http() as http:
        made = [
            http.post(URL, json={"model": ONE, "input": LONG}, headers=headers).json()["id"] for _ in range(2)
        ]
        other = http.post(URL, json={"model": ONE, "input": "?"}, headers=headers)
    assert made[0] == made[1]
    assert made[0].startswith("resp_")
    assert other.status_code == 422
