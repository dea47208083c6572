"""Costs in USD: tokens as upstreams counted them times the prices in force, from the Decision to what is learned."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.bandit.errors import CorruptState
from agents.catalogue.models import CatalogueError
from agents.decider.rows import Row, decode_row
from schemas.answer import Answer
from schemas.control import CatalogueEntry, PriceFactorEntry
from schemas.decision import Decision
from schemas.prices import Billed, Prices
from schemas.record import encode
from streams.control_follower import Control, catalogue_of
from streams.runtime.memory_cluster import Cluster
from streams.settings import Settings
from tests.streams.test_chat_models import asked, chat, served, settings_of, start  # noqa: F401  # a fixture
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    closing,
    decider_of,
    learner_log,
    read,
    recovered,
    reproduced,
    running,
    worker_of,
)
from tests.support.cluster import served as run_through
from tests.support.gateway_deployment import ASK, Deploy, GatewayDeployment
from tests.support.recorded import question
from tests.support.upstream import Upstream

CHEAP = {"input": 0.15, "cached_input": 0.075, "output": 0.6}
DEAR = {"input": 2.5, "output": 10.0}


def priced(name: str, upstream: Upstream, price: dict[str, float], **endpoint: Any) -> dict[str, Any]:
    """Return the entry of a chat endpoint that is paid for in USD; an architecture it has not."""
    entry = chat(name, upstream, **endpoint)
    del entry["architecture"]
    return entry | {"price": price}


def usd(usages: list[dict[str, int]], price: dict[str, float]) -> float:
    """Return what an upstream's own log comes to."""
    total = 0.0
    for usage in usages:
        total += usage["prompt_tokens"] * price["input"] + usage["completion_tokens"] * price["output"]
    return total / 1e6


@pytest.fixture
def two() -> Any:
    """Two upstreams, the dearer one twice as talkative."""
    small, large = Upstream(), Upstream(says=lambda body: "Well, let me see. So \\boxed{5}")
    yield small, large
    small.close()
    large.close()


@pytest.fixture
def in_usd(start: Deploy) -> Deploy:  # noqa: F811
    """Start a deployment that counts in USD: its catalogue gives no cost range and no hardware."""

    def starting(*entries: dict[str, Any], **fields: Any) -> GatewayDeployment:
        return start(*entries, content={"cost_range": None, "hardware": None}, **fields)

    return starting


def test_rewards_match_upstream_logs_and_prices_in_force(
    in_usd: Deploy, two: tuple[Upstream, Upstream]
) -> None:
    small, large = two
    deployment = in_usd(priced("small", small, CHEAP, n=[1, 4]), priced("large", large, DEAR), warm_up=10)

    def paid(ids: list[str]) -> dict[str, float]:
        rewards = deployment.closing(*ids)
        assert {each.price.unit for each in rewards if each.price} == {"usd"}
        return {
            name: math.fsum(r.price.cost for r in rewards if r.price and r.action.model == name)
            for name in ("small", "large")
        }

    first = [asked(deployment, at % 12)["id"] for at in range(50)]
    logs = [[usage for _, usage in served(each)] for each in two]
    assert all(logs), "both were asked"
    before = paid(first)
    assert before["small"] == pytest.approx(usd(logs[0], CHEAP), rel=1e-12)
    assert before["large"] == pytest.approx(usd(logs[1], DEAR), rel=1e-12)

    new = Prices(input=25.0, output=1.0)
    entry = PriceFactorEntry(name="large", prices=new)
    deployment.produce(deployment.topics.control, entry.key.encode(), encode(entry))
    deployment.until(
        lambda: deployment.call(lambda c: all(w.control.models["large"].rate == new for w in c.workers)),
        "the price",
    )
    second = [asked(deployment, at % 12, model="large")["id"] for at in range(5)]
    log = [usage for _, usage in served(large)][len(logs[1]) :]
    assert paid(second)["large"] == pytest.approx(usd(log, {"input": 25.0, "output": 1.0}), rel=1e-12)
    decisions = {each.query_id: each for each in deployment.read(deployment.topics.decision, Decision)}
    old = {"small": Prices(**CHEAP), "large": Prices(**DEAR)}
    assert all(decisions[each].prices == old[decisions[each].action.model] for each in first)
    assert {decisions[each].prices for each in second} == {new}
    for reward in deployment.closing(*first, *second):
        assert reward.price is not None
        assert reward.price.prices == decisions[reward.query_id].prices
        assert reward.log_cost == math.log(reward.price.cost)


def test_what_a_cache_held_costs_what_cached_input_says(
    in_usd: Deploy, two: tuple[Upstream, Upstream]
) -> None:
    small, _ = two
    deployment = in_usd(priced("small", small, CHEAP))
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 800}}
    reply = {"choices": [{"message": {"role": "assistant", "content": "\\boxed{1}"}}], "usage": usage}
    small.spoilt.append((200, reply, {}))
    [reward] = deployment.closing(asked(deployment, 0)["id"])
    assert reward.price is not None
    assert reward.price.billed == Billed(input=1000, cached_input=800, output=10)
    assert reward.price.cost == pytest.approx((200 * 0.15 + 800 * 0.075 + 10 * 0.6) / 1e6)


def test_filtered_reply_is_charged(in_usd: Deploy, two: tuple[Upstream, Upstream]) -> None:
    small, large = two
    deployment = in_usd(priced("small", small, CHEAP), priced("large", large, DEAR), attempts=2)
    usage = {"prompt_tokens": 1000, "completion_tokens": 10}
    choice = {"message": {"role": "assistant", "content": ""}, "finish_reason": "content_filter"}
    filtered: Any = (200, {"choices": [choice], "usage": usage}, {})
    bills = {"small": (1000 * 0.15 + 10 * 0.6) / 1e6, "large": (1000 * 2.5 + 10 * 10.0) / 1e6}
    reply: dict[str, Any] = {}
    for number in range(12):  # until the model is chosen whose replies are filtered
        small.spoilt[:] = [filtered]
        reply = asked(deployment, number)
        if reply["uniscale"]["attempts"] == 2:
            break
    [earlier] = reply["uniscale"]["earlier"]
    [reward] = deployment.closing(reply["id"])
    assert [each.cost for each in reward.earlier] == [pytest.approx(bills["small"])]
    assert [each.tokens for each in reward.earlier] == [10]
    assert earlier["action"] == "small/1/1/1"
    large.spoilt[:] = [filtered]
    said = {"model": "large/1/1/1", "messages": [{"role": "user", "content": "number 77?"}]}
    with deployment.http() as client:
        assert client.post(ASK, json=said).status_code >= 400
    [alone] = [
        d for d in deployment.read(deployment.topics.decision, Decision) if d.query.question == "number 77?"
    ]
    [reward] = deployment.closing(alone.query_id)
    assert reward.price is not None
    assert reward.price.cost == pytest.approx(bills["large"])


def counted_in_usd(settings: Settings, folder: Path, **prices: dict[str, float]) -> Settings:
    """Return settings with prices for the recorded models, in a catalogue file of their own."""
    content = yaml.safe_load(Path(settings.catalogue).read_text(encoding="utf-8"))
    content["cost_range"] = {"unit": "usd"}
    for model in content["models"]:
        model["price"] = prices[model["name"]]
    path = folder / "usd.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return settings.replace(catalogue=str(path))


def rows_of(cluster: Cluster) -> list[Row]:
    found = (decode_row(key, value) for key, value in learner_log(cluster).items())
    return [row for row in found if isinstance(row, Row)]


@pytest.mark.parametrize("policy", ["contextual", "linucb"])
async def test_vllm_models_are_billed_by_token_and_learn_tokens(
    in_memory: InMemory, ask: Ask, audited: Audit, tmp_path: Path, policy: str
) -> None:
    settings = counted_in_usd(
        in_memory(policy=policy, warm_up=4, snapshot_every=20), tmp_path, small=CHEAP, large=DEAR
    )
    target = {"accuracy": 0.9} if policy == "contextual" else {}
    new = Prices(input=1.0, output=100.0)
    async with running(settings) as cluster:
        await run_through(cluster, *(ask(n, query_id=f"before-{n}", **target) for n in range(24)))
        entry = PriceFactorEntry(name="small", prices=new)
        cluster.produce(cluster.topics.control, entry.key.encode(), encode(entry))
        await cluster.until(lambda: all(w.control.models["small"].rate == new for w in cluster.workers))
        cluster.kill(worker_of(cluster, "decider"))
        await cluster.until(lambda: any(each.service == "decider" for each in cluster.workers))
        pin = [ask(n, query_id=f"pin-{n}", pin_action="small/1/1/1") for n in range(3)]
        await run_through(cluster, *(ask(n, query_id=f"after-{n}", **target) for n in range(8)), *pin)
        state = decider_of(cluster).policy.state()
    answers = {each.query_id: each for each in read(cluster, cluster.topics.answer, Answer)}
    decisions = {each.query_id: each for each in read(cluster, cluster.topics.decision, Decision)}
    rows = {row.query_id: row for row in rows_of(cluster)}
    for query_id, reward in closing(cluster).items():
        answer, decision, price = answers[query_id], decisions[query_id], reward.price
        assert price is not None
        assert decision.prices is not None
        own = Billed(input=answer.prompt_tokens, output=answer.generated_tokens)
        assert (price.billed, price.cost) == (own, decision.prices.usd(own))
        renewed = decision.action.model == "small" and not query_id.startswith("before")
        assert decision.prices == (
            new if renewed else Prices(**(CHEAP if decision.action.model == "small" else DEAR))
        )
        if query_id in rows:  # others have left the log for a snapshot
            assert rows[query_id].tokens == (own.output, own.input), "whatever they cost"
    reproduced(cluster)
    decider = recovered(cluster)
    assert decider.offered.price_factors == {"small": new, "large": Prices(**DEAR)}
    if policy == "contextual":
        assert decider.policy.state() == state
    assert audited(cluster).discrepancies == []


async def test_default_policy_follows_reversed_prices_at_once(
    in_memory: InMemory, ask: Ask, tmp_path: Path
) -> None:
    """Of the small model input becomes dear and output free, so that no factor on what was learned would do."""
    settings = counted_in_usd(
        in_memory(policy="contextual", objective="cost-sensitive", warm_up=30, seed=1),
        tmp_path,
        small={"input": 0.1, "output": 0.1},
        large={"input": 1.0, "output": 1.0},
    )
    async with running(settings) as cluster:
        new = Prices(input=100.0, output=0.001)
        for part in ("before", "after"):
            for at in range(0, 60, 10):
                ids = [ask(n % 12, query_id=f"{part}-{n}") for n in range(at, at + 10)]
                await run_through(cluster, *ids)
            if part == "before":
                entry = PriceFactorEntry(name="small", prices=new)
                cluster.produce(cluster.topics.control, entry.key.encode(), encode(entry))
                await cluster.until(
                    lambda: all(w.control.models["small"].rate == new for w in cluster.workers)
                )
    made = [d for d in read(cluster, cluster.topics.decision, Decision) if d.reason == "policy"]
    costs = closing(cluster)
    before = [d.action.model for d in made if d.query_id.startswith("before")]
    after = [d.action.model for d in made if d.query_id.startswith("after")]
    assert before.count("small") > len(before) / 2
    assert after.count("small") <= len(after) / 10
    predicted = [
        abs(d.predicted.log_cost - (costs[d.query_id].log_cost or 0.0))
        for d in made
        if d.query_id.startswith("after") and d.predicted is not None
    ]
    assert sorted(predicted)[len(predicted) // 2] < math.log(2), "what was predicted is what it cost, roughly"


async def test_a_log_in_the_other_unit_is_refused_by_name(
    in_memory: InMemory, ask: Ask, tmp_path: Path
) -> None:
    for policy in ("contextual", "linucb"):
        settings = in_memory(policy=policy, warm_up=4, snapshot_every=10)
        async with running(settings) as cluster:
            await run_through(cluster, *(ask(n) for n in range(12)))
        cluster.settings = counted_in_usd(settings, tmp_path, small=CHEAP, large=DEAR)
        with pytest.raises(CorruptState, match="the unit of costs: found 'eflops', wanted 'usd'; go back to"):
            recovered(cluster)


def test_one_deployment_counts_in_one_unit(tmp_path: Path, two: tuple[Upstream, Upstream]) -> None:
    small, large = two
    bare = chat("large", large)

    def of(*entries: dict[str, Any], **content: Any) -> Settings:
        return settings_of(tmp_path, {}, *entries, content={"cost_range": None, **content})

    with pytest.raises(
        CatalogueError, match="model 'large', field price: is missing, but model 'small' has one"
    ):
        catalogue_of(of(priced("small", small, CHEAP), bare))
    with pytest.raises(
        CatalogueError, match="'large', field price: is missing, but costs are in usd: give USD"
    ):
        catalogue_of(of(priced("small", small, CHEAP), bare, cost_range={"unit": "usd"}))
    with pytest.raises(
        CatalogueError, match="'small', field price: is in usd, but costs are in eflops: leave it"
    ):
        catalogue_of(of(priced("small", small, CHEAP), bare, cost_range={"unit": "eflops"}))
    with pytest.raises(CatalogueError, match=r"'small', field price.*above 0: give the least that you would"):
        catalogue_of(of(priced("small", small, {"input": 0.0, "output": 1.0})))
    with pytest.raises(CatalogueError, match=r"'small', field price.cached: is unknown"):
        catalogue_of(of(priced("small", small, {**CHEAP, "cached": 1.0})))
    with pytest.raises(CatalogueError, match="field price_factor: is for eflops, but costs are in usd"):
        catalogue_of(of(priced("small", small, CHEAP) | {"price_factor": 2.0}))
    control = Control(of(priced("small", small, CHEAP), priced("large", large, DEAR, n=[1, 4])))
    found = control.catalogue.cost_range
    # 100 and 50 tokens of the cheaper one; four answers of 1,000 and 2,000 tokens of the dearer.
    assert (found.low, found.high, found.unit) == (4.5e-05, 0.09, "usd")
    unpriced = CatalogueEntry(name="third", op="add", model=chat("third", small))
    for entry, why in (
        (unpriced, "model 'third', field price: is missing, but costs are in usd"),
        (PriceFactorEntry(name="small", factor=2.0), "costs are in usd: give --input and --output"),
    ):
        with pytest.raises(CatalogueError, match=why):
            control.state.after(entry, 3)


def test_without_prices_a_cost_range_is_derived_in_eflops(
    tmp_path: Path, two: tuple[Upstream, Upstream]
) -> None:
    small, _ = two
    settings = settings_of(tmp_path, {}, chat("small", small), content={"cost_range": None})
    catalogue = catalogue_of(settings)
    assert catalogue.unit == "eflops"
    assert 1e8 < catalogue.cost_range.low < catalogue.cost_range.high < 1e13
    entry = PriceFactorEntry(name="small", prices=Prices(**CHEAP))
    with pytest.raises(CatalogueError, match="field price: is in usd, but costs are in eflops"):
        Control(settings).state.after(entry, 3)


def test_the_gateway_speaks_of_usd_where_costs_are(in_usd: Deploy, two: tuple[Upstream, Upstream]) -> None:
    small, large = two
    deployment = in_usd(priced("small", small, CHEAP, n=[1, 4]), priced("large", large, DEAR))
    reply = asked(deployment, 3, model="small/4/1/1")
    usages = [usage for _, usage in served(small)]
    assert (reply["uniscale"]["eflops"], len(usages)) == (None, 4)
    assert reply["uniscale"]["usd"] == pytest.approx(usd(usages, CHEAP), rel=1e-12)
    billed = [sum(each[name] for each in usages) for name in ("prompt_tokens", "completion_tokens")]
    assert [reply["usage"][name] for name in ("prompt_tokens", "completion_tokens")] == billed
    [reward] = deployment.closing(reply["id"])
    with deployment.http() as client:
        now = client.get("/v1/now").json()
        assert now["unit"] == "usd"
        shown = client.get(f"/v1/queries/{reply['id']}").json()
        assert shown["decision"]["prices"] == CHEAP
        [listed] = client.get("/v1/queries").json()["data"]
        assert listed["usd"] == reply["uniscale"]["usd"] == reward.price.cost
        asked_first = {"model": "auto", "messages": [{"role": "user", "content": "number 3?"}]}
        found = client.post("/v1/decide", json=asked_first).json()
        assert found["objective"]["unit"] == "usd"
    counted = deployment.call(
        lambda c: next(w.metrics for w in c.workers if w.service == "aggregator").text()
    )
    assert f'uniscale_usd_total{{model="small"}} {reward.price.cost}' in counted.decode()


def test_what_a_key_may_spend_a_day_is_in_usd(in_usd: Deploy, two: tuple[Upstream, Upstream]) -> None:
    small, _ = two
    deployment = in_usd(priced("small", small, CHEAP))
    body = {"model": "auto", "messages": [{"role": "user", "content": "What, number 1?"}]}
    cost = usd([{"prompt_tokens": 7, "completion_tokens": 2}], CHEAP)
    rich, other = deployment.key("rich", usd_per_day=1.5 * cost), deployment.key("other", eflops_per_day=1e15)
    deployment.until(lambda: deployment.http(rich).get("/v1/models").status_code == 200, "the keys")
    with deployment.http(rich) as client:
        first = client.post(ASK, json=body)
        assert first.status_code == 200, first.text
        deployment.closing(first.json()["id"])
        refused = client.post(ASK, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert "USD in 24 hours" in refused.json()["error"]["message"]
    with deployment.http(other) as client:
        refused = client.post(ASK, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "quota_in_another_unit")
    assert "keys add other --usd-per-day" in refused.json()["error"]["message"]


def test_no_query_costs_more_than_its_budget(in_usd: Deploy, two: tuple[Upstream, Upstream]) -> None:
    _, large = two
    large.says = lambda body: "so " * 60 + "\\boxed{5}"
    deployment = in_usd(priced("large", large, DEAR, n=[1, 4]))
    text, _ = question(0)
    most = len(text.encode()) + 16
    for n, tokens in ((1, 30), (4, 40), (1, 0)):
        budget = (n * most * 2.5 + tokens * 10.0) / 1e6
        uniscale = {"budget": {"usd": budget}}
        before = len(served(large))
        reply = asked(deployment, 0, model=f"large/{n}/1/1", graded=False, uniscale=uniscale)
        usages = [usage for _, usage in served(large)[before:]]
        assert len(usages) == (n if tokens else 0)
        assert sum(usage["completion_tokens"] for usage in usages) <= tokens
        assert usd(usages, DEAR) <= budget
        if not tokens:
            assert reply["uniscale"]["error"] == "the budget of usd ran out"
    with deployment.http() as client:
        body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
        refused = client.post(ASK, json={**body, "uniscale": {"budget": {"eflops": 1e12}}})
    assert refused.status_code == 400, refused.text
    assert (
        "budget.eflops: is given, but costs are in USD; give budget.usd" in refused.json()["error"]["message"]
    )
