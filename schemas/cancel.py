"""Cancel: whoever asked no longer waits for the answer; the executor drops the search at its next step."""

from schemas.base import Record
from schemas.checks import check_id
from schemas.errors import InvalidField

MAX_CANCEL_REASON = 500
"""Characters of the reason: it is repeated in the Answer's error."""


class Cancel(Record, frozen=True, kw_only=True, tag="cancel.v1"):
    """Ends the search of one query. Key: query_id. Sent to the executor group that runs it.

    A query that has its Answer already stays as it is.

    Attributes:
        query_id: The query's id.
        by: Who cancels, for instance `gateway`.
        reason: Why, for instance `client disconnected`.
    """

    query_id: str
    by: str
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse an id that is not a key, nobody as the sender, and a reason of any length."""
        check_id("Cancel", self.query_id)
        if not 1 <= len(self.by) <= 200:
            raise InvalidField("Cancel", "by", "must have 1 to 200 characters; say who cancels")
        if len(self.reason) > MAX_CANCEL_REASON:
            why = f"has {len(self.reason)} characters; shorten it to {MAX_CANCEL_REASON}"
            raise InvalidField("Cancel", "reason", why)
