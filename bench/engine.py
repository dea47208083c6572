"""The cost of search on top of vLLM: tokens per second of the executor's searches, and of vLLM with the same requests.

Three processes run one after another, because a process can step vLLM in only one thread. The first runs the searches
with the real verifier and stores its scores. The second runs them again, timed, with the stored scores and a cold
prefix cache, and stores every request that reaches the engine. The third, timed, sends those requests to a bare vLLM
engine, as many calls at a time as there were searches. `python -m bench.engine PART FOLDER` runs one of the processes.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Catalogue, Model
from agents.search.search import Job, SearchRules, begin, draft, resume
from agents.serving.registry import HostingOptions, hosted_engine, hosted_model, load_into
from agents.serving.vllm_host import EngineHost
from agents.serving.vllm_requests import GeneratedDraft, Generation
from agents.serving.vllm_settings import prepare_environment
from agents.verifier.prm import start_verifier
from bench.streams import BenchFailed
from schemas.action import Action
from schemas.decision import Decision, PolicyState
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Origin, Query
from schemas.search import Scored, SearchStep, Verification
from streams.client.questions import read_questions

REPEATS = 2


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The searches to run: the first questions of a file, with one action of the catalogue's largest model."""

    catalogue: str
    questions: str
    queries: int = 120
    in_flight: int = 32
    widths: tuple[int, int, int] = (4, 2, 2)


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens that an engine generated, the elapsed seconds, and the process's CPU seconds."""

    tokens: int
    seconds: float
    cpu_s: float


def measure_engine(plan: EnginePlan, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return tokens per second of search and of bare vLLM, and their ratio, from alternating runs.

    Args:
        plan: The searches to run.
        folder: Folder for the files that each process passes to the next.
        say: Called with a line for each stage.

    Raises:
        BenchFailed: there are no questions.
        LookupError: a process ended with an error; the message ends with its output.
    """
    if next(read_questions(Path(plan.questions)), None) is None:
        raise BenchFailed(f"{plan.questions} has no questions")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    say("engine: searches with the real verifier, whose scores are kept")
    _process("scores", folder)
    found: dict[str, list[Timed]] = {"search": [], "raw": []}
    for _ in range(REPEATS):
        for part, runs in found.items():
            _process(part, folder)
            runs.append(msgspec.json.decode((folder / f"{part}.json").read_bytes(), type=Timed))
            say(f"  {part}: {runs[-1].tokens / runs[-1].seconds:,.0f} tokens/s")
    rates = {part: sum(t.tokens for t in runs) / sum(t.seconds for t in runs) for part, runs in found.items()}
    cpu = {
        part: 1e6 * sum(t.cpu_s for t in runs) / sum(t.tokens for t in runs) for part, runs in found.items()
    }
    catalogue = load_catalogue(Path(plan.catalogue))
    return {
        "search_tokens_per_s": round(rates["search"], 1),
        "raw_vllm_tokens_per_s": round(rates["raw"], 1),
        "ratio": round(rates["search"] / rates["raw"], 4),
        "cpu_us_a_token": {part: round(us, 1) for part, us in cpu.items()},
        "runs": {part: [msgspec.to_builtins(t) for t in runs] for part, runs in found.items()},
        "action": _action(catalogue, plan).id,
        "queries": plan.queries,
        "in_flight": plan.in_flight,
    }


def _process(part: str, folder: Path) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-m", "bench.engine", part, str(folder)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LookupError(f"bench.engine {part} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def largest(catalogue: Catalogue) -> Model:
    """Return the model with the most parameters."""
    return max(catalogue.models, key=lambda model: model.parameters)


def _action(catalogue: Catalogue, plan: EnginePlan) -> Action:
    qp, cp, bs = plan.widths
    return Action(model=largest(catalogue).name, qp=qp, cp=cp, bs=bs)


OPTIONS: Final = HostingOptions(threads=1)


def decisions_of(catalogue: Catalogue, plan: EnginePlan) -> list[Decision]:
    """Return one pinned decision per question. The same plan gives the same seeds."""
    action = _action(catalogue, plan)
    objective = ObjectiveInForce(
        weights=Weights(correct=1.0, score=0.0, cost=0.0),
        cost_range=CostRange(low=1.0, high=10.0),
    )
    asked = list(read_questions(Path(plan.questions)))[: plan.queries]
    return [
        Decision(
            query=Query(query_id=f"e{at}", text=query.text),
            origin=Origin(topic="bench", partition=0, offset=at),
            action=action,
            group=largest(catalogue).group,
            seq=at,
            seed=at,
            objective=objective,
            reason="pinned",
            policy=PolicyState(name="pinned", version=0),
        )
        for at, query in enumerate(asked)
    ]


Scorer = Callable[[SearchStep], Coroutine[Any, Any, Sequence[Scored]]]


async def _search(decision: Decision, catalogue: Catalogue, engine: Any, score: Scorer) -> int:
    """Run one search to its Answer with the executor's own code; return the number of tokens drafted."""

    def now() -> int:
        return time.time_ns() // 1_000_000

    reached = begin(decision, largest(catalogue).sampling, rules=SearchRules(), now_ms=now())
    tokens = 0
    while isinstance(reached, Job):
        step = await draft(reached, engine=engine, clock_ms=now)
        assert isinstance(step, SearchStep), "a decision without a time has no deadline"
        tokens += sum(step.forest.drafts[index].tokens for index in step.forest.pending)
        verification = Verification(
            search=step, scores=tuple(await score(step)), verifier=engine.served, verify_s=0.0
        )
        reached = resume(verification, now_ms=now(), engine=engine.served)
    return tokens


async def _all(decisions: Sequence[Decision], plan: EnginePlan, one: Callable[[Decision], Any]) -> Timed:
    gate = asyncio.Semaphore(plan.in_flight)

    async def admitted(decision: Decision) -> int:
        async with gate:
            return int(await one(decision))

    began, before_s = time.perf_counter(), time.process_time()
    tokens = sum(await asyncio.gather(*(admitted(d) for d in decisions)))
    return Timed(tokens=tokens, seconds=time.perf_counter() - began, cpu_s=time.process_time() - before_s)


class _Tap:
    """An engine host that records the requests it receives."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self.calls: list[Sequence[Generation]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def run(self, model: str, requests: Sequence[Generation]) -> list[GeneratedDraft]:
        self.calls.append(list(requests))
        return await self._host.run(model, requests)


def _key(step: SearchStep, index: int) -> str:
    return "\0".join((step.question, *step.forest.steps(index)))


async def keep_scores(plan: EnginePlan, folder: Path) -> None:
    """Search with the real verifier and write its scores to `scores.json`."""
    catalogue = load_catalogue(Path(plan.catalogue))
    kept: dict[str, Scored] = {}
    with EngineHost(threads=1) as host:
        await load_into(host, largest(catalogue), OPTIONS)
        engine = hosted_engine(largest(catalogue), OPTIONS, host)
        verifier = await start_verifier(catalogue.verifier_named(), OPTIONS, host)

        async def score(step: SearchStep) -> Sequence[Scored]:
            found = await verifier.score(step.question, [step.forest.steps(i) for i in step.forest.pending])
            kept.update(zip((_key(step, i) for i in step.forest.pending), found, strict=True))
            return found

        await _all(decisions_of(catalogue, plan), plan, lambda d: _search(d, catalogue, engine, score))
    (folder / "scores.json").write_bytes(msgspec.json.encode(kept))


async def time_search(plan: EnginePlan, folder: Path) -> None:
    """Search again with the stored scores, timed; write `search.json`, and the engine's requests to `calls.json`."""
    catalogue = load_catalogue(Path(plan.catalogue))
    kept = msgspec.json.decode((folder / "scores.json").read_bytes(), type=dict[str, Scored])

    async def score(step: SearchStep) -> Sequence[Scored]:
        # In a different batch, a draft's logits may differ in the last bits and so, rarely, may its text.
        return [kept.get(_key(step, i), Scored(score=0.5, tokens=1)) for i in step.forest.pending]

    with EngineHost(threads=1) as host:
        await load_into(host, largest(catalogue), OPTIONS)
        decisions = decisions_of(catalogue, plan)
        warm = hosted_engine(largest(catalogue), OPTIONS, host)
        await _all(decisions[:8], plan, lambda d: _search(d, catalogue, warm, score))
        # The model is loaded again, so that the prefix cache is as cold as that of bare vLLM.
        await load_into(host, largest(catalogue), OPTIONS)
        tap = _Tap(host)
        engine = hosted_engine(largest(catalogue), OPTIONS, tap)  # type: ignore[arg-type]
        timed = await _all(decisions, plan, lambda d: _search(d, catalogue, engine, score))
    (folder / "search.json").write_bytes(msgspec.json.encode(timed))
    (folder / "calls.json").write_bytes(msgspec.json.encode(tap.calls))


def time_raw(plan: EnginePlan, folder: Path) -> None:
    """Send the same requests to a bare vLLM engine, timed, with as many concurrent calls; write `raw.json`."""
    catalogue = load_catalogue(Path(plan.catalogue))
    calls = msgspec.json.decode((folder / "calls.json").read_bytes(), type=list[list[Generation]])
    hosted = hosted_model(largest(catalogue), OPTIONS)
    prepare_environment(True, os.environ, sys.modules)
    from agents.serving import vllm_adapter  # imports vLLM, which reads the prepared environment

    engine = vllm_adapter.build_engine(hosted)
    _drive(engine, calls[:8], plan.in_flight)
    engine.reset_prefix_cache()
    began, before_s = time.perf_counter(), time.process_time()
    tokens = _drive(engine, calls, plan.in_flight)
    timed = Timed(tokens=tokens, seconds=time.perf_counter() - began, cpu_s=time.process_time() - before_s)
    (folder / "raw.json").write_bytes(msgspec.json.encode(timed))


def _drive(engine: Any, calls: Sequence[Sequence[Generation]], in_flight: int) -> int:
    """Step an engine through calls, up to `in_flight` of them at a time; return the number of tokens generated."""
    from agents.serving import vllm_adapter

    waiting, tokens = list(reversed(calls)), 0
    left: dict[int, int] = {}
    call_of: dict[str, int] = {}
    while waiting or left:
        while waiting and len(left) < in_flight:
            call, number = waiting.pop(), len(waiting)
            left[number] = len(call)
            for at, request in enumerate(call):
                call_of[f"{number}-{at}"] = number
                vllm_adapter.add(engine, f"{number}-{at}", request)
        for reply in engine.step():
            if reply.finished:
                tokens += len(reply.outputs[0].token_ids)
                number = call_of.pop(reply.request_id)
                left[number] -= 1
                if not left[number]:
                    del left[number]
    return tokens


def main(part: str, folder: Path) -> None:
    """Run one of the three processes."""
    plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=EnginePlan)
    if part == "raw":
        time_raw(plan, folder)
    else:
        asyncio.run(keep_scores(plan, folder) if part == "scores" else time_search(plan, folder))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    # All results are written. A normal exit may abort, because some of vLLM's threads outlive the interpreter.
    os._exit(0)
