"""How long a learner takes to recover: the real worker, on a log of a given length, from a real broker.

A learner is given `rows` rewarded decisions, and its rows are written to the changelog of a deployment of its own. Then
the decider's process starts on it and reports how long it read and folded (`recovery_seconds`). Each row is written
once, as it is when its query has ended: what compaction leaves of a log.
"""

import contextlib
import os
import re
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.bandit.policy import ActionVector, Objective
from agents.catalogue.actions import uis_space
from agents.catalogue.file import load_catalogue
from agents.catalogue.objectives import Steering
from agents.decider.decider import Decider, Surroundings, context_of
from agents.decider.log import Decided
from agents.embedding import Encoder, encoder_id
from schemas.decision import Decision
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode
from schemas.reward import Reward, reward_id
from streams.local.broker import free_port
from streams.local.deployment import Supervisor, service_commands
from streams.runtime import kafka_admin, kafka_clients
from streams.services.decider import action_vectors, policy_of
from streams.services.embedder import encoder_of
from streams.settings import Settings
from streams.topics import Topics

_BATCH = 64


def measure(settings: Settings, rows: int, half: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds of a recovery, and how far the recovered learner is from the original.

    Args:
        settings: The deployment, and the catalogue whose actions are chosen.
        rows: Observations to recover.
        half: Length of s_q and of s_a; d is twice that.
        say: Called with a line for each stage.

    Raises:
        BrokerUnreachable: no broker answers.
        ServiceFailed: the decider does not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = settings.replace(
            prefix=f"recovery-{uuid.uuid4().hex[:6]}.",
            encoder="hashed",
            encoder_dimension=half,
            state_dir=folder,
            warm_up=0,
            snapshot_every=0,
        )
        topics = Topics(settings)
        catalogue = load_catalogue(Path(settings.catalogue))
        kafka_admin.create(settings, topics.declared(catalogue.groups))
        say(f"writing {rows} rows of dimension {2 * half}")
        encoder = encoder_of(settings)
        around = Surroundings(Steering.of(catalogue), uis_space(catalogue))
        live = _decider(settings, encoder)
        actions = action_vectors(catalogue, encoder)
        log = dict(_lived(live, actions, around, encoder, rows, settings.policy.seed))
        _write(settings, topics.changelog("decider", "pending"), log)
        say("starting the decider")
        with recovered_decider(settings, Path(folder) / "decider.log") as (_, ready_s, took):
            pass
        again = _decider(settings, encoder)
        again.recover(log.items())
        return {
            f"recover_{rows}_s": round(took["read"] + took["fold"], 4),
            "read_s": round(took["read"], 4),
            "fold_s": round(took["fold"], 4),
            "start_to_ready_s": round(ready_s, 3),
            "rows": rows,
            "d": 2 * half,
            "actions": len(live.actions),
            "mb": round(sum(len(k) + len(v) for k, v in log.items()) / 1e6, 1),
            "difference": _difference(live, again, encoder, around),
        }


def _decider(settings: Settings, encoder: Encoder) -> Decider:
    return Decider(policy_of(settings, encoder), seed=settings.policy.seed, encoder=encoder_id(encoder))


def _lived(
    decider: Decider,
    actions: Sequence[ActionVector],
    around: Surroundings,
    encoder: Encoder,
    rows: int,
    seed: int,
) -> Iterator[tuple[bytes, bytes]]:
    """Let a decider decide and learn, and yield the rows that remain of it."""
    yield from decider.offer(actions)
    rng = np.random.default_rng(seed)
    for start in range(0, rows, _BATCH):
        asked = [
            (_context(encoder, rng, at), Origin(topic="context", partition=0, offset=at))
            for at in range(start, min(start + _BATCH, rows))
        ]
        made = decider.decide(asked, lambda _: None, around)
        table = {d.query_id: d.row[1] for d in made if d.row}
        rewards = [(drawn_reward(d, rng), start + at) for at, d in enumerate(made)]
        yield from (each.row for each in decider.learn(rewards, table.get) if each.row)


def _context(encoder: Encoder, rng: np.random.Generator, number: int) -> QueryContext:
    row = rng.normal(size=encoder.dimension)
    return QueryContext(
        query=Query(
            query_id=f"r{number}", text=f"Question {number}: how many are there of them together? " * 4
        ),
        embedding=(row / np.linalg.norm(row)).astype("<f4").tobytes(),
        encoder=encoder_id(encoder),
        origin=Origin(topic="query", partition=0, offset=number),
    )


def drawn_reward(decided: Decided, rng: np.random.Generator) -> Reward:
    """Return a final reward with drawn terms."""
    assert decided.value is not None, decided.error
    decision = decode(decided.value, Decision)
    return Reward(
        reward_id=reward_id(decided.query_id, "final"),
        query_id=decided.query_id,
        kind="final",
        seq=decision.seq,
        action=decision.action,
        status="ok",
        correct=float(rng.random() < 0.5),
        score=float(rng.random()),
        log_cost=float(rng.uniform(26.0, 36.0)),
        price=None,
        objective=decision.objective,
    )


def _write(settings: Settings, topic: str, log: dict[bytes, bytes]) -> None:
    producer = kafka_clients.producer(settings, linger_ms=5)
    try:
        pending = []
        for key, value in log.items():
            pending.append(producer.send(topic, key=key, value=value, partition=0))
        for delivery in pending:
            delivery.get(timeout=120)
    finally:
        producer.close()


class RecoveredDecider(NamedTuple):
    """A decider's process that has recovered.

    Attributes:
        pid: The process.
        ready_s: From its start until it was ready.
        took: How long the parts of its recovery took, in seconds.
    """

    pid: int
    ready_s: float
    took: dict[str, float]


@contextlib.contextmanager
def recovered_decider(settings: Settings, log: Path) -> Iterator[RecoveredDecider]:
    """Start the decider's process and wait for its recovery; the process ends with the block.

    Raises:
        LookupError: it did not recover in ten minutes; the message ends with its log.
    """
    port = free_port()
    command = [*service_commands([])["decider"], "--metrics-port", str(port)]
    environ = {"OMP_NUM_THREADS": "1", **os.environ, **settings.environ()}
    began_s = time.monotonic()
    with Supervisor({"decider": command}, environ=environ, log_path=log) as supervisor:
        supervisor.wait_ready(300)
        while not (took := recovery_seconds(port)):
            if time.monotonic() - began_s > 600:
                raise LookupError(f"the decider did not recover in 600 s:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield RecoveredDecider(supervisor.services["decider"].pid, time.monotonic() - began_s, took)


def recovery_seconds(port: int) -> dict[str, float]:
    """Return how long the decider's recovery took, by part, from its metrics; empty before it is done."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.findall(r'^uniscale_recovery_seconds{part="(\w+)"} (\S+)$', text, re.MULTILINE)
    return {part: float(value) for part, value in found}


def _difference(one: Decider, two: Decider, encoder: Encoder, around: Surroundings) -> float:
    """Return the largest difference of scores on new queries, in units of the largest score."""
    rng = np.random.default_rng(1)
    contexts = [context_of(_context(encoder, rng, n), around, surface=one.policy.surface) for n in range(8)]
    objective = Objective(0.4, 0.4, 0.2, 26.0, 36.0)
    found = [d.policy.predict(contexts, [objective] * len(contexts), 1) for d in (one, two)]
    scores = [np.array([s.score for s in each]) for each in found]
    return float(np.abs(scores[0] - scores[1]).max() / np.abs(scores[0]).max())
