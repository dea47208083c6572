"""What the decider returns: for each record a Decision, a changed row or an error; and the result of a recovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.decider.errors import CorruptState
from agents.decider.log.fold import Folded
from agents.decider.log.rewards import Verdict
from schemas.errors import UniscaleError


@dataclass(frozen=True, slots=True)
class Decided:
    """The result for one Context: a Decision to send, or the error for its dead letter.

    Attributes:
        value: The Decision's bytes; None with an error, or if the query has ended and its row has left the log.
        group: The executor group that also gets it, besides the topic `action-decision`.
        row: Key and value to write before sending; None if the row exists already (a redelivery).
    """

    query_id: str
    value: bytes | None = None
    group: str = ""
    row: tuple[bytes, bytes] | None = None
    error: UniscaleError | None = None

    @property
    def resent(self) -> bool:
        """Return whether this is a redelivery: the same bytes are sent again, or nothing if the query has ended."""
        return self.error is None and self.row is None


@dataclass(frozen=True, slots=True)
class Learned:
    """The result for one Reward: a changed row to write, nothing, or the error for its dead letter."""

    query_id: str
    verdict: Verdict | None = None
    row: tuple[bytes, bytes] | None = None
    error: UniscaleError | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery.

    Attributes:
        folded: What the policy was told in addition to the snapshot.
        snapshot_version: Sequence number of the snapshot used; -1 for none.
        refused: Newer snapshots that were damaged, each with its reason.
        next_context, next_reward: First offsets that the log does not cover. If the group's commit is ahead of the log,
            reading restarts here.
        carried: Rows, by key, that come from the snapshot because the log no longer has them.
        foreign: Keys of skipped records, which the learner cannot have written, in the log and in the snapshots' topic.
    """

    folded: Folded
    snapshot_version: int
    refused: tuple[CorruptState, ...]
    next_context: int
    next_reward: int
    carried: Mapping[bytes, bytes]
    foreign: tuple[Sequence[bytes], Sequence[bytes]] = ((), ())
