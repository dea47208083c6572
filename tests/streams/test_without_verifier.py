"""Deployments in which not every model has the verifier: what runs, and what the learner's rows say."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.answer import Answer
from schemas.decision import Decision
from schemas.record import encode
from schemas.reward import Feedback, Reward
from schemas.search import SearchStep
from streams.control_follower import Control, mixed_in_words
from streams.settings import Settings
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    answered,
    closing,
    decider_of,
    learner_rows,
    read,
    recovered,
    reproduced,
    running,
    send,
    served,
)
from tests.support.recorded import CATALOGUE


def without(in_memory: InMemory, folder: Path, *models: str, **fields: Any) -> Settings:
    """Return settings whose catalogue has no verifier for these models; for none at all, where no model is named."""
    content = yaml.safe_load(CATALOGUE)
    for entry in content["models"]:
        if entry["name"] in models:
            entry["verifier"] = "none"
    if not models:
        content |= {"verifier": "none", "verifiers": []}
    (folder / "catalogue.yaml").write_text(yaml.safe_dump(content))
    few = {"parallelism": "1/1,4/1,1/4", "policy": "contextual", "prior": "none"}
    return in_memory(catalogue=str(folder / "catalogue.yaml"), **{**few, **fields})


async def test_scores_stay_out_of_correctness_without_a_verifier(
    in_memory: InMemory, ask: Ask, audited: Audit, tmp_path: Path
) -> None:
    """Half of the traffic has no reference, and a third of that gets a grade."""
    async with running(without(in_memory, tmp_path, "small"), seed=3) as cluster:
        await served(cluster, ask(0, query_id="first"))  # until something is graded, the baseline answers
        unknown = {"reference": None, "feedback_wait_s": 60.0}
        queries = [ask(at % 12, query_id=f"q{at}", **({} if at % 2 else unknown)) for at in range(48)]
        send(cluster, *queries)
        await cluster.until(lambda: len(answered(cluster)) == 49)
        graded = {f"q{at}" for at in range(0, 48, 6)}
        for query_id in sorted(graded):
            told = Feedback(query_id=query_id, correct=0.25)
            cluster.produce(cluster.topics.feedback, query_id.encode(), encode(told))
        await cluster.until(lambda: len(closing(cluster)) == 49 and not cluster.busy, timeout_s=600)
        rows = {row.query_id: row for row in learner_rows(cluster) if row.query_id != "first"}
        rewards = closing(cluster)
        audited(cluster)
        reproduced(cluster)
        assert decider_of(cluster).policy.state() == recovered(cluster).policy.state()
    decisions = read(cluster, cluster.topics.decision, Decision)
    assert {each.verified for each in decisions} == {"some"}
    assert {each.action.model for each in decisions} == {"small", "large"}
    assert {each.action.cp for each in decisions if each.action.model == "small"} == {1}
    for query_id, row in rows.items():
        reward = rewards[query_id]
        if row.action.startswith("small"):
            assert reward.score is None, "nothing scores it"
        else:
            assert reward.score is not None
        if query_id in graded or int(query_id[1:]) % 2:
            assert (row.stage, row.score) == ("closed", row.correct), "Score learns what Correct does"
            assert row.correct == (0.25 if query_id in graded else reward.correct)
        else:
            assert (row.stage, row.correct, row.entered, row.score) == ("priced", None, None, 0.0)
            assert (reward.graded_by, reward.verified, reward.cost_only) == ("", "some", True)


async def test_without_any_verifier_whole_searches_run_in_the_executor(
    in_memory: InMemory, ask: Ask, audited: Audit, tmp_path: Path
) -> None:
    async with running(without(in_memory, tmp_path)) as cluster:
        four = ask(1, query_id="q1", pin_action="large/4/1/1")
        await served(cluster, ask(0), four, ask(2, reference=None))
        answers = {each.query_id: each for each in read(cluster, cluster.topics.answer, Answer)}
        rows = {row.query_id: row for row in learner_rows(cluster)}
        audited(cluster)
    assert not read(cluster, cluster.topics.search_step, SearchStep)
    assert {each.score for each in answers.values()} == {None}
    voted = answers["q1"]
    assert (voted.status, voted.completed, len(voted.path)) == ("ok", 4, voted.depth)
    rewards = {each.query_id: each for each in read(cluster, cluster.topics.reward, Reward)}
    assert {each.verified for each in rewards.values()} == {"none"}
    for query_id, reward in rewards.items():
        assert reward.price is not None
        assert reward.price.cost > 0
        assert reward.price.verifier_eflops == 0, query_id
    assert (rows["q0"].stage, rows["q2"].stage) == ("closed", "priced")
    assert rows["q0"].score == rows["q0"].correct


async def test_a_model_of_which_only_costs_are_known_counts_as_tried(
    in_memory: InMemory, ask: Ask, tmp_path: Path
) -> None:
    """Else every query were a trial of some model, for as long as nobody grades any more."""
    async with running(without(in_memory, tmp_path)) as cluster:
        await served(cluster, ask(0))
        for at in range(1, 12):
            await served(cluster, ask(at, reference=None))
        reasons = [each.reason for each in read(cluster, cluster.topics.decision, Decision)]
    assert reasons[-4:] == ["policy"] * 4, reasons


@pytest.mark.parametrize("policy", ["contextual", "linucb"])
async def test_baseline_answers_until_the_first_grade(
    in_memory: InMemory,
    ask: Ask,
    audited: Audit,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    policy: str,
) -> None:
    caplog.set_level("INFO")
    options = {"policy": policy, "policy_options": {"control_action": "large/1/1/1"}}
    async with running(without(in_memory, tmp_path, **options)) as cluster:
        for at in range(8):
            await served(cluster, ask(at, reference=None, query_id=f"ungraded{at}"))
        await served(cluster, ask(8, query_id="pinned", reference=None, pin_action="small/1/1/1"))
        await served(cluster, ask(8, query_id="other", reference=None, allowed_models=("small",)))
        assert not decider_of(cluster).policy.graded, "costs say nothing of what is right"
        await served(cluster, ask(9, query_id="graded"))
        for at in range(10, 40):
            await served(cluster, ask(at % 12, query_id=f"later{at}"))
        audited(cluster)
        reproduced(cluster)
        if policy == "contextual":  # the fold of `linucb` sums in another order
            assert decider_of(cluster).policy.state() == recovered(cluster).policy.state()
        decisions = {each.query_id: each for each in read(cluster, cluster.topics.decision, Decision)}
    at_baseline = {name: each for name, each in decisions.items() if each.reason == "baseline"}
    assert set(at_baseline) == {*(f"ungraded{at}" for at in range(8)), "graded"}
    assert {(each.action.id, each.propensity, each.cohort) for each in at_baseline.values()} == {
        ("large/1/1/1", 1.0, "policy")
    }
    assert decisions["pinned"].reason == "pinned"
    assert decisions["other"].action.model == "small"
    assert {each.action.model for name, each in decisions.items() if name.startswith("later")} == {
        "small",
        "large",
    }
    assert "every query gets the baseline, large/1/1/1" in caplog.text
    assert "from now on the policy decides" in caplog.text


def test_a_catalogue_says_in_words_that_no_score_stands_in(in_memory: InMemory, tmp_path: Path) -> None:
    assert mixed_in_words(Control(in_memory()).catalogue) == ""
    mixed = mixed_in_words(Control(without(in_memory, tmp_path, "small")).catalogue)
    assert "do not all have the same verifier" in mixed
    none = Control(in_memory(verifier="none")).catalogue
    assert (none.verified, none.scoring) == ("none", ())
    assert "no model of the catalogue has a verifier" in mixed_in_words(none)
