"""Chat endpoints in a whole deployment, against scripted upstreams whose logs say what was asked and counted."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.catalogue.models import Model
from agents.serving.recorded import RecordedEngine, Recording
from agents.serving.registry import GroupEngines, HostingOptions, Loaded
from agents.serving.retries import Retries
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.prices import Billed
from schemas.reward import Reward
from schemas.search import SearchStep
from streams.control_follower import Control
from streams.local.broker import free_port
from streams.services import executor
from streams.settings import Settings, SettingsError
from tests.support.gateway_deployment import ASK, DEPLOYED, Deploy, GatewayDeployment
from tests.support.recorded import CATALOGUE, question, recorded_in_memory, recorded_paths
from tests.support.upstream import Upstream

SHAPE = {"parameters": 500_000, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16}


def chat(name: str, upstream: Upstream, **endpoint: Any) -> dict[str, Any]:
    """Return the entry of a chat endpoint."""
    at = {"kind": "chat", "url": f"{upstream.url}/v1", "model": "hosted", "max_output_tokens": 64, **endpoint}
    return {"name": name, "verifier": "none", "group": "mini", "architecture": SHAPE, "endpoint": at}


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deploy]:
    """Start deployments whose catalogue has chat endpoints; all other models are recorded."""
    paths = recorded_paths(12, samples=3, steps=(1, 3))
    recording = Recording(paths)
    made: list[GatewayDeployment] = []

    class Engines(GroupEngines):
        async def _started(self, model: Model) -> Loaded:
            if model.endpoint.kind == "chat":
                return await super()._started(model)
            return Loaded(RecordedEngine(recording, model.name))

    def engines(settings: Settings, base: Any) -> Engines:
        from streams.services.hosting import keys_of

        options = HostingOptions(
            keys=keys_of(settings, base), retries=Retries(attempts=settings.engine.attempts)
        )
        return Engines(options, None, asyncio.get_running_loop().time)

    def starting(
        *entries: dict[str, Any], recorded: tuple[str, ...] = (), **fields: Any
    ) -> GatewayDeployment:
        settings = settings_of(tmp_path, paths, *entries, recorded=recorded, **fields)
        made.append(GatewayDeployment(settings, DEPLOYED))
        return made[-1]

    monkeypatch.setattr(executor, "engines_of", engines)
    yield starting
    for each in made:
        each.close()


def settings_of(
    folder: Path,
    paths: Any,
    *entries: dict[str, Any],
    recorded: tuple[str, ...] = (),
    content: dict[str, Any] | None = None,
    **fields: Any,
) -> Settings:
    content = {**yaml.safe_load(CATALOGUE), **(content or {})}
    content = {name: each for name, each in content.items() if each is not None}
    content["models"] = [m for m in content["models"] if m["name"] in recorded] + list(entries)
    ports = {"gateway_port": free_port(), "decider_port": free_port()}
    few = {"policy": "contextual", "prior": "none", "heartbeat_s": 0.1}
    settings = recorded_in_memory(folder, paths, **{**ports, **few, **fields})
    (folder / "catalogue.yaml").write_text(yaml.safe_dump(content))
    return settings


def asked(deployment: GatewayDeployment, number: int, *, graded: bool = True, **body: Any) -> dict[str, Any]:
    """Ask a question through the gateway and return the response."""
    text, answer = question(number)
    said = {"model": "auto", "messages": [{"role": "user", "content": text}], **body}
    if graded:
        said["uniscale"] = {"reference": answer, **said.get("uniscale", {})}
    with deployment.http() as client:
        got = client.post(ASK, json=said)
    assert got.status_code == 200, got.text
    return dict(got.json())


def served(upstream: Upstream) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """Return what an upstream answered to clients: not the first question, nor the operator's."""
    return [(body, usage) for body, usage in upstream.log if "number" in body["messages"][-1]["content"]]


def test_answer_is_priced_by_the_tokens_the_server_counted(
    start: Deploy, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.key = "secret"
    monkeypatch.setenv("HOSTED_KEY", "secret")
    deployment = start(chat("hosted", upstream, n=[1, 4], key_env="HOSTED_KEY"))
    right = question(3)[1]
    says = iter([right, "1", right, "2"])
    upstream.says = lambda body: (
        f"It is \\boxed{{{next(says)}}}" if "number 3" in str(body) else "So \\boxed{5}"
    )
    four = asked(deployment, 3, model="hosted/4/1/1")
    one = asked(deployment, 0, model="hosted/1/1/1")
    assert four["choices"][0]["message"]["content"] == f"It is \\boxed{{{right}}}", "the most frequent answer"
    assert one["usage"]["completion_tokens"] == 2
    rewards = {each.query_id: each for each in deployment.closing(four["id"], one["id"])}
    answers = {each.query_id: each for each in deployment.read(deployment.topics.answer, Answer)}
    log = served(upstream)
    for query_id, number, count in ((four["id"], 3, 4), (one["id"], 0, 1)):
        usages = [usage for body, usage in log if f"number {number}?" in body["messages"][-1]["content"]]
        assert len(usages) == count
        answer, reward = answers[query_id], rewards[query_id]
        total = {name: sum(usage[name] for usage in usages) for name in usages[0]}
        assert answer.billed == Billed(input=total["prompt_tokens"], output=total["completion_tokens"])
        assert (answer.generated_tokens, answer.prompt_tokens) == (
            total["completion_tokens"],
            usages[0]["prompt_tokens"],
        )
        assert answer.score is None
        assert reward.correct == 1.0
        assert reward.price is not None
        assert reward.price.verifier_eflops == 0.0
        assert 0 < reward.price.prefill_eflops < reward.price.cost
    assert not deployment.read(deployment.topics.search_step, SearchStep)


def test_reasoning_effort_chooses_among_the_efforts(start: Deploy, upstream: Upstream) -> None:
    efforts = {"low": {"reasoning_effort": "low"}, "high": {"reasoning_effort": "high", "max_tokens": 48}}
    deployment = start(chat("hosted", upstream) | {"efforts": efforts})
    ids = {effort: asked(deployment, at, reasoning_effort=effort)["id"] for at, effort in enumerate(efforts)}
    sent = [(body["reasoning_effort"], body["max_tokens"]) for body, _ in served(upstream)]
    assert sent == [("low", 64), ("high", 48)]
    decisions = {each.query_id: each for each in deployment.read(deployment.topics.decision, Decision)}
    chosen = {effort: decisions[query_id].action.model for effort, query_id in ids.items()}
    assert chosen == {"low": "hosted.low", "high": "hosted.high"}
    deployment.closing(*ids.values())
    said: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "?"}]}
    with deployment.http() as client:
        for more, why in (
            ({"reasoning_effort": "minimal"}, "no model has 'minimal'; choose from high, low"),
            ({"reasoning_effort": "low", "model": "hosted.high"}, "the models asked for have no 'low'"),
        ):
            refused = client.post(ASK, json=said | more)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reasoning_effort")
            assert why in refused.json()["error"]["message"]


def test_verifier_scores_stay_out_of_correctness(start: Deploy, upstream: Upstream) -> None:
    """Two models with a verifier, two chat endpoints without; half of the traffic has no reference."""
    from agents.decider.rows import Row, decode_row

    other = Upstream(says=lambda body: "\\boxed{0}")
    deployment = start(
        chat("first", upstream),
        chat("second", other),
        recorded=("small", "large"),
        warm_up=8,
        feedback_wait_s=0.0,
    )
    # Each model has one query with a reference and one without; the others leave the choice to the policy.
    names = ("small", "large", "first", "second")
    limits: list[dict[str, Any]] = [{"models": [names[at // 2]]} if at < 8 else {} for at in range(24)]
    replies = [asked(deployment, at % 12, graded=bool(at % 2), **limits[at]) for at in range(24)]
    ids = [reply["id"] for reply in replies]
    rewards = deployment.closing(*ids)
    decisions = {each.query_id: each for each in deployment.read(deployment.topics.decision, Decision)}
    assert {decisions[each].action.model for each in ids} == {"small", "large", "first", "second"}
    assert {decisions[each].verified for each in ids} == {"some"}

    def rows() -> dict[str, Row]:
        log = deployment.call(lambda c: c.broker.changelog(c.topics.changelog("decider", "pending"), 0))
        found = (decode_row(key, value) for key, value in log.items())
        return {row.query_id: row for row in found if isinstance(row, Row)}

    deployment.until(
        lambda: all(rows()[each].stage in ("closed", "priced") for each in ids), "what is learned"
    )
    learned = rows()
    for at, (query_id, reward) in enumerate(zip(ids, rewards, strict=True)):
        row = learned[query_id]
        assert (reward.score is None) == (reward.action.model in ("first", "second"))
        if at % 2:
            assert (row.stage, row.correct, row.score) == ("closed", reward.correct, reward.correct)
        else:
            assert (row.stage, row.correct, row.entered, row.score) == ("priced", None, None, 0.0)
            assert (reward.graded_by, reward.reward) == ("", None)
    other.close()


def test_a_model_whose_key_is_wrong_is_not_asked_and_says_why(start: Deploy, upstream: Upstream) -> None:
    upstream.key = "secret"
    well = Upstream()
    deployment = start(chat("locked", upstream), chat("open", well))
    assert asked(deployment, 0)["model"].startswith("open")
    state, why = deployment.call(
        lambda c: next(iter(w for w in c.workers if w.service == "decider")).control.health()
    )["locked"]
    assert state == "loading"
    assert "HTTP 401: no such key; check its key: endpoint.key_env" in why
    assert not served(upstream)
    well.close()


def test_failures_of_an_upstream_become_answers_with_their_cause(start: Deploy, upstream: Upstream) -> None:
    deployment = start(chat("hosted", upstream, timeout_s=0.5), engine_attempts=1)
    known = {asked(deployment, 0)["id"]}
    with deployment.http() as client:
        # After a time-out the model is probed, which would take the next reply.
        for spoil, cause in ((500, ""), ("hang-up", ""), ("hang", "timeout")):
            upstream.spoilt.append((spoil, b"oops", {}) if isinstance(spoil, int) else spoil)
            said = {"model": "hosted", "messages": [{"role": "user", "content": f"number {spoil}?"}]}
            assert client.post(ASK, json=said).status_code in (502, 503, 504)
            [failed] = [
                each
                for each in deployment.read(deployment.topics.answer, Answer)
                if each.query_id not in known
            ]
            known.add(failed.query_id)
            assert (failed.status, failed.cause) == ("failed", cause), failed.error
            assert failed.fault == ("model" if cause else "infrastructure")


def test_beams_are_refused_where_no_model_has_steps(tmp_path: Path, upstream: Upstream) -> None:
    settings = settings_of(tmp_path, recorded_paths(1), chat("hosted", upstream), parallelism="1/1,4/16")
    with pytest.raises(SettingsError, match="all models of the catalogue are chat endpoints"):
        Control(settings)


def test_environment_key_goes_only_to_the_files_endpoints(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streams.services.hosting import keys_of

    monkeypatch.setenv("HOSTED_KEY", "secret")
    settings = settings_of(
        tmp_path, recorded_paths(1), chat("hosted", upstream, key_env="HOSTED_KEY"), engine_key="s"
    )
    keys = keys_of(settings, Control(settings).base)
    assert keys.of(upstream.url, "HOSTED_KEY") == "secret"
    assert keys.of("https://elsewhere.example", "HOSTED_KEY") == ""
    assert keys.of(upstream.url) == "", "nor is it sent the key of the deployment's own servers"


def test_the_reward_of_a_chat_model_reads_as_any_other(start: Deploy, upstream: Upstream) -> None:
    deployment = start(chat("hosted", upstream))
    reply = asked(deployment, 0, graded=False)
    [reward] = deployment.closing(reply["id"])
    assert isinstance(reward, Reward)
    assert (reward.kind, reward.verified, reward.unscored, reward.cost_only) == (
        "default",
        "none",
        True,
        True,
    )


SPOILT = {
    "429": (429, b"{}", {"retry-after": "30"}),
    "500": (500, b"oops", {}),
    "hang": "hang",
    "refusal": (400, b'{"error": {"message": "no"}}', {}),
    "dropped": "hang-up",
}
"""How an upstream fails: it asks to wait, has a fault, says nothing, refuses, or drops the connection."""


@pytest.mark.parametrize("at", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("how", SPOILT)
def test_no_query_fails_while_another_entry_could_answer(
    how: str, at: int, start: Deploy, upstream: Upstream
) -> None:
    other = Upstream()
    both = [upstream, other]
    deployment = start(
        chat("first", upstream, timeout_s=0.5),
        chat("second", other, timeout_s=0.5),
        engine_attempts=1,
        attempts=2,
        warm_up=50,  # so that each is chosen
    )
    [asked(deployment, number, models=["first", "second"]) for number in range(2)]
    spoilt, name = both[at], ("first", "second")[at]
    replies = []
    for number in range(2, 22):  # each is drawn with even chances
        spoilt.spoilt[:] = [SPOILT[how]] * 50
        replies.append(asked(deployment, number))
        if any(reply["uniscale"]["attempts"] == 2 for reply in replies):
            break
    retried = [reply for reply in replies if reply["uniscale"]["attempts"] == 2]
    assert retried, "no query was sent to it"
    for reply in retried:
        assert reply["model"] != name
        [before] = reply["uniscale"]["earlier"]
        assert before["action"] == f"{name}/1/1/1"
        assert before["attempt"] == 1
        # Messages of a server are for operators: they name addresses and quote replies.
        assert before["error"] == f"the attempt failed; the operator finds why under {reply['id']}"
    rewards = deployment.closing(*(reply["id"] for reply in replies))
    for reply, reward in zip(replies, rewards, strict=True):
        assert (reward.status, reward.attempt) == ("ok", reply["uniscale"]["attempts"])
        assert [each.action.model for each in reward.earlier] == [name] * (reward.attempt - 1)
    [answer] = [
        a for a in deployment.read(deployment.topics.answer, Answer) if a.query_id == retried[0]["id"]
    ]
    first, second = (
        d for d in deployment.read(deployment.topics.decision, Decision) if d.query_id == retried[0]["id"]
    )
    assert (first.attempt, second.attempt, answer.attempt, answer.seq) == (1, 2, 2, second.seq)
    assert second.excluded == (name,)
    assert second.objective == first.objective
    assert second.seed != first.seed
    assert not second.randomised
    other.close()


def test_a_stream_names_the_attempt_that_answered(start: Deploy, upstream: Upstream) -> None:
    other = Upstream()
    deployment = start(
        chat("first", upstream), chat("second", other), engine_attempts=1, attempts=2, warm_up=50
    )
    with deployment.http() as client:
        for number in range(12):
            upstream.spoilt[:] = [(500, b"oops", {})] * 50
            said = {"model": "auto", "messages": [{"role": "user", "content": question(number)[0]}]}
            with client.stream("POST", ASK, json={**said, "stream": True}) as stream:
                data = [
                    line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")
                ]
            last = json.loads(data[-1])
            if last["uniscale"]["attempts"] == 2:
                break
    assert last["uniscale"]["action"] == "second/1/1/1", "the first was never chosen"
    assert last["model"] == "second"
    assert [each["action"] for each in last["uniscale"]["earlier"]] == ["first/1/1/1"]
    other.close()


def test_query_fails_with_the_last_failure_of_its_attempts(start: Deploy, upstream: Upstream) -> None:
    other = Upstream()
    deployment = start(chat("first", upstream), chat("second", other), engine_attempts=1, attempts=2)
    with deployment.http() as client:
        for body, attempts in (({"model": "auto"}, 2), ({"model": "first/1/1/1"}, 1)):
            for each in (upstream, other):
                each.spoilt[:] = [(500, b"oops", {})] * 2
            text = f"number {attempts}?"
            said = {"messages": [{"role": "user", "content": text}], **body}
            assert client.post(ASK, json=said).status_code in (502, 503)
            found = [
                d for d in deployment.read(deployment.topics.decision, Decision) if d.query.question == text
            ]
            assert [each.attempt for each in found] == list(range(1, attempts + 1))
            query_id = found[0].query_id
            [answer] = [
                a for a in deployment.read(deployment.topics.answer, Answer) if a.query_id == query_id
            ]
            assert (answer.status, answer.attempt, answer.seq) == ("failed", attempts, found[-1].seq)
            [reward] = deployment.closing(query_id)
            assert (reward.attempt, reward.seq, len(reward.earlier)) == (attempts, answer.seq, attempts - 1)
    other.close()
