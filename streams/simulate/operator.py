"""An operator's commands on a learner's log while no decider runs: `learner repair` and `learner reset`, in memory."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from agents.decider.decider import Decider
from agents.decider.repair import repaired
from agents.decider.rows import REFIT_KEY, Row, decode_row
from agents.decider.snapshot import RESET_KEY, EndedIds, manifests, start_of
from agents.embedding import encoder_id
from streams.log.memory import MemoryBroker
from streams.services.decider import DeciderService, policy_of
from streams.simulate.fold import differences
from streams.topics import Topics


def repair(
    service: DeciderService, broker: MemoryBroker, topics: Topics, rng: random.Random
) -> Iterator[str]:
    """Drop an early row from the log; yield any state of the learner that the remaining rows do not imply."""
    changelog = topics.changelog("decider", "pending")
    snapshots = broker.changelog(topics.snapshot, 0)
    rows = broker.changelog(changelog, 0, start_of(snapshots))
    learned = sorted(
        (row.learned_seq, key)
        for key, value in rows.items()
        if isinstance(row := decode_row(key, value), Row) and row.learned_seq >= 0
    )
    if not learned:
        return
    _, lost = rng.choice(learned[:8])  # every refit includes the early rows
    without, end = [lost], broker.end(changelog, 0)
    decider, anew = _fresh(service), _fresh(service)
    records, gone = repaired(decider, rows, snapshots, without, end)
    unestimated = {key: value for key, value in rows.items() if not key.startswith(REFIT_KEY)}
    repaired(anew, unestimated, snapshots, without, end)
    yield from (f"repaired is not what the rows say: {each}" for each in differences(decider, anew))
    for key, value in records:
        broker.append(topics.snapshot, key, value)
    for key in gone:
        broker.append(changelog, key, None)


def reset(broker: MemoryBroker, topics: Topics) -> None:
    """Delete the log and the snapshots; records that the decider has read are not read again."""
    changelog = topics.changelog("decider", "pending")
    snapshots, rows = broker.changelog(topics.snapshot, 0), broker.changelog(changelog, 0)
    known = manifests(snapshots).values()
    decided = [row for key, value in rows.items() if isinstance(row := decode_row(key, value), Row)]
    read = {
        topics.context: [each.context_offset for each in known]
        + [row.context_origin.offset for row in decided],
        topics.reward: [each.reward_offset for each in known] + [row.reward_offset for row in decided],
    }
    for topic, offsets in read.items():
        if (last := max(offsets, default=-1)) >= 0:
            broker.committed[topics.app_id("decider"), topic, 0] = last + 1
    ends = {str(at): broker.end(topics.decision, at) for at in range(broker.partitions(topics.decision))}
    broker.append(topics.snapshot, RESET_KEY, json.dumps(ends).encode())
    for key in rows:
        broker.append(changelog, key, None)
    for key in snapshots:
        if key != RESET_KEY:
            broker.append(topics.snapshot, key, None)


def _fresh(service: DeciderService) -> Decider:
    settings = service.runtime.settings
    return Decider(
        policy_of(settings, service.encoder),
        seed=settings.policy.seed,
        encoder=encoder_id(service.encoder),
        ended=EndedIds(settings.policy.remembered_ids),
    )
