"""A learner that moves to another processor: snapshots say what computed them, and the decider that it differs."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.decider.snapshot import is_record, kernel, manifests, other_kernels
from streams.runtime.memory import run
from tests.streams.test_snapshots_in_memory import (
    EVERY,
    QUERIES,
    Ask,
    InMemory,
    lived,
    log_of,
    restarted,
    service_of,
)

ROOT = Path(__file__).parents[2]

RECOVER = """
import logging, pickle, sys
from agents.decider.snapshot import kernel
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from tests.streams.test_snapshots_in_memory import service_of

logging.basicConfig(level=logging.WARNING, stream=sys.stderr)

async def main():
    settings, records = pickle.load(sys.stdin.buffer)
    cluster = Cluster(settings, {"decider": SERVICES["decider"]})
    for topic, key, value in records:
        cluster.broker.append(topic, key, value, 0)
    await cluster.up()
    decider = service_of(cluster).decider
    print(kernel(), decider.seq, decider.policy.version, sep="|")
    await cluster.close()

run(main())
"""


def recovered(given: bytes, **environ: str) -> tuple[list[str], str]:
    """Recover in a process of its own; return its kernel, place and version, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", RECOVER], cwd=ROOT, env={**os.environ, **environ}, input=given,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip().split("|"), done.stderr.decode()


def test_a_decider_says_that_others_computed_its_snapshot(
    in_memory: InMemory, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    settings = in_memory(policy="contextual", snapshot_every=EVERY)
    found: dict[str, Any] = {}

    async def main() -> None:
        cluster, state = await lived(settings, [ask(n) for n in range(QUERIES)])
        topics = (cluster.topics.changelog("decider", "pending"), cluster.topics.snapshot)
        records = [(t, r.key, r.value) for t in topics for r in cluster.broker.records(t)]
        snapshots = {k: v for k, v in log_of(cluster).items() if is_record(k)}
        found.update(records=records, snapshots=snapshots)
        again = await restarted(cluster)
        here = service_of(again)
        assert here is not None
        assert here.decider is not None
        assert here.decider.policy.state() == state
        found.update(seq=here.decider.seq, version=here.decider.policy.version)
        await again.close()
        await cluster.close()

    run(main())
    own = kernel()
    assert {each.kernel for each in manifests(found["snapshots"]).values()} == {own}
    assert other_kernels(manifests(found["snapshots"]).values()) == []
    if not own.startswith("openblas"):
        pytest.skip(f"{own or 'an unknown BLAS'} has no other kernels to choose")
    given = pickle.dumps((settings, found["records"]))
    assert "was computed by" not in caplog.text
    another = "Nehalem" if own.endswith("Haswell") else "Haswell"
    there, said = recovered(given, OPENBLAS_CORETYPE=another)
    assert there[0] != own
    assert there[0].endswith(another)
    assert there[1:] == [str(found["seq"]), str(found["version"])]
    assert f"was computed by {own}, and here {there[0]} computes" in said
