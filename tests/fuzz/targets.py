"""What is fuzzed: every topic that a service or the gateway reads, the rows of the join, a request's body."""

import asyncio
import random
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from agents.reward.join_row import JoinRow, encode_row
from schemas.answer import Answer
from schemas.chunk import AnswerChunk
from schemas.control import Cancel, ControlRecord, Heartbeat
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Query, QueryContext
from schemas.record import encode
from schemas.reward import Due, Feedback, Reward
from schemas.search import SearchStep, Verification
from streams.gateway.errors import ApiError
from streams.gateway.request import ChatRequest, parse
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.settings import Settings
from tests.fuzz.values import broken, value
from tests.support.cluster import WITH_GATEWAY
from tests.support.recorded import recorded_in_memory, recorded_paths

BATCH = 250
"""Records of one deployment: it is started anew for the next ones."""

SHARE_BROKEN = 0.1

TOPICS: dict[str, tuple[type[Any], ...]] = {
    "query": (Query,),
    "context": (QueryContext,),
    "action-decision": (Decision,),
    "action-decision.mini": (Decision,),
    "search-step": (SearchStep,),
    "verification.mini": (Verification,),
    "answer-chunk": (AnswerChunk,),
    "answer": (Answer,),
    "feedback": (Feedback,),
    "due": (Due,),
    "reward": (Reward,),
    "control": get_args(ControlRecord),
    "heartbeat": (Heartbeat,),
    "cancel.mini": (Cancel,),
    "dead-letter": (DeadLetter,),
}
JOIN = "aggregator-join-changelog"
BODY = "POST /v1/chat/completions"
TARGETS = (*TOPICS, JOIN, BODY)


class Outcome(NamedTuple):
    """What a batch came to: how many records each target was given, how many of them it can decode, and what broke."""

    given: Counter[str]
    decodable: Counter[str]
    faults: list[str]


def settings_in(folder: Path) -> Settings:
    """Return the settings of a deployment in memory whose files lie in a folder."""
    paths = recorded_paths(4, samples=2, steps=(1, 2))
    return recorded_in_memory(folder, paths, group_partitions=2, max_in_flight=10_000)


def drawn(rng: random.Random) -> tuple[str, bytes, bytes | None, bool]:
    """Return a target, a key, a value for it, and whether that can be decoded."""
    target = rng.choice(TARGETS)
    kind = JoinRow if target == JOIN else ChatRequest if target == BODY else rng.choice(TOPICS[target])
    made = value(kind, rng)
    key = str(getattr(made, "query_id", getattr(made, "key", "0"))).encode()
    whole = (
        encode_row(made) if target == JOIN else msgspec.json.encode(made) if target == BODY else encode(made)
    )
    if rng.random() >= SHARE_BROKEN:
        return target, key, whole, True
    return target, key, broken(whole, rng), False


def batch(settings: Settings, seed: int) -> Outcome:
    """Give a deployment a batch of records, and return what came of it. The same seed gives the same records."""
    rng = random.Random(seed)
    outcome = Outcome(Counter(), Counter(), [])
    records = [drawn(rng) for _ in range(BATCH)]
    for target, _, _, good in records:
        outcome.given[target] += 1
        outcome.decodable[target] += good
    for target, _, body, _ in records:
        if target == BODY:
            try:
                parse(body or b"")
            except (UniscaleError, ApiError):
                pass
            except Exception as error:
                outcome.faults.append(f"{BODY}: {error!r} by {body!r}")
    run(_deployment(settings, seed, [each for each in records if each[0] != BODY], outcome.faults))
    return outcome


def _told(error: BaseException | None) -> str:
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return "".join(traceback.format_exception(error)[-4:])


async def _deployment(
    settings: Settings, seed: int, records: list[tuple[str, bytes, bytes | None, bool]], faults: list[str]
) -> None:
    def unhandled(_: Any, context: dict[str, Any]) -> None:
        faults.append("unhandled: " + _told(context.get("exception")))

    asyncio.get_running_loop().set_exception_handler(unhandled)
    cluster = Cluster(settings, WITH_GATEWAY, seed=seed)
    prefix = settings.kafka.prefix
    cluster.broker.create(prefix + JOIN, settings.kafka.join_partitions)
    for target, key, row, _ in records:
        if target == JOIN:
            cluster.broker.append(prefix + JOIN, key, row)
    try:
        await cluster.up()
        for target, key, whole, _ in records:
            if target != JOIN:
                cluster.produce(prefix + target, b"0" if target in ("context", "reward") else key, whole)
                if seed % 2:
                    await asyncio.sleep(0.05)
        await cluster.until(lambda: not cluster.busy, 20_000)
        await asyncio.sleep(60.0)
    except Exception as error:
        faults.append(_told(error))
    faults += [_told(death) for death in cluster.deaths]
    await cluster.close()
