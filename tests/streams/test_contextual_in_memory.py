"""The contextual policy in the running loop: prices, a prior, a control group, n answers; exact after a restart."""

import asyncio
from pathlib import Path

import numpy as np
import orjson
import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.exploration import Explored
from agents.bandit.features import COUNTS
from agents.bandit.history import History
from agents.bandit.learner import header, pack, unpack
from agents.bandit.prior import digest, teach
from agents.bandit.registry import build_policy
from agents.catalogue.file import load_catalogue
from agents.decider.decider import Decider
from agents.decider.repair import refused, repaired
from agents.decider.rows import Row
from agents.decider.snapshot import BEGINNING, is_prior, manifest_key
from agents.embedding import encoder_id
from agents.encoders import encoder_of
from agents.reward.comparison import Uplift
from schemas.answer import Answer
from schemas.control import CatalogueEntry
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import encode
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.services.decider import action_vectors, policy_of
from streams.settings import Settings
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
    send,
    served,
    snapshots,
    successor,
    worker_of,
)
from tests.support.encoders import Refusing


def decisions(cluster: Cluster) -> list[Decision]:
    return read(cluster, cluster.topics.decision, Decision)


def cohorts_in_metrics(cluster: Cluster) -> dict[str, int]:
    """Return how many queries of each cohort the aggregator counted."""
    counted = worker_of(cluster, "aggregator").metrics.cohort_queries
    return {name: int(counted.labels(name, "all")._value.get()) for name in ("policy", "control")}


def gain_in_metrics(cluster: Cluster) -> dict[str, float]:
    """Return the difference of accuracy that the aggregator shows, by bound."""
    shown = worker_of(cluster, "aggregator").metrics.uplift_accuracy
    return {bound: shown.labels(bound)._value.get() for bound in ("mean", "low", "high")}


async def test_targets_a_control_group_and_n_answers_through_the_loop(in_memory: InMemory, ask: Ask) -> None:
    options = {"control_share": 0.3, "control_action": "small/2/1/1", "control_salt": "s"}
    settings = in_memory(policy="contextual", policy_options=orjson.dumps(options).decode())
    targets: list[dict[str, float]] = [{"mean_cost": 3e9}, {"accuracy": 0.9}, {}, {"n": 2}]
    queries = [ask(n, **targets[n % 4]) for n in range(24)]

    async with running(settings) as cluster:
        for at in range(0, len(queries), 6):
            await served(cluster, *queries[at : at + 6])
    made = decisions(cluster)
    assert cluster.broker.records(cluster.topics.dead_letter) == []
    control = [d for d in made if d.cohort == "control"]
    assert control
    assert {d.action.id for d in control} == {"small/2/1/1"}
    assert {d.reason for d in control} == {"control"}
    # The two rounds of the warm-up belong to the policy; what it draws itself to try a model may be the control's.
    assert not any(d.randomised for d in made[:2])
    assert all(d.randomised for d in made[2:] if d.query.n == 1)
    assert all(
        d.objective.price > 0 for d in made[8:] if d.objective.kind == "mean_cost" and d.objective.price
    )
    wide = {d.query_id for d in made if d.query.n == 2}
    answers = {each.query_id: each for each in read(cluster, cluster.topics.answer, Answer)}
    assert all(answers[query_id].action.qp * answers[query_id].action.cp >= 2 for query_id in wide)
    assert any(len(answers[query_id].answers) == 2 for query_id in wide)
    counted, gain = cohorts_in_metrics(cluster), gain_in_metrics(cluster)
    drawn = {decision.query_id: decision.cohort for decision in made if decision.randomised}
    uplift = Uplift()
    for query_id, reward in closing(cluster).items():
        if query_id in drawn:
            cost = reward.price.cost if reward.price else None
            uplift.add(drawn[query_id], reward.status, correct=reward.correct, cost=cost)
    said = uplift.report()
    assert said["queries"] == counted
    assert counted["control"] == len(control)
    assert gain == pytest.approx(said["accuracy_difference"])
    assert gain["low"] < gain["mean"] < gain["high"]
    reproduced(cluster)


@pytest.fixture
def prior(in_memory: InMemory, tmp_path: Path) -> Path:
    """A prior for the deployment in memory, of made-up history."""
    settings = in_memory()
    encoder = encoder_of(settings.encoder)
    actions = action_vectors(load_catalogue(Path(settings.catalogue)), encoder)
    made = build_policy("contextual", query_dim=8, action_dim=8, encoder=encoder_id(encoder))
    assert isinstance(made, Contextual)
    made.offer(actions)
    rng, n = np.random.default_rng(0), len(actions)
    history = History(
        queries=rng.normal(size=(20, 8 + len(COUNTS))),
        question=np.repeat(np.arange(20), n),
        action=np.tile(np.arange(n), 20),
        correct=(rng.random(20 * n) < 0.5).astype(float),
        score=rng.random(20 * n),
        log_cost=rng.normal(22.0, 1.0, 20 * n),
        propensity=np.ones(20 * n),
    )
    path = tmp_path / "prior.bin"
    path.write_bytes(teach(made, history))
    return path


async def test_a_learner_begins_from_a_prior_and_its_log_gives_it_back(
    in_memory: InMemory, ask: Ask, prior: Path
) -> None:
    settings = in_memory(policy="contextual", warm_up=0, prior=str(prior), snapshot_every=15)
    async with running(settings) as cluster:
        await served(cluster, *(ask(n, mean_cost=3e9) for n in range(20)))
        state = decider_of(cluster).policy.state()
    assert decisions(cluster)[0].objective.price > 0  # history prices the first decision already
    decider = recovered(cluster)
    assert decider.prior == digest(prior.read_bytes())
    assert decider.policy.state() == state
    reproduced(cluster)


async def test_prior_is_used_without_a_model_the_encoder_refuses(
    in_memory: InMemory, ask: Ask, prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Refusing("large")
    monkeypatch.setattr("streams.services.decider.encoder_of", lambda settings: encoder)
    settings = in_memory(policy="contextual", warm_up=0, prior=str(prior), state_dir=str(tmp_path))
    async with running(settings) as cluster:
        await served(cluster, *(ask(n, mean_cost=3e9) for n in range(6)))
        assert {each.action.model for each in decisions(cluster)} == {"small"}
        encoder.models = ()
        await asyncio.sleep(31.0)
        await served(cluster, ask(6, pin_action="large/1/1/1"), *(ask(n) for n in range(7, 12)))
        assert cluster.deaths == []
        state = decider_of(cluster).policy.state()
    found = recovered(cluster)
    assert (found.prior, found.policy.state()) == (digest(prior.read_bytes()), state)
    reproduced(cluster)


CONTROL = '{"control_share": 0.5, "control_action": "small/2/1/1", "control_salt": "s"}'


async def test_later_control_group_keeps_the_learned_state(
    in_memory: InMemory, ask: Ask, prior: Path
) -> None:
    settings = in_memory(policy="contextual", warm_up=0, prior=str(prior))
    async with running(settings) as cluster:
        await served(cluster, *(ask(n) for n in range(6)))
        before = decider_of(cluster).policy
        async with successor(cluster, settings=settings.replace(policy_options=CONTROL)) as fresh:
            after = decider_of(fresh).policy
            assert isinstance(after, Explored)
            assert after.inner.state() == before.state()
            assert after.decisions >= after.warm_up
            assert decider_of(fresh).shares.window() == decider_of(cluster).shares.window()


@pytest.mark.parametrize("how", ["damaged", "other settings"])
async def test_decider_stops_without_the_prior_of_its_log(
    in_memory: InMemory, ask: Ask, prior: Path, how: str
) -> None:
    settings = in_memory(policy="contextual", warm_up=0, prior=str(prior))
    async with running(settings) as cluster:
        await served(cluster, *(ask(n) for n in range(6)))
        if how == "damaged":
            (key,) = (key for key in snapshots(cluster) if is_prior(key) and key.endswith(b"/0"))
            value = bytearray(snapshots(cluster)[key])
            value[500] ^= 1
            cluster.broker.append(cluster.topics.snapshot, key, bytes(value), 0)
        else:
            settings = settings.replace(policy_options='{"query_rank": 12}')
        policy = policy_of(settings, encoder_of(settings.encoder))
        (found,) = refused(learner_log(cluster), snapshots(cluster), policy.load)
        assert (found.key, found.among_snapshots) == (manifest_key(BEGINNING), True)
        async with successor(cluster, settings=settings) as fresh:
            await fresh.until(lambda: bool(fresh.deaths))
            said = str(fresh.deaths[0])
        records, _ = repaired(Decider(policy), learner_log(cluster), snapshots(cluster), (), 1 << 20)
        repaired_log = {key: value for key, value in (snapshots(cluster) | dict(records)).items() if value}
        decider = Decider(policy_of(settings, encoder_of(settings.encoder)))
        decider.recover((), repaired_log.items())
        assert decider.seq == decider_of(cluster).seq, "`learner repair` goes on without the prior"
    assert "snapshot -1 chunk 0 sha256" in said if how == "damaged" else "snapshot -1 state settings" in said
    assert "the learner began from this prior" in said


async def ended(settings: Settings, query: Query) -> str:
    """Return why the decider ends at every start, once it has ended three times and decided nothing."""
    async with running(settings) as cluster:
        send(cluster, query)
        await cluster.until(lambda: len(cluster.deaths) == 3)
    assert decisions(cluster) == []
    return str(cluster.deaths[-1])


async def test_unfit_prior_stops_the_service_before_it_decides(
    in_memory: InMemory, ask: Ask, prior: Path
) -> None:
    settings = in_memory(policy="contextual", warm_up=0, prior=str(prior))
    narrow = settings.replace(policy_options='{"query_rank": 12}')
    assert "query_rank is 48, this deployment has 12" in await ended(narrow, ask(1))
    pricing = load_catalogue(Path(settings.catalogue)).cost_basis | {"hardware.intensity": 1.5}
    meta, arrays = unpack(prior.read_bytes(), *header(prior.read_bytes()))
    prior.write_bytes(pack(*header(prior.read_bytes()), meta | {"pricing": pricing}, arrays))
    said = await ended(settings, ask(1))
    assert "catalogue: hardware.intensity is 1.5, this deployment has" in said


async def test_prior_is_used_after_a_model_was_removed(in_memory: InMemory, ask: Ask, prior: Path) -> None:
    settings = in_memory(policy="contextual", prior=str(prior))
    cluster, gone = Cluster(settings, SERVICES), CatalogueEntry(name="large", op="remove")
    cluster.produce(cluster.topics.control, gone.key.encode(), encode(gone))
    await cluster.up()
    await served(cluster, *(ask(n) for n in range(4)))
    await cluster.close()
    assert {each.action.model for each in decisions(cluster)} == {"small"}
    assert recovered(cluster).prior == digest(prior.read_bytes())
    reproduced(cluster)


@pytest.mark.parametrize(("rank", "fits"), [(48, True), (12, False)])
async def test_prior_of_a_catalogue_is_used_only_if_it_fits(
    in_memory: InMemory, ask: Ask, prior: Path, rank: int, fits: bool
) -> None:
    catalogue = prior.with_name("catalogue.yaml")
    catalogue.write_text(Path(in_memory().catalogue).read_text() + f"\nprior: {prior.name}\n")
    settings = in_memory(catalogue=str(catalogue), policy_options=f'{{"query_rank": {rank}}}', warm_up=2)

    async with running(settings) as cluster:
        await served(cluster, *(ask(n) for n in range(4)))
    reasons = {each.reason for each in decisions(cluster)}
    assert ("warm-up" in reasons) is not fits, "every model of a prior is known"
    assert recovered(cluster).prior == (digest(prior.read_bytes()) if fits else "")


async def test_unlearnable_query_is_priced_and_changes_no_policy(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    settings = in_memory(policy="contextual")
    plain = [ask(n, mean_cost=3e9) for n in range(12)]
    baselines = [ask(n, query_id=f"baseline-{n}", pin_action="large/2/1/1", learn=False) for n in range(12)]

    async with running(settings) as cluster:
        for at in range(0, 12, 4):
            await served(cluster, *plain[at : at + 4], *baselines[at : at + 4])
    rewards = closing(cluster)
    assert all(not rewards[q.query_id].learn and rewards[q.query_id].price is not None for q in baselines)
    rows, _ = reproduced(cluster)
    decided = [row for row in rows if isinstance(row, Row)]
    assert {row.query_id for row in decided if row.stage == "abandoned"} == {q.query_id for q in baselines}
    assert {row.query_id for row in decided if row.paced} == {q.query_id for q in plain}
    report = audited(cluster)
    assert report.discrepancies == []
    assert report.learner["updates"] == len(plain)
