"""Contexts and rewards over lists: decided once, learned once, whatever order they come in."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from agents.bandit.baselines import KNN, MLP, NetworkSettings
from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.errors import CorruptState, DuplicateQuery, InvalidObservation, UnservedObjective
from agents.bandit.exploration import Explored
from agents.bandit.features import FeatureSettings
from agents.bandit.linucb import Discounted, LinUCB, LinUCBSettings, SlidingWindow, Thompson
from agents.bandit.pacing import Pacer
from agents.bandit.policy import ActionVector, Context, Objective, Prediction, Target
from agents.catalogue.action_space import ActionSpace
from agents.catalogue.control_state import ControlState
from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import ActionError, Catalogue, Model, Sampling
from agents.decider.decisions import DecisionResult
from agents.decider.rewards import RewardRules
from agents.decider.rows import OfferRow, Row, decode_row, without_question
from agents.decider.verify import load_replay, mismatches
from schemas.action import Action
from schemas.chat import Capability, ChatOptions
from schemas.decision import Decision
from schemas.objective import CostRange, Weights
from schemas.query import Message, Origin
from schemas.record import decode
from schemas.spent import Spent
from tests.support.shard import Shard
from tests.support.worlds import unit

MAKERS: dict[str, Callable[[Any], Any]] = {
    "linucb": LinUCB,
    "linucb-decided": lambda f: LinUCB(f, LinUCBSettings(widths="decided")),
    "linucb-scalar": lambda f: LinUCB(f, LinUCBSettings(reward="scalar")),
    "thompson": lambda f: Thompson(f, propensity_draws=16),
    "knn": KNN,
    "mlp": lambda f: MLP(f, NetworkSettings(hidden=6, iterations=3)),
    "window": lambda f: SlidingWindow(f, window=12),
    "discounted": lambda f: Discounted(f, gamma=0.98),
    "warm-up": lambda f: Explored(LinUCB(f), floor=0.2, warm_up=5),
    "contextual": lambda _: Contextual(ContextualFeatures(FeatureSettings(21, 10, query_rank=11))),
}


@pytest.fixture(params=MAKERS, ids=str)
def shard(request: pytest.FixtureRequest) -> Shard:
    return Shard(MAKERS[request.param])


@pytest.fixture
def plain_shard() -> Shard:
    return Shard(LinUCB)


def single_paths(catalogue: Catalogue) -> ActionSpace:
    """One plain chain of thought with each model."""
    return ActionSpace(tuple(Action(model=m, qp=1, cp=1, bs=1) for m in catalogue.model_names))


def live(shard: Shard, rounds: int = 8) -> list[Any]:
    """Run a mixed life: batches, two stages, defaults, failures, late corrections."""
    made = []
    for _ in range(rounds):
        made = shard.ask(*(shard.context() for _ in range(5)))
        two_stage, final, failed, silent, _ = made
        shard.tell(
            shard.reward(two_stage, "provisional"), shard.reward(final), shard.reward(silent, "provisional")
        )
        shard.tell(shard.reward(failed, "default", score=None, log_cost=None, status="failed"))
        shard.tell(shard.reward(two_stage, "correction"), shard.reward(silent, "default"))
    return made


def test_a_decision_explains_itself(plain_shard: Shard) -> None:
    live(plain_shard)
    made = plain_shard.ask(plain_shard.context(weights=Weights(correct=1, score=1, cost=2)))[0]
    decision = decode(made.value, Decision)
    assert decision.score == pytest.approx(decision.mean + decision.width)
    assert len(decision.runners_up) == 3
    assert decision.candidates == 28
    assert decision.propensity == 1.0
    assert decision.policy.name == "linucb"
    assert decision.policy.version == plain_shard.decider.policy.version > 0
    assert decision.seq == plain_shard.decider.seq - 1
    assert decision.objective.weights.cost == 0.5
    assert decision.predicted is not None


@pytest.mark.parametrize("asked", [{"mean_cost": 1e10}, {"accuracy": 0.98}])
def test_an_aim_that_the_policy_cannot_meet_is_refused(plain_shard: Shard, asked: dict[str, Any]) -> None:
    (made,) = plain_shard.ask(plain_shard.context(**asked))
    assert isinstance(made.error, UnservedObjective)
    assert "policy 'linucb' cannot aim at it; ask for weights" in str(made.error)
    assert plain_shard.decider.seq == 0


def test_a_warm_up_does_not_switch_batches_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch costs one pass of BLAS; deciding one at a time costs a pass each, forever."""
    together, singly = (Shard(lambda f: Explored(LinUCB(f), warm_up=12)) for _ in range(2))
    calls: list[int] = []
    plain = together.decider.policy.predict

    def predict(contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Prediction]:
        calls.append(len(contexts))
        return plain(contexts, objectives, seed)

    monkeypatch.setattr(together.decider.policy, "predict", predict)
    for _ in range(4):
        contexts = [together.context() for _ in range(8)]
        made = together.ask(*contexts)
        alone = [singly.ask(context)[0] for context in contexts]
        for one, other in zip(made, alone, strict=True):
            first, second = decode(one.value, Decision), decode(other.value, Decision)
            assert (first.action, first.reason, first.seq) == (second.action, second.reason, second.seq)
    assert calls == [8, 8, 8, 8]


def test_n_answers_need_a_wide_search(plain_shard: Shard) -> None:
    for made in plain_shard.ask(*(plain_shard.context(n=16) for _ in range(8))):
        action = decode(made.value, Decision).action
        assert action.qp * action.cp >= 16
        assert decode(made.value, Decision).candidates == 18  # pairs with 16, 32 or 64 paths: 5 + 6 + 7


def test_sequence_numbers_have_no_gap_or_duplicate(shard: Shard) -> None:
    live(shard)
    rows = [r for r in (decode_row(k, v) for k, v in shard.table.items()) if isinstance(r, Row)]
    places = [r.seq for r in rows]
    for r in rows:
        places += {p for p in (r.learned_seq, r.corrected_seq, r.ended_seq) if p >= 0}
    assert sorted(places) == list(range(shard.decider.seq))
    assert sorted(r.clock for r in rows) == list(range(shard.decider.clock))


def test_recovery_equals_the_live_learner(shard: Shard) -> None:
    live(shard)
    before = shard.decider
    found = shard.crash()
    shard.same_as(before)
    assert (found.next_context, found.next_reward) == (before.context_offset + 1, before.reward_offset + 1)
    live(shard, 2)
    before = shard.decider
    shard.crash()
    shard.same_as(before)


def mixing(shard: Shard) -> None:
    """Run a life in which the catalogue becomes mixed twice, the second time between two decisions."""
    live(shard, 3)
    shard.mix()
    live(shard, 3)
    shard.mix(False)
    live(shard, 2)
    shard.mix()
    shard.mix(False)
    live(shard, 3)


def test_recovery_and_replay_agree_once_mixed(shard: Shard) -> None:
    mixing(shard)
    before = shard.decider
    shard.crash()
    shard.same_as(before)
    assert shard.decider.offered == before.offered
    rows = [decode_row(key, value) for key, value in shard.table.items()]
    assert list(mismatches(shard.policy(), rows, seed=7)) == []
    offers = sorted((row for row in rows if isinstance(row, OfferRow)), key=lambda row: row.seq)
    assert [row.mixed for row in offers] == [False, True, False, False]
    first, _, last = [row.seq for row in offers[1:]]
    assert [row.mixed_seq for row in offers] == [-1, first, first, last]


def joining(shard: Shard, at: int, base: str = "") -> None:
    """Let the model at this place of the catalogue join."""
    name = shard.catalogue.model_names[at]
    action = Action(model=name, qp=1, cp=1, bs=1)
    row = unit(shard.rng.normal(size=10) + 2.0)
    shard.vectors[action.id] = ActionVector(
        action.id, name, row, float(shard.catalogue.model(name).parameters), base
    )
    shard.use(ActionSpace((*shard.space, action)))


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_model_that_joins_is_on_record_as_one(snapshot: bool) -> None:
    shard = Shard(MAKERS["contextual"], models=2)
    live(shard, 3)
    joining(shard, 2)
    live(shard, 3)
    shard.reprice(2.0)
    if snapshot:
        shard.apply(shard.snapshot())
    before = shard.decider
    shard.crash()
    shard.same_as(before)
    assert before.policy.state() == shard.decider.policy.state()
    policy = shard.policy()
    rows, after = load_replay(policy, shard.table)
    assert list(mismatches(policy, rows, seed=7, after=after)) == []
    offers = sorted((row for row in rows if isinstance(row, OfferRow)), key=lambda row: row.seq)
    assert [row.newcomers for row in offers] == [(), (shard.catalogue.model_names[2],), ()]


def test_models_that_join_between_two_decisions_are_on_record() -> None:
    shard = Shard(MAKERS["contextual"], models=2)
    live(shard, 3)
    joining(shard, 2)
    joining(shard, 3)  # the row of this offer replaces the other's
    live(shard, 3)
    before = shard.decider
    shard.crash()
    assert before.policy.state() == shard.decider.policy.state()
    policy = shard.policy()
    rows, after = load_replay(policy, shard.table)
    assert list(mismatches(policy, rows, seed=7, after=after)) == []
    assert {name for row in rows if isinstance(row, OfferRow) for name in row.newcomers} == set(
        shard.catalogue.model_names[2:4]
    )


def test_recovery_takes_a_refit_around_which_efforts_joined() -> None:
    """It adds all actions at once, and then the efforts' features come last."""
    shard = Shard(MAKERS["contextual"], models=2)
    live(shard, 3)
    joining(shard, 2, base="one")
    live(shard, 5)
    joining(shard, 3, base="two")
    live(shard, 1)
    before = shard.decider.policy
    shard.crash()
    recovered = shard.decider.policy
    assert isinstance(before, Contextual)
    assert isinstance(recovered, Contextual)
    assert [name for name in before.features.names if name.startswith("effort")] != []
    assert recovered.features.names == before.features.names
    assert dict(recovered.refits.results) == {}, "none had to be estimated again"


def test_log_of_another_encoder_is_refused() -> None:
    shard = Shard(MAKERS["contextual"], models=2, encoder="one@1/12")
    live(shard, 3)
    for _ in range(2):
        for encoder, wrong in (("one@1/12", False), ("two@1/12", True)):
            shard.options["encoder"] = encoder
            with pytest.raises(CorruptState, match="encoder: found 'one@1/12'") if wrong else nullcontext():
                shard.crash()
        shard.options["encoder"] = "one@1/12"
        shard.crash()
        shard.apply(shard.snapshot())


def test_snapshot_knows_that_scores_were_distrusted() -> None:
    shard = Shard(MAKERS["contextual"], models=3)
    mixing(shard)
    shard.apply(shard.snapshot())
    before = shard.decider
    shard.crash()
    shard.same_as(before)
    assert before.policy.state() == shard.decider.policy.state()


def test_every_decision_is_reproduced_from_the_log(shard: Shard) -> None:
    live(shard, 4)
    shard.use(ActionSpace((*shard.space, *list(single_paths(shard.catalogue))[1:])))
    live(shard, 3)
    shard.use(single_paths(shard.catalogue))
    shard.environment = replace(shard.environment, living=frozenset(shard.space.models[1:4]))
    live(shard, 3)
    shard.ask(
        shard.context(pin_action=shard.space[2].id), shard.context(allowed_models=shard.space.models[2:3])
    )
    rows = [decode_row(key, value) for key, value in shard.table.items()]
    assert list(mismatches(shard.policy(), rows, seed=7)) == []


def test_model_with_too_short_a_context_is_left_out() -> None:
    shard = Shard(MAKERS["contextual"], models=3, pairs=((1, 1),))
    first, second, _ = shard.space.models
    models = [
        msgspec.structs.replace(
            model,
            engine=msgspec.structs.replace(
                model.engine, context_tokens={first: 100, second: 200}.get(model.name, 4096)
            ),
        )
        for model in shard.catalogue.models
    ]
    catalogue = msgspec.structs.replace(shard.catalogue, models=tuple(models))
    shard.environment = replace(shard.environment, control=ControlState.of(catalogue))

    def left_out(size: int, **query: Any) -> tuple[tuple[str, ...], int]:
        """Return the models left out, and how many actions are left."""
        [made] = shard.ask(shard.context(text="é" * (size // 2), **query))
        decision = decode(made.value, Decision)
        return decision.short_models, decision.candidates

    assert left_out(300) == ((), 3)
    assert left_out(302) == ((first,), 2)
    assert left_out(602) == ((first, second), 1)
    assert left_out(302, allowed_models=(first,)) == ((), 1), "better tried than refused"
    assert left_out(302, pin_action=f"{first}/1/1/1") == ((), 1)
    rows = [decode_row(key, value) for key, value in shard.table.items()]
    assert list(mismatches(shard.policy(), rows, seed=7)) == []
    shard.environment = replace(shard.environment, living=frozenset({first}))
    assert left_out(302) == ((), 1)


def test_a_query_is_decided_among_models_with_what_it_requires() -> None:
    shard = Shard(MAKERS["contextual"], models=3, pairs=((1, 1), (4, 1)))
    first, second, third = shard.space.models
    hosted = Endpoint(kind="chat", url="http://hosted", model="hosted", sampling=False)

    def able(model: Model) -> Model:
        if model.name == third:
            return model
        declared: tuple[Capability, ...] = ("tools",) if model.name == first else ()
        sampling = Sampling(temperature=1.0, step_tokens=hosted.max_output_tokens, depth_limit=1)
        return msgspec.structs.replace(model, endpoint=hosted, sampling=sampling, capabilities=declared)

    models = tuple(map(able, shard.catalogue.models))
    catalogue = msgspec.structs.replace(shard.catalogue, models=models)
    shard.environment = replace(shard.environment, control=ControlState.of(catalogue))

    def made(**query: Any) -> Decision:
        [decided] = shard.ask(shard.context(**query))
        return decode(decided.value, Decision)

    tools = ChatOptions(tools=({"type": "function", "function": {"name": "add"}},))
    of_tools = made(options=tools)
    assert (of_tools.required, of_tools.unable_models) == (("tools",), (second, third))
    assert (str(of_tools.action), of_tools.candidates) == (f"{first}/1/1/1", 1)
    warm = made(options=ChatOptions(temperature=0.5))
    assert (warm.required, warm.unable_models, warm.candidates) == (("sampling",), (first, second), 2)
    cold = made(options=ChatOptions(temperature=0.0))
    assert (cold.required, str(cold.action)) == (("sampling", "greedy"), f"{third}/1/1/1")
    assert made(options=ChatOptions(temperature=0.0), n=2).required == ("sampling",)
    assert made().unable_models == ()
    for query, why in (
        ({"options": tools, "allowed_models": (second,)}, r"^tools is asked for.*capabilities: \[tools\]"),
        ({"options": tools, "pin_action": f"{third}/1/1/1"}, "^tools is asked for"),
        ({"options": tools, "pin_action": f"{first}/4/1/1"}, "one sample"),
        ({"options": ChatOptions(presence_penalty=1.0)}, "^presence_penalty is asked for.*leave it out"),
    ):
        [refused] = shard.ask(shard.context(**query))
        assert re.search(why, str(refused.error)), refused.error
    rows = [decode_row(key, value) for key, value in shard.table.items()]
    assert list(mismatches(shard.policy(), rows, seed=7)) == []
    shard.environment = replace(shard.environment, living=frozenset({second, third}))
    [waiting] = shard.ask(shard.context(options=tools))
    assert f"no executor is running for {first}" in str(waiting.error)


def account_of(shard: Shard, decided: DecisionResult) -> Any:
    """Return the account that a decision counts in."""
    target = Target.of(shard.entry(decided.query_id).objective, "")
    assert target is not None
    return shard.decider.policy.pacer.status(target)


def test_account_counts_corrections_not_imputed_scores() -> None:
    shard = Shard(MAKERS["contextual"], models=2, pairs=((1, 1),))
    for _ in range(30):
        [made] = shard.ask(shard.context(accuracy=0.9))
        shard.tell(shard.reward(made, "provisional", score=0.2))
        shard.tell(shard.reward(made, "correction", correct=1.0))
    [made] = shard.ask(shard.context(accuracy=0.9))
    shard.tell(shard.reward(made, "provisional", score=0.2))
    account = account_of(shard, made)
    pacer = shard.decider.policy.pacer
    assert isinstance(pacer, Pacer)
    (kept,) = pacer.accounts.values()
    assert (account.correct, kept.known) == (1.0, 30)
    shard.crash()
    assert account_of(shard, made) == account


def test_cancelled_search_is_charged_to_its_tenants_account() -> None:
    shard = Shard(MAKERS["contextual"], models=2, pairs=((1, 1),))
    for _ in range(10):
        [made] = shard.ask(shard.context(mean_cost=1e13))
        [one] = shard.tell(shard.reward(made, "default", score=None, log_cost=31.0, status="cancelled"))
        assert one.verdict == "abandoned"
    account = account_of(shard, made)
    assert account.mean_cost == pytest.approx(np.exp(31.0))
    assert account.correct is None
    shard.crash()
    assert account_of(shard, made) == account


def test_a_forged_decision_is_found(plain_shard: Shard) -> None:
    live(plain_shard, 4)
    rows = [decode_row(key, value) for key, value in plain_shard.table.items()]
    victim = next(r for r in rows if isinstance(r, Row) and r.seq > 20)
    decision = decode(bytes(victim.decision), Decision)
    other = next(a for a in plain_shard.space if a.id != decision.action.id)
    forged = msgspec.structs.replace(decision, action=other)
    rows[rows.index(victim)] = msgspec.structs.replace(
        victim, decision=msgspec.Raw(msgspec.json.encode(forged))
    )
    found = list(mismatches(plain_shard.policy(), rows, seed=7))
    assert [(m.query_id, m.field) for m in found][:1] == [(victim.query_id, "action")]


def test_redelivered_context_resends_the_same_bytes(shard: Shard) -> None:
    context = shard.context()
    first, twin = shard.ask(context, context)
    assert twin.value == first.value
    assert twin.resent
    live(shard, 3)
    state, seq = shard.decider.policy.state(), shard.decider.seq
    again = shard.ask(context)[0]
    assert again.resent
    assert (again.value, again.group) == (first.value, first.group)
    assert (shard.decider.policy.state(), shard.decider.seq) == (state, seq)


def test_a_decision_says_what_it_took_and_depends_on_no_time(shard: Shard) -> None:
    def timed(seconds: float, before: Spent) -> tuple[Any, Decision]:
        one = Shard(shard.make_policy)
        context, origin = one.context("q")
        asked = (msgspec.structs.replace(context, spent=before), origin)
        ticks = itertools.count(step=seconds)
        (made,) = one.decider.decide([asked], one.row, one.environment, lambda: next(ticks))
        one.table |= [made.row]
        assert one.ask((context, origin))[0].value == made.value, "whatever its Context says the second time"
        rows = [decode_row(key, value) for key, value in one.table.items()]
        assert list(mismatches(one.policy(), rows, seed=7)) == []
        return one, decode(made.value, Decision)

    (one, first), (two, second) = (
        timed(0.25, Spent(admission_s=0.5)),
        timed(3.0, Spent(admission_s=60.0, embed_s=9.0)),
    )
    assert first.spent == Spent(admission_s=0.5, decide_s=0.25)
    assert second.spent == Spent(admission_s=60.0, embed_s=9.0, decide_s=3.0)
    assert msgspec.structs.replace(second, spent=first.spent) == first
    assert one.decider.policy.state() == two.decider.policy.state()


def test_a_second_query_with_a_taken_id_is_refused(plain_shard: Shard) -> None:
    plain_shard.ask(plain_shard.context("twice"))
    refused = plain_shard.ask(plain_shard.context("twice"))[0]
    assert isinstance(refused.error, DuplicateQuery)
    assert "send a new id" in str(refused.error)


def test_one_bad_context_of_a_batch_is_refused_alone(shard: Shard) -> None:
    bad_pin = shard.context(pin_action="nobody/1/1/1")
    short, origin = shard.context()
    short = msgspec.structs.replace(short, embedding=short.embedding[:8])
    zero, zero_origin = shard.context()
    zero = msgspec.structs.replace(zero, embedding=np.zeros(12, "<f4").tobytes())
    made = shard.ask(shard.context(), bad_pin, (short, origin), (zero, zero_origin), shard.context())
    errors = [type(d.error) for d in made]
    assert errors == [type(None), ActionError, InvalidObservation, InvalidObservation, type(None)]
    assert shard.decider.clock == 2


def test_a_vector_of_another_encoder_is_refused() -> None:
    shard = Shard(LinUCB)
    shard.decider.encoder = "minilm"
    assert "embed the query with 'minilm'" in str(shard.ask(shard.context())[0].error)


def test_duplicate_late_and_orphan_rewards_change_nothing(shard: Shard) -> None:
    made = shard.ask(*(shard.context() for _ in range(3)))
    first, correction = shard.reward(made[0], "provisional"), shard.reward(made[0], "correction")
    final, default = shard.reward(made[1]), shard.reward(made[2], "default")
    shard.tell(first, correction, final, default)
    state = shard.decider.policy.state()
    stranger = msgspec.structs.replace(final[0], query_id="nobody", reward_id="nobody/final")
    wrong_seq = msgspec.structs.replace(final[0], seq=99)
    told = shard.tell(
        first, correction, final, default,
        shard.reward(made[1], "provisional"), shard.reward(made[2], "correction"),
        (stranger, 50), (wrong_seq, 51),
    )  # fmt: skip
    verdicts = [one.verdict for one in told]
    assert verdicts == ["duplicate"] * 4 + ["late"] * 2 + ["orphan"] * 2
    assert not any(one.rows for one in told)
    assert shard.decider.policy.state() == state
    assert shard.decider.verdicts["orphan"] == 2


def test_contradicting_reward_is_ignored_and_reported(shard: Shard) -> None:
    (made,) = shard.ask(shard.context())
    shard.tell(final := shard.reward(made, correct=1.0))
    state = shard.decider.policy.state()
    for change in ({"correct": 0.0}, {"score": 0.123}, {"log_cost": 20.5}):
        other = msgspec.structs.replace(final[0], **change)
        (told,) = shard.tell((other, 51))
        assert (told.verdict, told.rows) == ("differs", ())
    assert shard.decider.policy.state() == state


def test_a_correction_that_overtakes_its_provisional_counts_once(plain_shard: Shard) -> None:
    made = plain_shard.ask(plain_shard.context())[0]
    first = plain_shard.reward(made, "provisional")
    second = plain_shard.reward(
        made, "correction", score=first[0].score, log_cost=first[0].log_cost, correct=1.0
    )
    verdicts = [one.verdict for one in plain_shard.tell(second, first)]
    assert verdicts == ["learned", "late"]
    ordered = Shard(LinUCB)
    ordered.ask(ordered.context())
    ordered.tell(first, second)
    theta = plain_shard.linucb.gram.theta
    assert np.allclose(theta, ordered.linucb.gram.theta, atol=1e-12)


def test_two_stages_equal_one() -> None:
    """Imputed, then corrected: as if correctness had been known at once."""
    staged, known = Shard(LinUCB), Shard(LinUCB)
    for _ in range(12):
        contexts = [staged.context() for _ in range(4)]
        one, two = staged.ask(*contexts), known.ask(*contexts)
        finals = [known.reward(decided) for decided in two]
        terms = [{"score": f.score, "log_cost": f.log_cost} for f, _ in finals]
        early = [staged.reward(d, "provisional", **t) for d, t in zip(one, terms, strict=True)]
        late = [
            staged.reward(d, "correction", correct=f.correct, **t)
            for d, t, (f, _) in zip(one, terms, finals, strict=True)
        ]
        staged.tell(*early)
        staged.tell(*reversed(late))
        known.tell(*finals)
    a, b = staged.linucb.gram, known.linucb.gram
    assert np.allclose(a.theta, b.theta, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("rules", "entered"),
    [
        (RewardRules(), 0.25),
        (RewardRules(impute=0.5), 0.5),
        (RewardRules(default="wrong"), 0.0),
        (RewardRules(default="drop"), None),
    ],
)
def test_a_reward_that_never_comes_is_resolved_by_the_rules(
    rules: RewardRules, entered: float | None
) -> None:
    shard = Shard(LinUCB, rules=rules)
    made = shard.ask(shard.context())[0]
    shard.tell(shard.reward(made, "default", score=0.25))
    total = shard.linucb.gram.b[:, 0]
    x = shard.linucb.rows([shard.entry(made.query_id).observation("reward")])[0][0]
    assert np.allclose(total, 0.0 if entered is None else entered * x)
    assert shard.decider.policy.version == (0 if entered is None else 1)


def test_default_wrong_corrects_what_was_imputed() -> None:
    shard = Shard(LinUCB, rules=RewardRules(default="wrong"))
    made = shard.ask(shard.context())[0]
    verdicts = [
        one.verdict for one in shard.tell(shard.reward(made, "provisional"), shard.reward(made, "default"))
    ]
    assert verdicts == ["learned", "corrected"]
    assert np.allclose(shard.linucb.gram.b[:, 0], 0.0)


def test_an_implausible_price_is_refused_before_anything_changes(shard: Shard) -> None:
    made = shard.ask(shard.context())[0]
    state, table = shard.decider.policy.state(), dict(shard.table)
    told = shard.tell(shard.reward(made, log_cost=1e9))[0]
    assert isinstance(told.error, InvalidObservation)
    assert told.error.field == "log_cost"
    assert (shard.decider.policy.state(), shard.table) == (state, table)
    assert shard.tell(shard.reward(made))[0].verdict == "learned"


def test_removed_models_learn_and_are_not_chosen_after_recovery(shard: Shard) -> None:
    made = live(shard, 3)
    shard.use(single_paths(shard.catalogue))
    shard.crash()
    chosen = shard.ask(*(shard.context() for _ in range(12)))
    space = {action.id for action in shard.space}
    assert {decode(d.value, Decision).action.id for d in chosen} <= space
    assert shard.tell(shard.reward(made[4]))[0].verdict == "learned"


def test_a_context_lies_where_its_row_says(plain_shard: Shard) -> None:
    made = plain_shard.ask(plain_shard.context())[0]
    row = plain_shard.entry(made.query_id)
    assert row.context_origin == Origin(topic="context", partition=0, offset=0)
    assert made.value is not None
    assert bytes(row.decision) == without_question(decode(made.value, Decision))


def test_the_row_of_a_question_of_a_megabyte_does_not_hold_it(plain_shard: Shard) -> None:
    long = "why? " * 200_000
    messages = (Message(role="user", content=long),)
    context = plain_shard.context(text=None, messages=messages, reference="r" * 200_000, metadata={"m": "m"})
    [made] = plain_shard.ask(context)
    assert len(made.value) > 1_200_000
    assert len(plain_shard.row(made.query_id)) < 20_000
    plain_shard.crash()
    [again] = plain_shard.ask(context)
    assert again.value == made.value, "the Decision is the same to the byte"


@pytest.mark.parametrize("name", MAKERS)
def test_unscored_answer_is_learned_by_its_correctness(name: str) -> None:
    """Without either its cost alone is learned, under any rules, and the log folds to what the live run made of it."""
    shard = Shard(MAKERS[name], rules=RewardRules(default="wrong"))
    live(shard, 4)
    right, awaited, unknown = shard.ask(shard.context(), shard.context(), shard.context())
    unscored = {"score": None, "unscored": True}
    told = shard.tell(
        shard.reward(right, "final", correct=1.0, **unscored),
        shard.reward(awaited, "provisional", **unscored),
        shard.reward(awaited, "correction", correct=0.25, **unscored),
        shard.reward(unknown, "default", **unscored),
    )
    assert [one.verdict for one in told] == ["learned", "unlearnable", "learned", "priced"]
    terms = [
        (row.stage, row.entered, row.score)
        for row in (shard.entry(d.query_id) for d in (right, awaited, unknown))
    ]
    assert terms == [("closed", 1.0, 1.0), ("closed", 0.25, 0.25), ("priced", None, 0.0)]
    before = shard.decider
    shard.crash()
    shard.same_as(before)


def test_a_cost_in_another_unit_is_not_taken_for_eflops(plain_shard: Shard) -> None:
    [made] = plain_shard.ask(plain_shard.context())
    reward, at = plain_shard.reward(made, log_cost=-7.0)
    dollars = CostRange(low=1e-4, high=1e-2, unit="usd")
    reward = msgspec.structs.replace(
        reward, objective=msgspec.structs.replace(reward.objective, cost_range=dollars)
    )
    version = plain_shard.decider.policy.version
    assert plain_shard.tell((reward, at))[0].verdict == "abandoned"
    assert plain_shard.decider.policy.version == version


@pytest.mark.parametrize("name", MAKERS)
def test_answer_cut_by_its_client_teaches_its_cost_alone(name: str) -> None:
    """Only the cost may be learned, and the log folds to what the live run made of it."""
    shard = Shard(MAKERS[name], rules=RewardRules(default="wrong"))
    live(shard, 4)
    made = shard.ask(shard.context(), shard.context())
    version = shard.decider.policy.version
    rewards = [shard.reward(each, "default", bounded=True, score=0.9) for each in made]
    told = shard.tell(*rewards)
    assert [one.verdict for one in told] == ["priced", "priced"]
    rows = [shard.entry(each.query_id) for each in made]
    assert {(row.stage, row.correct, row.entered, row.learned_seq) for row in rows} == {
        ("priced", None, None, -1)
    }
    assert shard.decider.policy.version == version
    assert shard.tell(rewards[0])[0].verdict == "duplicate"
    live(shard, 2)
    before = shard.decider
    shard.crash()
    shard.same_as(before)


@pytest.mark.parametrize("name", ["linucb", "thompson"])
def test_model_that_never_answers_is_soon_avoided(name: str) -> None:
    """A small cost, predicted from nothing, would make its failures earn more than what others answer."""
    shard, chosen = Shard(MAKERS[name], models=2, pairs=((1, 1),)), []
    failing = shard.space.models[1]
    for _ in range(90):
        [made] = shard.ask(shard.context())
        chosen.append(decode(made.value, Decision).action.model)
        ended: dict[str, Any] = {
            "fault": "model",
            "correct": 0.0,
            "score": None,
            "status": "failed",
            "log_cost": None,
        }
        shard.tell(shard.reward(made, **(ended if chosen[-1] == failing else {})))
    assert chosen.count(failing) > 0
    assert chosen[-30:].count(failing) <= 3


@pytest.mark.parametrize("name", MAKERS)
def test_model_failure_teaches_a_wrong_answer_and_no_cost(name: str) -> None:
    """The log folds to what the live run made of it, and reproduces every decision."""
    shard = Shard(MAKERS[name], rules=RewardRules(default="drop"))
    live(shard, 4)
    tried, silent, taken = shard.ask(*(shard.context(tenant=who) for who in ("a", "a", "b")))
    version = shard.decider.policy.version
    failure: dict[str, Any] = {"fault": "model", "correct": 0.0, "score": None, "status": "failed"}
    told = shard.tell(
        shard.reward(tried, **failure, log_cost=3.0),
        shard.reward(silent, **failure, log_cost=None, learn=False),
        shard.reward(taken, **failure, log_cost=None),
    )
    assert [one.verdict for one in told] == ["failed", "abandoned", "failed"]
    assert shard.decider.policy.version == version + 2
    row = shard.entry(tried.query_id)
    assert (row.stage, row.correct, row.score, row.log_cost) == ("failed", 0.0, 0.0, 0.0)
    assert row.paid == pytest.approx(np.exp(3.0)), "its account pays"
    seen = row.observation("failure")
    assert seen.log_cost == pytest.approx(np.log(row.objective.cost_range.high))
    earned = seen.objective.reward(seen.entered, seen.score, seen.log_cost)
    assert earned == pytest.approx(0.0, abs=1e-12), "under any weights"
    assert (seen.correct, seen.paid, seen.seq) == (0.0, row.paid, row.learned_seq)
    assert shard.tell(shard.reward(tried, **failure, log_cost=3.0))[0].verdict == "duplicate"
    live(shard, 2)
    before = shard.decider
    shard.crash()
    shard.same_as(before)
    rows = [decode_row(key, value) for key, value in shard.table.items()]
    assert list(mismatches(shard.policy(), rows, 7)) == []
    shard.apply(shard.snapshot())
    live(shard, 2)
    before = shard.decider
    shard.crash()
    shard.same_as(before)
