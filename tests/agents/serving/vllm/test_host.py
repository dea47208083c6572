"""The engine host against plain transformers, many callers at once, and everything that can go wrong."""

import asyncio
import threading
import time
from typing import Any

import pytest

from agents.serving.errors import (
    EngineDiedError,
    EngineEnvironmentError,
    EngineStartError,
    HostClosedError,
    RequestRefusedError,
    UnknownEngineError,
)
from agents.serving.prompts import ChatPrompts
from agents.serving.vllm_host import EngineHost
from agents.serving.vllm_requests import Generation, Pooling
from agents.serving.vllm_settings import HostedModel

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

QUESTION = [("user", "Tom has 12 apples and buys 7 more. How many has he?")]


@pytest.fixture(scope="module")
def prompts(micro):
    return ChatPrompts.load(micro.path("micro-a"))


@pytest.fixture(scope="module")
def prompt(prompts):
    return prompts.prompt(QUESTION)


def drafts(prompt, seeds, **fields):
    usual: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "stop": ("\n\n",)}
    return [Generation(prompt_token_ids=prompt, seed=seed, **(usual | fields)) for seed in seeds]


def test_a_step_that_does_not_end_is_seen_from_outside(host, prompt) -> None:
    hanging, release = threading.Event(), threading.Event()

    def hang(loop: Any) -> None:
        engine = loop.engines["micro-a"].engine
        step = engine.step

        def step_late() -> Any:
            engine.step = step
            hanging.set()
            release.wait(60.0)
            return step()

        engine.step = step_late

    assert host.hung_s == 0.0
    host._inbox.put(hang)
    asked = host.submit("micro-a", drafts(prompt, [0]))
    assert hanging.wait(60.0)
    began = host.hung_s
    time.sleep(0.05)
    assert host.hung_s > began
    release.set()
    assert len(asked.result(60.0)) == 1
    assert host.hung_s == 0.0


@pytest.mark.parametrize("model", ["micro-a", "micro-b"])
def test_greedy_tokens_are_those_of_transformers(host, micro, prompt, model) -> None:
    asked = drafts(prompt, [0], temperature=0.0, stop=(), max_tokens=40)
    [completion] = asyncio.run(host.run(model, asked))
    assert list(completion.token_ids) == micro.greedy(model, prompt, 40)


def test_a_draft_depends_on_its_seed_and_not_on_its_batch(host, prompt) -> None:
    async def both():
        together = await host.run("micro-a", drafts(prompt, range(48)))
        alone = [(await host.run("micro-a", drafts(prompt, [seed])))[0] for seed in range(6)]
        return together, alone

    together, alone = asyncio.run(both())
    assert [draft.token_ids for draft in alone] == [draft.token_ids for draft in together[:6]]
    assert len({draft.token_ids for draft in together}) > 40


def test_stop_string_is_kept_and_reported(host, prompt, prompts) -> None:
    completions = asyncio.run(host.run("micro-a", drafts(prompt, range(200), max_tokens=60)))
    stopped = [each for each in completions if each.stop == "\n\n"]
    ended = [each for each in completions if each.finish == "stop" and each.stop is None]
    cut = [each for each in completions if each.finish == "length"]
    assert len(stopped) > 5
    assert len(ended) > 5
    assert len(cut) > 5
    assert len(stopped) + len(ended) + len(cut) == 200
    assert all(each.text.endswith("\n\n") and each.text.count("\n\n") == 1 for each in stopped)
    assert all(each.token_ids[-1] == prompts.token_id("<|end|>") for each in ended)
    assert all(len(each.token_ids) == 60 for each in cut)


def test_many_callers_share_the_engines_and_get_their_own(host, prompt) -> None:
    async def caller(number: int):
        model = "micro-a" if number % 2 else "micro-b"
        return await host.run(model, drafts(prompt, [number, number + 1000]))

    async def all_callers():
        at_once = await asyncio.gather(*(caller(number) for number in range(40)))
        return at_once, [await caller(number) for number in (0, 1, 38, 39)]

    at_once, again = asyncio.run(all_callers())
    same = [[draft.token_ids for draft in at_once[number]] for number in (0, 1, 38, 39)]
    assert [[draft.token_ids for draft in pair] for pair in again] == same


def test_seeded_prompts_beyond_one_step_are_all_answered(host, prompt) -> None:
    """On a CPU vLLM dies when a seeded prompt is cut over two steps: none may be."""
    long = (prompt * 40)[:200]

    async def at_once():
        return await host.run("micro-a", [drafts([*long[:-1], 40 + k], [k])[0] for k in range(60)])

    assert len(asyncio.run(at_once())) == 60


def test_threads_without_an_event_loop_wait_on_futures(host, prompt) -> None:
    found = {}

    def ask(seed: int) -> None:
        found[seed] = host.submit("micro-a", drafts(prompt, [seed])).result(60)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 2, 3]


def test_equal_prefixes_are_read_from_the_cache(host, prompt) -> None:
    async def twice():
        await host.run("micro-a", drafts(prompt, [1]))
        return await host.run("micro-a", drafts(prompt, [2]))

    [completion] = asyncio.run(twice())
    assert completion.prompt_tokens == len(prompt)
    assert completion.cached_tokens >= 32


def test_a_cancelled_caller_frees_its_place(host, prompt) -> None:
    statistics = host.engines["micro-b"]
    aborted, steps = statistics.aborted, statistics.steps

    async def cancel():
        long = drafts(prompt, range(8), stop=(), max_tokens=150)
        task = asyncio.create_task(host.run("micro-b", long))
        while statistics.steps == steps:  # noqa: ASYNC110 - what is awaited happens in another thread
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The engine is free for others, and is asked after the abort: the queue keeps its order.
        return await host.run("micro-b", drafts(prompt, [1]))

    assert len(asyncio.run(cancel())) == 1
    assert statistics.aborted > aborted


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt_token_ids": [5] * 400}, "longer than the maximum model length"),
        ({"prompt_token_ids": []}, "cannot be empty"),
        ({"prompt_token_ids": [9_999]}, "out of vocabulary"),
        ({"seed": -1}, "seed: -1 is outside"),
        ({"seed": 2**63}, "is outside 0 <= seed"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"top_p": 0.0}, "top_p must be in"),
    ],
)
def test_a_refused_request_fails_its_own_call_alone(host, prompt, fields, said) -> None:
    async def one_bad_among_good():
        bad = Generation(**({"prompt_token_ids": prompt, "seed": 1, "max_tokens": 8} | fields))
        good = drafts(prompt, [1, 2])
        return await asyncio.gather(
            host.run("micro-a", good), host.run("micro-a", [*good, bad]), return_exceptions=True
        )

    fine, refused = asyncio.run(one_bad_among_good())
    assert len(fine) == 2
    assert isinstance(refused, RequestRefusedError)
    assert said in str(refused)
    assert not refused.retryable


def test_an_engine_that_is_not_there_is_named(host, prompt) -> None:
    with pytest.raises(UnknownEngineError, match="nobody: not hosted here; hosted are micro-a, micro-b"):
        asyncio.run(host.run("nobody", drafts(prompt, [1])))
    with pytest.raises(RequestRefusedError, match="does not support generation"):
        asyncio.run(host.run("micro-prm", drafts(prompt, [1])))
    with pytest.raises(RequestRefusedError, match="does not support pooling"):
        asyncio.run(host.run("micro-a", [Pooling(prompt_token_ids=prompt)]))


def test_nothing_asked_is_nothing_returned(host) -> None:
    assert asyncio.run(host.run("micro-a", [])) == []


def test_an_idle_host_uses_no_processor(host) -> None:
    began = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - began < 0.1


def test_engine_death_reaches_its_waiters_alone(host, micro, prompt) -> None:
    doomed = HostedModel(name="doomed", path=micro.path("micro-a"), context_tokens=256)

    async def sabotage():
        assert await asyncio.wrap_future(host.load(doomed)) == 256
        long = [host.submit("doomed", drafts(prompt, [seed], stop=(), max_tokens=150)) for seed in range(3)]
        other = host.submit("micro-b", drafts(prompt, range(3)))
        # Tear the heart out of the real engine: its next step fails as a crash inside vLLM would.
        host._inbox.put(lambda loop: setattr(loop.engines["doomed"].engine.engine_core, "engine_core", None))
        failed = await asyncio.gather(*map(asyncio.wrap_future, long), return_exceptions=True)
        late = await asyncio.gather(host.run("doomed", drafts(prompt, [1])), return_exceptions=True)
        return failed, late, await asyncio.wrap_future(other)

    failed, late, other = asyncio.run(sabotage())
    assert {type(error) for error in [*failed, *late]} == {EngineDiedError}
    assert len({str(error) for error in failed}) == 1
    assert failed[0].fatal
    assert "restart the process" in str(failed[0])
    assert len(other) == 3
    asyncio.run(_unload(host, "doomed"))
    assert "doomed" not in host.context_tokens


async def _unload(host, name: str) -> None:
    await asyncio.wrap_future(host.unload(name))


def test_a_model_that_cannot_be_loaded_is_named_and_harms_nobody(host, prompt, tmp_path) -> None:
    with pytest.raises(EngineStartError, match=f"ghost: vllm could not load {tmp_path}"):
        host.load(HostedModel(name="ghost", path=str(tmp_path))).result(60)
    with pytest.raises(EngineStartError, match="micro-a: already hosted"):
        host.load(HostedModel(name="micro-a", path=str(tmp_path))).result(60)
    with pytest.raises(UnknownEngineError, match="ghost: not hosted"):
        host.unload("ghost").result(60)
    assert len(asyncio.run(host.run("micro-a", drafts(prompt, [1])))) == 1


def test_a_process_has_one_host(host) -> None:
    second = EngineHost()
    with pytest.raises(EngineEnvironmentError, match="has an engine host already"):
        second.start()
    with pytest.raises(HostClosedError, match="not started"):
        second.submit("x", drafts([1], [1])).result(1)


def test_closing_answers_everybody_and_a_new_host_can_follow(host, host_keeper, prompt) -> None:
    waiting = host.submit("micro-a", drafts(prompt, range(4), stop=(), max_tokens=180))
    host.close()
    with pytest.raises(HostClosedError, match="closed while a request was in flight"):
        waiting.result(10)
    with pytest.raises(HostClosedError, match="is closed; start a new one"):
        host.submit("micro-a", drafts(prompt, [1])).result(1)
    host.close()
    assert len(asyncio.run(host_keeper.living().run("micro-a", drafts(prompt, [1])))) == 1
