"""What an ordinary client of OpenAI sends, field by field, and what becomes of it (docs/chat-completions.md)."""

from typing import Any

import httpx
import openai
import pytest

from agents.serving.recorded import RecordedPath, RecordedStep, write_paths
from schemas.answer import Answer
from schemas.query import Query
from tests.support.gateway_deployment import Deploy, GatewayDeployment

LONG = {"role": "user", "content": "Tell me at length."}
WIDE, ONE = "large/4/4/2", "large/1/1/1"
STEPS = 3
STEP_TOKENS = 10


@pytest.fixture(scope="module")
def site(deploy: Deploy, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A deployment with a recorded question that has 32 different answers of 40 tokens."""
    recording = tmp_path_factory.mktemp("fields") / "recording.jsonl"
    write_paths(recording, [_path(model, path) for model in ("small", "large") for path in range(32)])
    return deploy(recorded=str(recording))


def _path(model: str, path: int) -> RecordedPath:
    score = (path * 7 % 32) / 32
    thoughts = [
        RecordedStep(text=f"Thought {at} of {path}: END.\n\n", tokens=STEP_TOKENS, score=score)
        for at in range(STEPS)
    ]
    end = RecordedStep(text=f"So \\boxed{{{path}}}", tokens=STEP_TOKENS, score=0.9, finish="eos")
    return RecordedPath(
        question=LONG["content"], model=model, path=path, prompt_tokens=9, steps=(*thoughts, end)
    )


def openai_client(site: GatewayDeployment) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{site.url}/v1", api_key="any", http_client=httpx.Client(trust_env=False))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def client(site: GatewayDeployment) -> openai.OpenAI:
    return openai_client(site)


def chat(client: openai.OpenAI, model: str = WIDE, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": model, "messages": [LONG], **more}
    return client.chat.completions.create(**asked)


def text_of(made: Any) -> str:
    return str(made.choices[0].message.content)


def answer_of(site: GatewayDeployment, made: Any) -> Answer:
    return next(a for a in site.read(site.topics.answer, Answer) if a.query_id == made.id)


def query_of(site: GatewayDeployment, made: Any) -> Query:
    return next(q for q in site.read(site.topics.query, Query) if q.query_id == made.id)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("most", [1, 7, 25])
def test_most_tokens_bound_the_answer_and_not_the_search(
    site: GatewayDeployment, client: openai.OpenAI, name: str, most: int
) -> None:
    made = chat(client, WIDE, **{name: most})
    answer, used = answer_of(site, made), made.usage
    assert (made.choices[0].finish_reason, answer.complete) == ("length", False)
    assert text_of(made)
    assert "Thought 0 of ".startswith(text_of(made)[:13])
    assert 0 < sum(answer.trace[at].tokens for at in answer.path) <= most
    assert used.completion_tokens - used.completion_tokens_details.reasoning_tokens <= most
    # 16 paths were drafted beside each other, each within the bound.
    assert used.completion_tokens >= 16 * min(most, STEP_TOKENS)
    assert made.model_extra["uniscale"]["status"] == "unfinished"


def test_a_bound_that_an_answer_keeps_changes_nothing(site: GatewayDeployment, client: openai.OpenAI) -> None:
    made = chat(client, max_tokens=4 * STEP_TOKENS)
    assert (made.choices[0].finish_reason, answer_of(site, made).complete) == ("stop", True)
    assert "\\boxed{" in text_of(made)


def test_the_budget_of_the_search_stays_one_of_the_search(
    site: GatewayDeployment, client: openai.OpenAI
) -> None:
    made = chat(client, max_tokens=25, extra_body={"uniscale": {"budget": {"tokens": 10_000}}})
    query = query_of(site, made)
    assert query.budget is not None
    assert (query.max_tokens, query.budget.tokens) == (25, 10_000)
    assert made.usage.completion_tokens > 25


def test_the_same_seed_gives_the_same_text_and_others_may_not(client: openai.OpenAI) -> None:
    assert len({text_of(chat(client, ONE, seed=7)) for _ in range(6)}) == 1
    assert len({text_of(chat(client, seed=-1)) for _ in range(3)}) == 1
    assert len({text_of(chat(client, ONE, seed=seed)) for seed in range(6)}) > 1


@pytest.mark.parametrize("stop", [":", [":"], ["nothing like it", ": END", ":"]])
@pytest.mark.parametrize("model", [WIDE, ONE])
def test_a_stop_text_ends_the_answer(client: openai.OpenAI, stop: Any, model: str) -> None:
    made = chat(client, model, stop=stop)
    assert text_of(made).startswith("Thought 0 of ")
    assert text_of(made)[len("Thought 0 of ") :].isdigit()
    assert made.choices[0].finish_reason == "stop"


def test_a_stop_text_across_two_steps_is_never_streamed(client: openai.OpenAI) -> None:
    stop = "END.\n\nThought 2"
    whole = chat(client, ONE, seed=5, stop=stop)
    chunks = list(chat(client, ONE, seed=5, stop=stop, stream=True))
    streamed = "".join(each.choices[0].delta.content or "" for each in chunks)
    assert streamed == text_of(whole)
    assert streamed.endswith(": ")
    assert "Thought 1" in streamed
    assert [each.choices[0].finish_reason for each in chunks][-1] == "stop"


IGNORED: dict[str, Any] = {
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"5": 1},
    "reasoning_effort": "low", "verbosity": "low", "parallel_tool_calls": False, "service_tier": "flex",
    "store": True, "prompt_cache_key": "a", "safety_identifier": "b",
    "prediction": {"type": "content", "content": "x"},
}  # fmt: skip


def test_what_a_search_cannot_honour_is_named(client: openai.OpenAI) -> None:
    create = client.chat.completions.with_raw_response.create
    raw = create(model=WIDE, messages=[LONG], seed=3, **IGNORED)  # type: ignore[list-item]
    made = raw.parse()
    assert text_of(made) == text_of(chat(client, seed=3))
    ignored = (made.model_extra or {})["uniscale"]["ignored"]
    assert sorted(ignored) == sorted(IGNORED)
    assert raw.headers["x-uniscale-ignored"] == ", ".join(ignored)
    plain = create(model=WIDE, messages=[LONG], temperature=1)  # type: ignore[list-item]
    assert "x-uniscale-ignored" not in plain.headers
    assert (plain.parse().model_extra or {})["uniscale"]["ignored"] == []


def test_a_stream_names_them_in_its_headers_and_its_last_chunk(client: openai.OpenAI) -> None:
    create = client.chat.completions.with_raw_response.create
    raw = create(model=WIDE, messages=[LONG], frequency_penalty=0.7, stream=True)  # type: ignore[list-item]
    assert raw.headers["x-uniscale-ignored"] == "frequency_penalty"
    assert raw.headers["x-uniscale-action"] == WIDE
    last: Any = list(raw.parse())[-1]
    assert (last.model_extra or {})["uniscale"]["ignored"] == ["frequency_penalty"]


def test_a_strict_gateway_refuses_what_it_would_ignore(deploy: Deploy) -> None:
    strict = openai_client(deploy(("gateway",), gateway_strict=True))
    for name, value in IGNORED.items():
        with pytest.raises(openai.BadRequestError, match="UNISCALE_GATEWAY_STRICT") as refused:
            chat(strict, **{name: value})
        assert refused.value.param == name


def test_who_asks_and_metadata_are_kept_with_the_query(
    site: GatewayDeployment, client: openai.OpenAI
) -> None:
    made = chat(client, user="ann", metadata={"team": "a"})
    query = query_of(site, made)
    assert (query.metadata["user"], query.metadata["team"]) == ("ann", "a")
    assert made.model_extra["uniscale"]["ignored"] == []


@pytest.mark.parametrize("more", [{"max_tokens": 5}, {"stop": ":"}])
def test_answer_cut_by_its_client_is_priced_and_not_wrong(
    site: GatewayDeployment, client: openai.OpenAI, more: dict[str, Any]
) -> None:
    # A whole number, which no path says: it is compared here, and no grader's time runs out on a busy machine.
    judged = {"uniscale": {"reference": "999", "feedback_wait_s": 600}}
    cut, kept = chat(client, extra_body=judged, **more), chat(client, extra_body=judged)
    reward, whole = site.closing(cut.id, kept.id)
    assert (reward.bounded, reward.correct, reward.kind) == (True, None, "default")
    assert reward.log_cost is not None
    assert (whole.bounded, whole.correct) == (False, 0.0)
