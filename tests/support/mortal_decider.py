"""The decider's own process, which dies where a test asks. What it runs is the product; the faults are here.

A file `die-<point>` in the state directory arms a point. Who passes it removes the file and gets SIGKILL:

    row        rows are on the broker, their Decisions are not sent
    decision   Decisions are sent, their Contexts not committed
    reward     rewarded rows are on the broker, their Rewards not committed
    manifest   the chunks of a snapshot are on the broker, its manifest is not
    start      rows that two snapshots hold have left the log, older snapshots have not

A file `show` makes it write what it has learned to `shown.npz`, once, between two batches.
"""

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from agents.decider.snapshot import SNAPSHOT_KEY, START_KEY
from schemas.query import QueryContext
from streams.log.base import ConsumerRecord, Outgoing
from streams.runtime import effects
from streams.runtime.kafka import KafkaRuntime
from streams.runtime.runtime import Input
from streams.runtime.table import Table
from streams.services.decider import DeciderService
from streams.settings import Settings
from streams.worker import run_service

SETTINGS = Settings.from_env(os.environ)
STATE = SETTINGS.state_path()


def taken(name: str) -> bool:
    """Say whether a file was there, and remove it."""
    try:
        (STATE / name).unlink()
    except FileNotFoundError:
        return False
    return True


def pass_by(point: str) -> None:
    if taken(f"die-{point}"):
        os.kill(os.getpid(), signal.SIGKILL)


def show(service: DeciderService) -> None:
    if service.decider is None or not taken("show"):
        return
    gram = service.decider.policy.inner.gram  # type: ignore[attr-defined]
    gram.flush()
    file = Path(STATE / "showing.npz")
    np.savez(
        file, a=np.tril(gram.a) + np.tril(gram.a, -1).T, b=gram.b, theta=gram.theta, seq=service.decider.seq,
        clock=service.decider.clock, version=service.decider.policy.version,
    )  # fmt: skip
    file.rename(STATE / "shown.npz")


send, post = KafkaRuntime.send, Table.post
handle = effects._handle_batch


async def mortal_send(self: KafkaRuntime, *records: Outgoing) -> None:
    if records:
        pass_by("row")
    await send(self, *records)


async def mortal_post(self: Table, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
    records = list(records)
    if any(k.startswith(SNAPSHOT_KEY) and k.endswith(b"/manifest") and v for k, v in records):
        pass_by("manifest")
    await post(self, topic, records)
    if any(key == START_KEY for key, _ in records):
        pass_by("start")


async def mortal_handle(
    runtime: KafkaRuntime, service: DeciderService, each: Input, records: Sequence[ConsumerRecord]
) -> None:
    await handle(runtime, service, each, records)
    pass_by("decision" if each.kind is QueryContext else "reward")
    show(service)


KafkaRuntime.send, Table.post = mortal_send, mortal_post  # type: ignore[assignment, method-assign]
effects._handle_batch = mortal_handle  # type: ignore[assignment]

if __name__ == "__main__":
    sys.argv[1:] = []  # faust's worker reads them
    run_service(SETTINGS, "decider")
