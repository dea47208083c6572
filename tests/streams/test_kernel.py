"""A learner that moves to another processor: snapshots say what computed them, and the decider that it differs."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from agents.decider.snapshot import kernel, manifests, other_kernels
from tests.support.cluster import Ask, InMemory, decider_of, running, served, snapshots, successor

ROOT = Path(__file__).parents[2]

RECOVER = """
import logging, pickle, sys
from agents.decider.snapshot import kernel
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from tests.support.cluster import decider_of

logging.basicConfig(level=logging.WARNING, stream=sys.stderr)

async def main():
    settings, records = pickle.load(sys.stdin.buffer)
    cluster = Cluster(settings, {"decider": SERVICES["decider"]})
    for topic, key, value in records:
        cluster.broker.append(topic, key, value, 0)
    await cluster.up()
    decider = decider_of(cluster)
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


async def test_a_decider_says_that_others_computed_its_snapshot(
    in_memory: InMemory, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    settings = in_memory(policy="contextual", snapshot_every=5)
    async with running(settings) as cluster:
        for n in range(12):
            await served(cluster, ask(n))
        state = decider_of(cluster).policy.state()
        async with successor(cluster) as again:
            here = decider_of(again)
            assert here.policy.state() == state
    topics = (cluster.topics.changelog("decider", "pending"), cluster.topics.snapshot)
    given = pickle.dumps((settings, [(t, r.key, r.value) for t in topics for r in cluster.broker.records(t)]))
    own, found = kernel(), manifests(snapshots(cluster)).values()
    assert {each.kernel for each in found} == {own}
    assert other_kernels(found) == []
    if not own.startswith("openblas"):
        pytest.skip(f"{own or 'an unknown BLAS'} has no other kernels to choose")
    assert "was computed by" not in caplog.text
    another = "Nehalem" if own.endswith("Haswell") else "Haswell"
    there, said = recovered(given, OPENBLAS_CORETYPE=another)
    assert there[0] != own
    assert there[0].endswith(another)
    assert there[1:] == [str(here.seq), str(here.policy.version)]
    assert f"was computed by {own}, and here {there[0]} computes" in said
