"""What the decider returns for each record: a Decision, a changed row, or an error; and what recovery found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.decider.errors import CorruptState
from agents.decider.log.fold import Folded
from agents.decider.log.rewards import Verdict
from schemas.errors import UniscaleError


@dataclass(frozen=True, slots=True)
class Decided:
    """What one Context led to: a Decision to send, or the error for its dead letter.

    Attributes:
        value: The Decision's bytes; None with an error, and where the query has ended and its row has left the log.
        group: The executor group it goes to, beside `action-decision`.
        row: Key and value to write before sending; None when the row is there already (a redelivery).
    """

    query_id: str
    value: bytes | None = None
    group: str = ""
    row: tuple[bytes, bytes] | None = None
    error: UniscaleError | None = None

    @property
    def resent(self) -> bool:
        """Return whether this is a redelivery: answered with the bytes of the first time, or not at all once ended."""
        return self.error is None and self.row is None


@dataclass(frozen=True, slots=True)
class Learned:
    """What one Reward led to: a changed row to write, or nothing; or the error for its dead letter."""

    query_id: str
    verdict: Verdict | None = None
    row: tuple[bytes, bytes] | None = None
    error: UniscaleError | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery found.

    Attributes:
        folded: What was told to the policy beyond the snapshot.
        snapshot_version: Sequence number of the snapshot used; -1 for none.
        refused: Newer snapshots that were damaged, each with its reason.
        next_context, next_reward: First offsets the log does not hold. Read from here when the group's commit
            is further on: it ran ahead of the changelog.
        carried: Rows that the snapshot held and the log that was read does not, by key.
        foreign: Keys of records that the learner never wrote, and which were skipped: in the log, and in the topic of
            the snapshots.
    """

    folded: Folded
    snapshot_version: int
    refused: tuple[CorruptState, ...]
    next_context: int
    next_reward: int
    carried: Mapping[bytes, bytes]
    foreign: tuple[Sequence[bytes], Sequence[bytes]] = ((), ())
