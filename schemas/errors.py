"""The error tree.

    UniscaleError                   base class
    ├── RecordError                 a record that cannot be read or written, with its `field`
    │   ├── UnreadableRecord        not a zstd frame, not UTF-8, not JSON, or over a limit
    │   ├── UnknownSchema           a different record, or a version this release does not know
    │   ├── InvalidField            a field is missing, ill-typed or out of range
    │   └── RecordTooLarge          its encoded value exceeds the brokers' limit
    ├── ActionError, CatalogueError, ObjectiveError      agents/catalogue/models.py
    ├── ServingError                                     agents/serving/errors.py
    ├── EncoderError                                     agents/embedding.py
    ├── DeciderError                                     agents/bandit/errors.py
    ├── SearchError                                      agents/search/forest.py
    ├── BadReference, UnpricedAnswer, GradingPoolError   agents/grading, agents/reward
    └── SettingsError, BrokerError, BrokerUnreachable, TopicsWrong, UnknownTopic, RowTooLarge   streams

Every message says what is wrong, where, and what to do about it. In a handler, a UniscaleError means that the record is
at fault, and the record becomes a dead letter. Faults of the process or of a dependency have different classes:
`Unavailable` (`streams.log.base`) and `Crash` (`streams.runtime.errors`).
"""

from collections.abc import Iterable
from difflib import get_close_matches


class UniscaleError(Exception):
    """Base class for this product's errors. Catch this, not Exception, to write a dead letter or an error message.

    Attributes:
        instead: Message to show clients if the error's own contains addresses or quotes a server. Empty if clients may
            see the error's own message.
    """

    instead: str = ""

    @property
    def for_client(self) -> str:
        """Return the message to show clients."""
        return self.instead or str(self)


class RecordError(UniscaleError, ValueError):
    """A record cannot be read or written.

    Attributes:
        record: Name of the record type, for instance `Query`.
        field: Path of the field at fault, for instance `weights.cost`; empty for the record as a whole.
        why: The problem and how to fix it, without the record and the field.
    """

    def __init__(self, record: str, field: str, why: str) -> None:
        super().__init__(f"{record}: {field}: {why}" if field else f"{record}: {why}")
        self.record = record
        self.field = field
        self.why = why


class UnreadableRecord(RecordError):
    """The bytes are not a zstd frame, not UTF-8, not a JSON object, or over a limit. Correct the producer."""


class UnknownSchema(RecordError):
    """The `schema` field names a different record, or a version that this release does not know."""


class InvalidField(RecordError):
    """A field is missing, ill-typed or out of range. The message names the field and the fix."""


class RecordTooLarge(RecordError):
    """The encoded value exceeds MAX_RECORD. Shorten the text, or narrow the search."""


def shown(value: object, most: int = 80) -> str:
    """Return an external value in a form fit for an error message: short, and safe however deeply nested.

    >>> shown("query.v9"), shown([[[]]])
    ("'query.v9'", 'a list')
    """
    if isinstance(value, str):
        return repr(value[:most])
    return (
        repr(value)[:most] if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"
    )


def closest(name: str, known: Iterable[str]) -> str:
    """Return the ending for a message about an unknown name: the closest known name, or all known names.

    >>> closest("sead", ["seed", "prefix"]), closest("speed_of_light", ["seed", "prefix"])
    ("did you mean 'seed'?", 'known: prefix, seed')
    """
    names = sorted(known)
    return (
        f"did you mean {meant[0]!r}?"
        if (meant := get_close_matches(name, names, 1))
        else f"known: {', '.join(names)}"
    )
