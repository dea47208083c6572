"""Runs histories, and reports failing seeds with their minimal faults, how many faults took effect, and a digest."""

from __future__ import annotations

import gc
import hashlib
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from threadpoolctl import ThreadpoolController, threadpool_limits

from schemas.errors import UniscaleError
from streams.runtime.memory import run
from streams.simulate.faults import KINDS, SERVICES, Fault, schedule, stand_ins
from streams.simulate.judge import MET, judged, met, misled
from streams.simulate.life import Life, said
from streams.simulate.world import World, drawn

# One history: a world is run with its faults, and the outcome is judged.


class Lived(Struct, kw_only=True):
    """The outcome of one seed.

    Attributes:
        seed: The seed.
        failures: Descriptions of what is wrong; empty if nothing is.
        faults: The scheduled faults.
        hits: How many faults of each kind took effect on each service, as `kind/service`.
        met: The states and limits that the history reached (`judge.MET`).
        bad: What was wrong with the model that should not be chosen; empty if choices are not judged.
        misled: How many choices in the last third picked that model.
        choices: How many choices that third contains.
        digest: SHA-256 over all records and failures, in hex.
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
        seed: Seed for the world and its faults.
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


LEAST: Final = 0.05
"""The minimum share of histories that each kind of fault should take effect in."""

MISLED: Final = 0.1
"""The largest share a bad model may have of all histories' last thirds of choices combined."""


class SeedsError(UniscaleError, ValueError):
    """The range of seeds cannot be read. Write A-B, for instance 1-150, or one number."""


class Failure(Struct, frozen=True, kw_only=True):
    """A failing seed.

    Attributes:
        seed: The seed.
        what: Descriptions of what is wrong.
        faults: Indices, in the seed's schedule, of the faults needed for the failure.
        schedule: Descriptions of those faults.
    """

    seed: int
    what: tuple[str, ...]
    faults: tuple[int, ...]
    schedule: tuple[str, ...]

    @property
    def command(self) -> str:
        """Return the command that reproduces the failure."""
        only = ",".join(map(str, self.faults)) or "none"
        return f"python -m streams simulate --seeds {self.seed}-{self.seed} --only {only}"


class SeedJournal(Struct, kw_only=True):
    """Results for a range of seeds; a run can resume from them.

    Attributes:
        first: The first seed.
        last: The last seed that was run.
        failures: The seeds that failed.
        digest: SHA-256 over the digests of all histories, in order.
        hits: Number of histories in which each kind of fault affected each service, keyed `kind/service`.
        kinds: Number of histories in which each kind of fault took effect.
        met: Number of histories in which each state and limit was reached.
        misled: Number of choices in the final third of each history that picked the bad model, keyed by its defect.
        choices: Total number of choices in those thirds, keyed the same way.
    """

    first: int
    last: int
    failures: tuple[Failure, ...] = ()
    digest: str = hashlib.sha256().hexdigest()
    hits: dict[str, int] = {}
    kinds: dict[str, int] = {}
    met: dict[str, int] = {}
    misled: dict[str, int] = {}
    choices: dict[str, int] = {}

    @property
    def astray(self) -> list[str]:
        """Return the kinds of bad model that were chosen too often across all histories."""
        return [
            bad
            for bad, choices in sorted(self.choices.items())
            if bad != "dear" and self.misled.get(bad, 0) > MISLED * choices
        ]

    @property
    def report(self) -> bytes:
        """Return the reproducible results as one line of JSON."""
        found = [msgspec.structs.asdict(each) | {"command": each.command} for each in self.failures]
        seeds = f"{self.first}-{self.last}"
        report = {"seeds": seeds, "failures": found, "astray": self.astray, "digest": self.digest}
        return msgspec.json.encode(report) + b"\n"

    def after(self, history: Lived, failure: Failure | None) -> SeedJournal:
        """Return this journal with one more history added."""
        struck = Counter({key.rpartition("/")[0]: 1 for key in history.hits})
        return SeedJournal(
            first=self.first,
            last=history.seed,
            failures=self.failures + ((failure,) if failure else ()),
            digest=hashlib.sha256(f"{self.digest} {history.digest}".encode()).hexdigest(),
            hits=dict(Counter(self.hits) + Counter(dict.fromkeys(history.hits, 1))),
            kinds=dict(Counter(self.kinds) + struck),
            met=dict(Counter(self.met) + Counter(history.met)),
            misled=dict(Counter(self.misled) + Counter({history.bad: history.misled})),
            choices=dict(Counter(self.choices) + Counter({history.bad: history.choices})),
        )


def seeds_of(text: str) -> tuple[int, int]:
    """Return the first and last seeds of a range.

    Raises:
        SeedsError: the text is not a range.

    >>> seeds_of("1-150"), seeds_of("7")
    ((1, 150), (7, 7))
    """
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit()) or int(last or first) < int(first):
        raise SeedsError(f"seeds {text!r}: write A-B with A at most B, for instance 1-150")
    return int(first), int(last or first)


def shrunk(history: Lived, fails: Callable[[Sequence[int]], Lived] | None = None) -> Failure:
    """Minimise a failure by removing faults one by one, as long as the history still fails.

    Args:
        history: The failing history, with all its faults.
        fails: Runs the history again with only the faults at the given indices; `lived` by default.
    """
    live = fails or (lambda only: lived(history.seed, only))
    kept, what = list(range(len(history.faults))), history.failures
    for at in list(kept):
        fewer = [each for each in kept if each != at]
        again = live(fewer)
        if again.failures:
            kept, what = fewer, again.failures
    return Failure(
        seed=history.seed,
        what=tuple(what[:5]),
        faults=tuple(kept),
        schedule=tuple(repr(history.faults[at]) for at in kept),
    )


def simulate(
    first: int,
    last: int,
    *,
    only: Sequence[int] | None = None,
    minutes: float | None = None,
    append: Path | None = None,
    told: Callable[[Failure], None] = lambda failure: None,
) -> SeedJournal:
    """Run the histories for a range of seeds.

    Args:
        first: The first seed.
        last: The last seed.
        only: Indices of the faults of each schedule to inject; None for all.
        minutes: Stop after this many minutes, at the end of a history; None for no limit.
        append: The journal file. Its seeds are not run again, and it is rewritten after every history.
        told: Called with each failure.

    Returns:
        The journal up to the last seed that was run.

    Raises:
        SeedsError: the journal begins at a different seed.
    """
    journal = _opened(append, first)
    until = None if minutes is None else time.monotonic() + 60.0 * minutes
    with _undisturbed():
        for seed in range(journal.last + 1, last + 1):
            if until is not None and time.monotonic() > until:
                break
            history = lived(seed, only)
            failure = None
            if history.failures:
                failure = shrunk(history) if only is None else _as_it_is(history, only)
                told(failure)
            journal = journal.after(history, failure)
            if append is not None:
                _written(append, journal)
    return journal


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Log no injected faults, and collect garbage rarely, because that took a fifth of a history's time.

    Matrices are multiplied in one thread, because several threads would add in an order that depends on the machine.
    """
    often = gc.get_threshold()
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(100_000)
    try:
        with threadpool_limits(1):
            yield
    finally:
        gc.set_threshold(*often)
        gc.unfreeze()
        logging.disable(logging.NOTSET)


def _as_it_is(history: Lived, only: Sequence[int]) -> Failure:
    words = tuple(map(repr, history.faults))
    return Failure(seed=history.seed, what=tuple(history.failures[:5]), faults=tuple(only), schedule=words)


def _opened(path: Path | None, first: int) -> SeedJournal:
    if path is None or not path.exists():
        return SeedJournal(first=first, last=first - 1)
    journal = msgspec.json.decode(path.read_bytes(), type=SeedJournal)
    if journal.first != first:
        raise SeedsError(f"{path}: holds seeds from {journal.first} on; begin there, or name another file")
    return journal


def _written(path: Path, journal: SeedJournal) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(journal))
    temporary.replace(path)


def coverage(journal: SeedJournal) -> Iterator[str]:
    """Yield the lines of two tables: how many histories met each kind of fault, by service, and reached each state."""
    histories = journal.last - journal.first + 1
    columns = (*SERVICES, "broker")
    yield f"{'fault':<16}{'histories':>10}{'share':>8}" + "".join(f"{name:>12}" for name in columns)
    for kind in KINDS:
        count = journal.kinds.get(kind, 0)
        share = count / histories if histories else 0.0
        hits = "".join(f"{journal.hits.get(f'{kind}/{name}', 0) or '':>12}" for name in columns)
        yield f"{kind:<16}{count:>10}{share:>8.1%}{hits}" + ("" if share >= LEAST else "  rare")
    yield f"{'state or limit':<20}{'histories':>6}{'share':>8}"
    for name in MET:
        count = journal.met.get(name, 0)
        yield f"{name:<20}{count:>6}{count / histories if histories else 0.0:>8.1%}"
    for bad, choices in sorted(journal.choices.items()):
        share = journal.misled.get(bad, 0) / choices
        astray = "  too many" if share > MISLED else ""
        yield f"a model that {_BAD[bad]} had {share:.1%} of the last {choices} choices{astray}"


_BAD: Final = {
    "refuses": "refuses everything",
    "slow": "is never in time",
    "empty": "says nothing",
    "dear": "costs ten times as much for nothing",
}
