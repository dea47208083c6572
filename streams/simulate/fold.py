"""Checks that the live learner equals the fold of its log, by comparing the complete state of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from msgspec.structs import asdict

from agents.bandit.learner import header, unpack
from agents.decider.decider import Decider
from agents.decider.policy_fold import offer
from agents.decider.rows import ENDED, Row, decode_row
from agents.decider.snapshot import EndedIds
from agents.embedding import encoder_id
from streams.control_follower import catalogue_of
from streams.services.decider import DeciderService, policy_of

# Many policies do not fold rows in the order they learned them in, so sums may differ in their last bits.

ARRAYS: Final = 1e-9
"""Tolerance for an array's elements, relative to the largest element."""

VALUES: Final = 1e-7
"""Relative tolerance for plain values."""

Records = Mapping[bytes, bytes]


def folded(service: DeciderService, log: Records, snapshots: Records) -> Decider:
    """Return a learner recovered from a log, with the actions currently on offer, as when a worker starts."""
    settings = service.runtime.settings
    fold = Decider(
        policy_of(settings, service.encoder),
        seed=settings.policy.seed,
        encoder=encoder_id(service.encoder),
        unit=catalogue_of(settings).unit,
        limit=service.runtime.limit,
        ended=EndedIds(settings.policy.remembered_ids),
    )
    fold.recover(log.items(), snapshots.items())
    offer(fold.policy, fold.offered, fold.actions)
    return fold


def compared(service: DeciderService, log: Records, snapshots: Records) -> Iterator[str]:
    """Yield the differences between the live learner and the fold of its log."""
    live = service.decider
    assert live is not None
    try:
        fold = folded(service, log, snapshots)
    except Exception as error:
        yield f"the log of the learner cannot be read: {type(error).__name__}: {error}"
        return
    for name in ("seq", "clock"):
        if (one := getattr(live, name)) != (two := getattr(fold, name)):
            yield f"fold is not live: {name} is {one}, the fold's {two}"
            return
    yield from (f"fold is not live: {each}" for each in differences(live, fold))
    yield from (f"fold is not live: {each}" for each in _ids(live.ended, fold.ended, log))


def differences(one: Decider, two: Decider) -> Iterator[str]:
    """Yield the differences between two learners, except those between their ended ids."""
    for name in ("context_offset", "reward_offset", "failure_offset", "prior"):
        yield from _values(f"the decider's {name}", getattr(one, name), getattr(two, name))
    yield from _values("the decider's offered", asdict(one.offered), asdict(two.offered))
    yield from _values("the decider's actions", dict(one.actions), dict(two.actions))
    if one.shares.window() != two.shares.window():
        yield "the tenants of the latest outcomes differ"
    yield from _values("the sessions", one.sessions.turns(), two.sessions.turns())
    yield from _states("the policy", one.policy.state(), two.policy.state())


def _states(at: str, one: bytes, two: bytes) -> Iterator[str]:
    (first, arrays), (second, others) = unpack(one, *header(one)), unpack(two, *header(two))
    yield from _values(at, first, second)
    for name in sorted({*arrays, *others}):
        left, right = arrays.get(name, np.zeros(0)), others.get(name, np.zeros(0))
        if name == "inner":
            yield from _states(f"{at}, inside", left.tobytes(), right.tobytes())
            continue
        scale = max(1.0, float(np.abs(right[~np.isnan(right)]).max(initial=0.0)))
        if left.shape != right.shape or not np.allclose(
            left, right, rtol=0.0, atol=ARRAYS * scale, equal_nan=True
        ):
            yield f"{at}: the array {name} differs"


def _values(at: str, one: Any, two: Any) -> Iterator[str]:
    """Yield the places where plain values differ, including the order of dictionary keys."""
    match one, two:
        case dict(), dict():
            if list(one) != list(two):
                yield f"{at}: has {list(one)}, the fold {list(two)}"
            for key in (each for each in one if each in two):
                yield from _values(f"{at}.{key}", one[key], two[key])
        case ((list() | tuple()), (list() | tuple())):
            if len(one) != len(two):
                yield f"{at}: has {len(one)}, the fold {len(two)}"
            for place, (first, second) in enumerate(zip(one, two, strict=False)):
                yield from _values(f"{at}[{place}]", first, second)
        case (float(), float() | int()) | (int(), float()):
            if not math.isclose(one, two, rel_tol=VALUES, abs_tol=ARRAYS):
                yield f"{at} is {one}, the fold's {two}"
        case _:
            if one != two:
                yield f"{at} is {one!r}, the fold's {two!r}"


def _ids(live: EndedIds, fold: EndedIds, log: Records) -> Iterator[str]:
    """Yield ids that only one of two learners considers ended, unless a failed snapshot left their rows in the log."""
    rows = (decode_row(key, value) for key, value in log.items())
    for row in rows:
        if not isinstance(row, Row):
            continue
        known, found = live.find(row.query_id), fold.find(row.query_id)
        if known != found and not (found is None and row.stage in ENDED):
            yield f"{row.query_id} ended at {known}, the fold says {found}"
    lost = {digest for digest, _ in _places(fold)} - {digest for digest, _ in _places(live)}
    if lost:
        yield f"{len(lost)} ids of ended queries are not known any more"


def _places(ended: EndedIds) -> Iterator[tuple[int, int]]:
    """Yield the digest and position of every id."""
    for part, data in ended.parts():
        digests, places = np.frombuffer(data, "<u8").reshape(2, part.count)
        yield from zip(digests.tolist(), places.tolist(), strict=True)
