"""What a request shows: lists named by the operator, kept in Decision and row, the same after a recovery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.features import FeatureSettings
from agents.decider.categories import NO_KEYS, ContextKeys, ContextKeysRefused, categories_of
from agents.decider.verify import load_replay, mismatches
from schemas.chat import ChatOptions
from schemas.decision import Decision
from schemas.query import Message, Query
from schemas.record import decode
from streams.settings import Settings, SettingsError
from tests.support.shard import Shard

KEYS = ContextKeys.of({"route": ["chat", "code"], "task": ["sum"]})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"gateway": ["a"]}, "gateway is where the gateway keeps its own data"),
        ({"request.turns": ["a"]}, "may not start with 'request.'"),
        ({"a=b": ["a"]}, "contain '='"),
        ({"": ["a"]}, "'' is not a key"),
        ({"route": "chat"}, "route: is not a list of values"),
        ({"route": []}, "route: is not a list of values"),
        ({"route": [1]}, "route: 1 is not a text"),
        ({"route": ["a", "a"]}, "route: a value is listed twice"),
        ({"a": ["x"], "b": [str(n) for n in range(64)]}, "lists 65 values; list at most 64"),
    ],
)
def test_unsuitable_keys_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ContextKeysRefused, match=why):
        ContextKeys.of(given)
    with pytest.raises(SettingsError, match="UNISCALE_CONTEXT_KEYS"):
        Settings().replace(context_keys=given)


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [
        ({"route": "code", "task": "sum"}, ("route=code", "task=sum")),
        ({"task": "sum", "route": "chat", "user": "Ann"}, ("route=chat", "task=sum")),
        ({"route": "other"}, ()),
        ({"route": ["code"]}, ()),
        ({"route": {"code": 1}, "task": None}, ()),
        ({}, ()),
    ],
)
def test_only_listed_values_are_categories(metadata: dict[str, Any], shown: tuple[str, ...]) -> None:
    assert categories_of(Query(query_id="q", text="Hm?", metadata=metadata), KEYS) == shown


@pytest.mark.parametrize(
    ("turns", "shown"), [(1, ()), (2, ("request.turns=2-4",)), (5, ("request.turns=5+",))]
)
def test_a_conversation_shows_its_turns(turns: int, shown: tuple[str, ...]) -> None:
    said = [Message(role="user", content="Hm?"), Message(role="assistant", content="Hm.")] * turns
    query = Query(query_id="q", messages=(Message(role="system", content="Be brief."), *said[:-1]))
    assert categories_of(query, NO_KEYS) == shown


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"tools": 1}, ("request.tools=1",)),
        (
            {"tools": 3, "response_format": {"type": "json_object"}},
            ("request.tools=2-4", "request.format=yes"),
        ),
        ({"tools": 6}, ("request.tools=5+",)),
        ({"temperature": 0.5}, ()),
    ],
)
def test_a_request_shows_its_tools_and_format(options: dict[str, Any], shown: tuple[str, ...]) -> None:
    tools = tuple({"type": "function", "function": {"name": f"f{n}"}} for n in range(options.pop("tools", 0)))
    query = Query(query_id="q", text="Hm?", options=ChatOptions(tools=tools, **options))
    assert categories_of(query, NO_KEYS) == shown


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,x"}}, "request.images=yes"),
        ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, "request.audio=yes"),
    ],
)
def test_a_request_shows_that_it_has_images_or_audio(part: dict[str, Any], shown: str) -> None:
    said = Message(role="user", content="What is it?", parts=({"type": "text", "text": "What is it?"}, part))
    assert categories_of(Query(query_id="q", messages=(said,)), NO_KEYS) == (shown,)


def shard_with(keys: ContextKeys) -> Shard:
    def policy(_: Any) -> Contextual:
        return Contextual(ContextualFeatures(FeatureSettings(21, 10, query_rank=11)))

    shard = Shard(policy, pairs=((1, 1), (4, 1)), models=3)
    name(shard, keys)
    return shard


def name(shard: Shard, keys: ContextKeys) -> None:
    """Let the deployment name these keys from now on."""
    shard.environment = replace(shard.environment, context_keys=keys)


def asked(shard: Shard, rounds: int) -> None:
    for at in range(rounds):
        route = ("chat", "code", "late", 7)[at % 4]
        made = shard.ask(*(shard.context(metadata={"route": route, "task": "sum"}) for _ in range(2)))
        shard.tell(*(shard.reward(each) for each in made if at % 3 or each is made[0]))


def test_row_and_decision_keep_the_categories_alone() -> None:
    shard = shard_with(KEYS)
    (made,) = shard.ask(shard.context("one", metadata={"route": "code", "user": "Ann"}))
    assert decode(made.value, Decision).features == ("route=code",)
    row = shard.entry("one")
    assert row.features == row.pending().categories == row.observation("reward").categories == ("route=code",)
    assert b"Ann" not in shard.table[b"one"]


@pytest.mark.parametrize("snapshots", [False, True])
def test_lists_that_change_are_the_same_after_a_recovery(snapshots: bool) -> None:
    shard = shard_with(NO_KEYS)
    asked(shard, 9)
    before = shard.decider.policy.state()
    assert b"categor" not in before, "off unless named"
    for keys in (KEYS, ContextKeys.of({"route": ["late", "code"]}), NO_KEYS, KEYS):
        if snapshots:
            shard.apply(shard.snapshot())
        shard.crash()
        name(shard, keys)
        asked(shard, 9)
        live = shard.decider
        shard.crash()
        shard.same_as(live)
        assert shard.decider.policy.state() == live.policy.state()
        name(shard, keys)
    policy = shard.decider.policy
    assert isinstance(policy, Contextual)
    assert set(policy.features.categories) == {"route=chat", "route=code", "route=late", "task=sum"}
    fresh = shard.policy()
    rows, after = load_replay(fresh, shard.table)
    assert list(mismatches(fresh, rows, 7, after)) == []


def test_a_row_of_before_has_no_categories() -> None:
    shard = shard_with(NO_KEYS)
    shard.ask(shard.context("one"))
    assert b"features" not in shard.table[b"one"].replace(bytes(shard.entry("one").decision), b"")
    assert shard.entry("one").features == ()
