"""AttemptFailed: a search that failed before any text was sent, so another model may be tried."""

from typing import ClassVar

from schemas.answer import Answer
from schemas.errors import InvalidField
from schemas.record import Record


class AttemptFailed(Record, frozen=True, kw_only=True, tag="attempt-failed.v1"):
    """A failed attempt. Key: policy shard. The value is a zstd frame. The first per (query_id, attempt) wins.

    Only the decider handles this record. It sends either the next attempt's Decision or the Answer in this record.

    Attributes:
        answer: The Answer that ends the query if nothing else can be tried. It contains the action, time and fault.
    """

    framed: ClassVar[bool] = True

    answer: Answer

    def __post_init__(self) -> None:
        """Reject an attempt that has not failed, or that has no Decision."""
        answer = self.answer
        if answer.status != "failed" or answer.text is not None:
            why = (
                f"is {answer.status}{'' if answer.text is None else ', with a text'}; write the Answer itself"
            )
            raise InvalidField("AttemptFailed", "answer.status", why)
        if answer.seq is None or answer.action is None:
            raise InvalidField(
                "AttemptFailed", "answer.seq", "is missing, or its action is; give the Decision's"
            )

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.answer.query_id

    @property
    def attempt(self) -> int:
        """Return the attempt number, 1 for the first."""
        return self.answer.attempt
