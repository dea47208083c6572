"""One history: a world runs with its faults, and the outcome is judged."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct
from threadpoolctl import ThreadpoolController

from streams.runtime.memory import run
from streams.simulate.faults import Fault, schedule, stand_ins
from streams.simulate.judge import judged, met, misled
from streams.simulate.life import Life, said
from streams.simulate.world import World, drawn


class Lived(Struct, kw_only=True):
    """The outcome of one seed.

    Attributes:
        seed: The seed.
        failures: Descriptions of what is wrong; empty if nothing is.
        faults: The scheduled faults.
        hits: How often each kind of fault took effect on each service.
        met: States and limits it reached (`judge.MET`).
        bad: What was wrong with the model that should not be chosen, if choices are judged.
        misled: How many of the last third of the choices picked that model.
        choices: Size of that third.
        digest: SHA-256 of every record, in hex.
        records: Number of records.
    """

    seed: int
    failures: list[str] = []
    faults: tuple[Fault, ...] = ()
    hits: dict[str, int] = {}
    met: list[str] = []
    bad: str = ""
    misled: int = 0
    choices: int = 0
    digest: str = ""
    records: int = 0


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def lived(seed: int, only: Sequence[int] | None = None) -> Lived:
    """Run one history.

    Matrix products use one thread: with several, the order of additions, and so the bytes, would depend on the machine.

    Args:
        seed: Seed of world and faults.
        only: Indices of the faults to inject; None for all.
    """
    with _libraries().limit(limits=1), tempfile.TemporaryDirectory(prefix="uniscale-simulate-") as folder:
        world = drawn(seed, Path(folder))
        faults = schedule(seed, world)
        kept = faults if only is None else tuple(faults[at] for at in only)
        return run(_lived(seed, world, kept))


async def _lived(seed: int, world: World, faults: tuple[Fault, ...]) -> Lived:
    life = Life(world, faults, seed)
    with stand_ins(life.faults, world):
        try:
            await life.live()
            life.failures += judged(life)
        except Exception as error:
            life.failures.append(f"it did not end: {said(error)}")
        finally:
            await life.cluster.close()
    digest, count = hashlib.sha256(), 0
    for topic in life.topics.declared(life.cluster.groups):
        for r in life.broker.records(topic.name):
            digest.update(repr((r.topic, r.partition, r.offset, r.timestamp_ms, r.key, r.value)).encode())
            count += 1
    digest.update("\n".join(life.failures).encode())
    hits = {f"{kind}/{service}": n for (kind, service), n in life.faults.hits.items()}
    bad, choices = misled(life)
    return Lived(
        seed=seed,
        failures=life.failures,
        faults=faults,
        hits=hits,
        met=sorted(met(life)),
        bad=world.bad or "",
        misled=bad,
        choices=choices,
        digest=digest.hexdigest(),
        records=count,
    )
