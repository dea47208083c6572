"""One catalogue over three servers of others' making: `vllm serve`, LiteLLM's proxy and llama.cpp's own.

What they bill is compared with their own logs and counters, and each of them fails in turn.
"""

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from agents.catalogue.checkpoint import read_architecture
from agents.decider.rows import Row
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.prices import Prices
from schemas.query import Query
from schemas.reward import Reward
from streams.local.broker import free_port
from streams.local.deployment import python
from streams.settings import Settings
from tests.support import peer_servers
from tests.support.command_line import Operator, read_until
from tests.support.deployment import Deploy, Deployment
from tests.support.peer_servers import SMOL, Front, Proxy, litellm_proxy, llama_server, metric
from tests.support.recorded import question
from tests.support.upstream import Body, Upstream
from tests.support.vllm_servers import mini_servers

pytestmark = [pytest.mark.broker, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
QUERIES = 200

PRICES: dict[str, dict[str, float]] = {
    "own": {"input": 0.1, "output": 0.2},
    "hosted-small": {"input": 0.15, "output": 0.6},
    "hosted-large": {"input": 2.5, "output": 10.0},
    "smol": {"input": 0.02, "cached_input": 0.01, "output": 0.04},
}


def _answering(right: Callable[[int], bool]) -> Callable[[Body], str]:
    """Return what an upstream says that is right about the numbers for which this holds."""

    def says(body: Body) -> str:
        asked = re.findall(r"What is (\d+) \+ (\d+), number (\d+)", body["messages"][-1]["content"])
        if not asked:
            return "So \\boxed{5}"
        a, b, number = map(int, asked[0])
        return f"They are \\boxed{{{a + b if right(number) else 0}}}"

    return says


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real vLLM server with a mini model, which it calls `mini`."""
    with mini_servers(tmp_path_factory.mktemp("vllm"), {"mini": ROOT / "models" / "mini-1m"}) as urls:
        yield urls["mini"]


@pytest.fixture(scope="module")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """llama.cpp's own server with SmolLM2."""
    with llama_server(tmp_path_factory.mktemp("llama")) as url:
        yield url


@pytest.fixture(scope="module")
def hosted() -> Iterator[dict[str, Upstream]]:
    """What LiteLLM's proxy stands before."""
    small = Upstream(says=_answering(lambda number: number % 3 > 0))
    large = Upstream(says=_answering(lambda number: True))
    yield {"hosted-small": small, "hosted-large": large}
    small.close()
    large.close()


@pytest.fixture(scope="module")
def proxy(hosted: dict[str, Upstream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """LiteLLM's own proxy with two models."""
    models = {name: peer_servers.hosted(upstream, PRICES[name]) for name, upstream in hosted.items()}
    with litellm_proxy(tmp_path_factory.mktemp("litellm"), models) as running:
        yield running


def entry(name: str, url: str, model: str, **fields: Any) -> dict[str, Any]:
    """Return the entry of a chat endpoint; fields of its endpoint have a dot before their name."""
    at: dict[str, Any] = {"kind": "chat", "url": url, "model": model, "max_output_tokens": 64}
    at |= {field[1:]: value for field, value in fields.items() if field.startswith(".")}
    own = {field: value for field, value in fields.items() if not field.startswith(".")}
    return {"name": name, "group": "peers", "price": PRICES[name], "endpoint": at, **own}


def catalogue(folder: Path, entries: list[dict[str, Any]], **content: Any) -> str:
    """Write a catalogue in USD, by default without a verifier, and return its path."""
    usual = {"name": "peers", "verifier": "none", "verifiers": []}
    path = folder / "peers.yaml"
    path.write_text(yaml.safe_dump({**usual, "models": entries, **content}))
    return str(path)


ANSWERED = {"ok", "unfinished"}
"""With a text, which the longest answer that the entry allows may have cut."""

SMOL_AT: dict[str, Any] = {".max_output_tokens": 16, ".context_tokens": 2048}


def asking(count: int, *, name: str = "q", **fields: Any) -> list[Query]:
    """Return queries, every other one with a reference."""
    found = []
    for number in range(count):
        text, answer = question(number)
        reference = answer if number % 2 else None
        found.append(Query(query_id=f"{name}{number}", text=text, reference=reference, **fields))
    return found


class Fleet:
    """A deployment over all three servers: two models with a verifier, two without; and what the servers counted."""

    def __init__(
        self, deploy: Deploy, folder: Path, own: str, smol: str, proxy: Proxy, hosted: dict[str, Upstream]
    ) -> None:
        prm = ROOT / "models" / "mini-prm-s"
        engine = {"dtype": "float32", "context_tokens": 4096, "kv_cache_bytes": 134217728, "block_tokens": 32}
        verifier = {
            "name": "prm", "checkpoint": f"{prm}", "family": "step-tags", "architecture": read_architecture(prm),
            "step_tags": {"tag": "<|step|>", "tag_id": 3, "good_label": 1}, "engine": engine,
        }  # fmt: skip
        entries = [
            entry("own", own, "mini", verifier="prm"),
            entry("hosted-small", proxy.url, "hosted-small", verifier="prm"),
            entry("hosted-large", proxy.url, "hosted-large"),
            entry("smol", f"{smol}/v1", SMOL, **SMOL_AT),
        ]
        self.own, self.smol, self.proxy, self.hosted, self.folder = own, smol, proxy, hosted, folder
        self.loop: Deployment = deploy(
            catalogue=catalogue(folder, entries, verifiers=[verifier]), recorded="", policy="contextual", warm_up=20,
            attempts=2, engine_threads=1, max_in_flight=16, feedback_wait_s=0.0,
        )  # fmt: skip
        self.before = self.spent()
        self.queries = asking(QUERIES)
        # Each model has some, with and without a reference; of the others, the policy chooses the model.
        some = [
            msgspec.structs.replace(query, allowed_models=(list(PRICES)[at // 2 % 4],))
            for at, query in enumerate(self.queries[:40])
        ]
        self.loop.serve(*some, *self.queries[40:])
        self.after = self.spent()

    @property
    def rewards(self) -> dict[str, Reward]:
        """The closing Rewards."""
        return {r.query_id: r for r in self.loop.read(self.loop.topics.reward, Reward) if r.closes}

    def spent(self) -> dict[str, float]:
        """Return what each model has cost since its server started, by the server's own count."""
        logs = self.proxy.served
        self.loop.until(
            lambda: all(len(logs(name)) == len(upstream.log) for name, upstream in self.hosted.items()),
            "the log",
        )
        llama = [metric(self.smol, f"llamacpp:{kind}_total") for kind in (
            "prompt_tokens", "prompt_tokens_cached", "tokens_predicted"
        )]  # fmt: skip
        vllm = [metric(self.own, f"vllm:{kind}_tokens_total") for kind in ("prompt", "generation")]
        found = {"own": _usd("own", vllm[0], 0.0, vllm[1]), "smol": _usd("smol", *llama)}
        return found | {name: math.fsum(each["response_cost"] for each in logs(name)) for name in self.hosted}


def _usd(name: str, fresh: float, cached: float, generated: float) -> float:
    price = PRICES[name]
    costs = fresh * price["input"], cached * price.get("cached_input", 0.0), generated * price["output"]
    return math.fsum(costs) / 1e6


def _billed(rewards: Iterable[Reward]) -> float:
    return math.fsum(reward.price.cost for reward in rewards if reward.price is not None)


@pytest.fixture(scope="module")
def fleet(
    deploy: Deploy,
    own: str,
    smol: str,
    proxy: Proxy,
    hosted: dict[str, Upstream],
    tmp_path_factory: pytest.TempPathFactory,
) -> Fleet:
    return Fleet(deploy, tmp_path_factory.mktemp("fleet"), own, smol, proxy, hosted)


def test_rewards_sum_to_the_servers_own_bills(fleet: Fleet) -> None:
    loop, rewards = fleet.loop, fleet.rewards
    assert {each.status for each in rewards.values()} <= ANSWERED
    assert len(rewards) == QUERIES
    assert not loop.read(loop.topics.attempt_failed, AttemptFailed)
    for name in PRICES:
        found = [each for each in rewards.values() if each.action.model == name]
        assert len(found) >= 10, name
        assert _billed(found) == pytest.approx(fleet.after[name] - fleet.before[name], rel=1e-9), name
        print(name, len(found), f"${_billed(found):.6f}")
    total = math.fsum(fleet.after.values()) - math.fsum(fleet.before.values())
    assert _billed(rewards.values()) == pytest.approx(total, rel=1e-9)
    loop.settled()


def test_scores_stay_out_of_correctness(fleet: Fleet) -> None:
    loop, rewards = fleet.loop, fleet.rewards
    assert {each.verified for each in loop.read(loop.topics.decision, Decision)} == {"some"}
    rows = {row.query_id: row for row in loop.learner_rows(gone=False) if isinstance(row, Row)}
    for query in fleet.queries:
        row, reward = rows[query.query_id], rewards[query.query_id]
        assert (reward.score is not None) == (reward.action.model in ("own", "hosted-small"))
        if query.reference is not None:
            assert (row.stage, row.correct, row.score) == ("closed", reward.correct, reward.correct)
        else:
            assert (row.stage, row.correct, row.entered, row.score) == ("priced", None, None, 0.0)
            assert (reward.correct, reward.reward) == (None, None)


def test_new_price_counts_from_the_next_decision(fleet: Fleet) -> None:
    loop = fleet.loop
    new = Prices(input=5.0, output=1.0)
    operator = Operator(fleet.folder, loop.settings)
    operator.run("catalogue", "price", "hosted-large", "--input", "5", "--output", "1")

    def is_in_force() -> bool:
        [probe] = asking(1, name=f"price{time.monotonic_ns()}-", allowed_models=("hosted-large",))
        loop.serve(probe)
        made = {each.query_id: each for each in loop.read(loop.topics.decision, Decision)}
        return made[probe.query_id].prices == new

    loop.until(is_in_force, "the new price")
    before = len(fleet.proxy.served("hosted-large"))
    ids = loop.serve(*asking(5, name="later", allowed_models=("hosted-large",)))
    fleet.spent()  # once the proxy has written its log
    usages = fleet.proxy.served("hosted-large")[before:]
    later = [fleet.rewards[query_id] for query_id in ids]
    expected = math.fsum(5 * each["prompt_tokens"] + each["completion_tokens"] for each in usages) / 1e6
    assert (len(usages), _billed(later)) == (5, pytest.approx(expected, rel=1e-9))
    assert {each.price.prices for each in later if each.price is not None} == {new}


FAULTS: dict[str, Any] = {
    "429": (429, {"error": {"message": "slow down"}}, {}),
    "500": (500, b"oops", {}),
    "a refusal": (400, {"error": {"message": "not that"}}, {}),
    "a dropped connection": "hang-up",
    "a hang": "hang",
}


def test_no_query_fails_while_another_server_could_answer(
    deploy: Deploy, own: str, smol: str, proxy: Proxy, hosted: dict[str, Upstream], tmp_path: Path
) -> None:
    fronts = {"own": Front(own, "mini"), "smol": Front(smol, SMOL)}
    failing: dict[str, Upstream] = {**fronts, "hosted-small": hosted["hosted-small"]}
    entries = [
        entry("own", fronts["own"].url, "mini", **{".timeout_s": 8}),
        entry("hosted-small", proxy.url, "hosted-small", **{".timeout_s": 8}),
        entry("smol", fronts["smol"].url, SMOL, **SMOL_AT | {".timeout_s": 25, ".max_output_tokens": 8}),
    ]
    loop: Deployment = deploy(
        catalogue=catalogue(tmp_path, entries), recorded="", policy="random", attempts=2, engine_attempts=1,
        probes_per_minute=60,
    )  # fmt: skip

    def status(query: Query) -> str:
        loop.serve(query)
        return next(a.status for a in loop.read(loop.topics.answer, Answer) if a.query_id == query.query_id)

    def answers(name: str) -> bool:
        [pinned] = asking(1, name=f"well{time.monotonic_ns()}-", allowed_models=(name,))
        return status(pinned) in ANSWERED

    met: dict[tuple[str, str], int] = {}
    for name, upstream in failing.items():
        for fault, spoil in FAULTS.items():
            loop.until(partial(answers, name), f"{name} is well")
            asked_before = len(upstream.requests)
            upstream.spoilt[:] = [spoil] * 1000
            queries = asking(8, name=f"{name}-{fault.replace(' ', '-')}-", timeout_s=120.0)
            ids = loop.serve(*queries)
            upstream.spoilt.clear()
            upstream.hung.set()
            met[name, fault] = len(upstream.requests) - asked_before
            upstream.hung.clear()
            found: dict[str, Answer] = {}
            for each in loop.read(loop.topics.answer, Answer):
                found.setdefault(each.query_id, each)
            wrong = [found[each] for each in ids if found[each].status not in ANSWERED]
            assert not wrong, (name, fault, wrong)
    print(met)
    assert all(met.values()), "each upstream met each fault"
    loop.settled()
    for front in fronts.values():
        front.close()


@pytest.fixture
def fronts(own: str, smol: str) -> Iterator[dict[str, Front]]:
    made = {"own": Front(own, "mini"), "smol": Front(smol, SMOL)}
    yield made
    for each in made.values():
        each.close()


def billed(requests: list[tuple[Body, dict[str, Any]]], name: str) -> float:
    """Return what a server's requests for queries cost; probes are not among them."""
    usages = [usage for body, usage in requests if "number" in body["messages"][-1]["content"]]
    price = PRICES[name]
    cached = [(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for usage in usages]
    return math.fsum(
        _usd(name, usage["prompt_tokens"] - share, share, usage["completion_tokens"])
        if "cached_input" in price
        else _usd(name, usage["prompt_tokens"], 0.0, usage["completion_tokens"])
        for usage, share in zip(usages, cached, strict=True)
    )


def test_kills_between_attempts_leave_one_answer_and_both_costs(
    deploy: Deploy,
    fronts: dict[str, Front],
    proxy: Proxy,
    hosted: dict[str, Upstream],
    tmp_path: Path,
) -> None:
    """vLLM bills answers that it does not deliver, and the proxy's upstream fails: both are decided again."""
    entries = [
        entry("own", fronts["own"].url, "mini"),
        entry("hosted-small", proxy.url, "hosted-small"),
        entry("hosted-large", proxy.url, "hosted-large"),
        entry("smol", fronts["smol"].url, SMOL, **SMOL_AT),
    ]
    port = free_port()
    executor = [*python(), "worker", "executor", "--group", "peers", "--metrics-port", f"{port}"]
    loop: Deployment = deploy(
        catalogue=catalogue(tmp_path, entries), recorded="", policy="random", attempts=2, engine_attempts=1,
        commands={"executor.peers": executor},
    )  # fmt: skip
    servers: dict[str, Upstream] = {**fronts, **hosted}
    begins = {name: len(each.log) for name, each in servers.items()}
    fronts["own"].withholds = lambda body: "number" in body["messages"][-1]["content"]
    for front in fronts.values():
        front.delay_s = 1.0
    hosted["hosted-small"].spoilt[:] = [(500, b"oops", {})] * 3
    t, queries = loop.topics, asking(60, name="kills", timeout_s=120.0)
    ids = loop.send(*queries)
    loop.until(lambda: len(loop.raw(t.attempt_failed)) >= 1, "an attempt that failed")
    for service in ("decider", "executor.peers"):
        loop.supervisor.kill(service)
    loop.rewarded(ids)
    loop.settled()
    hosted["hosted-small"].spoilt.clear()
    failed = {each.query_id: each.answer for each in loop.read(t.attempt_failed, AttemptFailed)}
    answers: dict[str, Answer] = {}
    for answer in loop.read(t.answer, Answer):
        answers.setdefault(answer.query_id, answer)
    rewards = {each.query_id: each for each in loop.read(t.reward, Reward) if each.closes}
    second = [each for each in loop.read(t.decision, Decision) if each.attempt == 2]
    assert len({each.query_id for each in second}) == len({each.seq for each in second}) > 0
    assert {each.query_id for each in second} <= set(failed)
    for query_id in ids:
        reward = rewards[query_id]
        assert (reward.attempt, reward.seq) == (answers[query_id].attempt, answers[query_id].seq)
        assert len(reward.earlier) == reward.attempt - 1
        own = reward.price.cost if reward.price is not None else 0.0
        assert reward.cost == pytest.approx(own + math.fsum(each.cost for each in reward.earlier))
    withheld = [e for each in rewards.values() for e in each.earlier if e.action.model == "own"]
    assert withheld
    assert all(each.cost > 0.0 for each in withheld), "vLLM billed an answer that never came"
    logs = {name: each.log[begins[name] :] for name, each in servers.items()}
    spent = math.fsum(billed(log, name) for name, log in logs.items())
    charged = math.fsum(each.cost or 0.0 for each in rewards.values())
    page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30, trust_env=False).text
    found = re.findall(r"^uniscale_repeated_tokens_total\{(.*)\} (\S+)$", page, re.MULTILINE)
    repeated = 0.0
    for labels, tokens in found:
        [name] = re.findall(r'model="([\w-]+)"', labels)
        repeated += float(tokens) * PRICES[name]["input" if 'kind="input"' in labels else "output"] / 1e6
    print(f"spent ${spent:.6f}, charged ${charged:.6f}, about twice ${repeated:.6f}")
    # A lost answer may have been longer than the one that took its place: both are sampled.
    assert -1e-9 < spent - charged < 1.5 * repeated + 1e-9, "what was billed twice is a metric"
    assert repeated > 0.0


def test_init_check_up_and_a_question(own: str, smol: str, proxy: Proxy, tmp_path: Path) -> None:
    settings = Settings().replace(bootstrap=f"127.0.0.1:{free_port()}", gateway_port=free_port())
    operator, began = Operator(tmp_path, settings), time.monotonic()
    said = operator.run("init", "--vllm", own, "--openai", smol, "--litellm", proxy.url).stdout
    assert f"4 models: mini, {SMOL}, hosted-small, hosted-large" in said
    models = {
        each["name"]: each
        for each in yaml.safe_load((tmp_path / "uniscale.yaml").read_text())["catalogue"]["models"]
    }
    assert models["hosted-large"]["price"] == PRICES["hosted-large"], "as the proxy states it"
    assert models[SMOL]["endpoint"]["context_tokens"] == 2048, "as llama.cpp states it"
    checked = operator.run("check").stdout
    assert "0 would fail" in checked
    port = settings.kafka.bootstrap.rpartition(":")[2]
    up = operator.start("up", "--broker", "embedded", "--gateway", "--port", port, "--log", "up.log")
    try:
        read_until(up, "services are ready")
        assert up.stdout is not None
        threading.Thread(target=up.stdout.read, daemon=True).start()
        for name in models:
            body = {
                "model": f"{name}/1/1/1",
                "messages": [{"role": "user", "content": "How much is 9 times 7?"}],
            }
            got = httpx.post(
                f"http://127.0.0.1:{settings.gateway.port}/v1/chat/completions",
                json=body,
                timeout=120,
                trust_env=False,
            )
            assert got.status_code == 200, (name, got.text)
            assert got.json()["usage"]["completion_tokens"] > 0
        assert operator.run("ask", "How much is 9 times 7?").stdout.strip()
        print(f"from init to five answers: {time.monotonic() - began:.0f} s")
        assert "0 discrepancies" in operator.run("audit").stdout
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0


def test_calibrated_prices_pay_for_the_servers_time(own: str, tmp_path: Path) -> None:
    operator = Operator(tmp_path, Settings())
    operator.run("init", "--vllm", own)
    before = [metric(own, f"vllm:{kind}_tokens_total") for kind in ("prompt", "generation")]
    began = time.monotonic()
    done = operator.run("calibrate", "mini", "--usd-per-hour", "36", "--at-once", "8", "--seconds", "20")
    most_s = time.monotonic() - began
    after = [metric(own, f"vllm:{kind}_tokens_total") for kind in ("prompt", "generation")]
    [line] = [each for each in done.stdout.splitlines() if each.startswith("price: ")]
    print(done.stdout)
    assert "8 requests at once" in line
    price = yaml.safe_load(line)["price"]
    read, written = (now - then for now, then in zip(after, before, strict=True))
    paid_s = (read * price["input"] + written * price["output"]) / 1e6 / (36 / 3600)
    assert 19 < paid_s < most_s, "by vLLM's own count"
    assert price["input"] < price["output"]
