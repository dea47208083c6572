"""AttemptFailed: a search that came to nothing before any of its text was sent, so that another model may be asked."""

from typing import ClassVar

from schemas.answer import Answer
from schemas.errors import InvalidField
from schemas.record import Record


class AttemptFailed(Record, frozen=True, kw_only=True, tag="attempt-failed.v1"):
    """An attempt that failed. Key: policy shard. Its value is a zstd frame. The first per (query_id, attempt) counts.

    The decider alone follows it: with the Decision of the next attempt, or with the Answer that it carries.

    Attributes:
        answer: The Answer that ends the query if nothing else can be tried; it says what ran, what that took, and whose
            fault it was.
    """

    framed: ClassVar[bool] = True

    answer: Answer

    def __post_init__(self) -> None:
        """Refuse an attempt that has not failed, or that nobody decided."""
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
        """Return which attempt it was, 1 for the first."""
        return self.answer.attempt
