"""The one error tree.

    UniscaleError                   anything this product refuses
    ├── RecordError                 a record that cannot be read or written, with its `field`
    │   ├── UnreadableRecord        not a zstd frame, not UTF-8, not JSON, or over a limit
    │   ├── UnknownSchema           another record, or a version this release does not know
    │   ├── InvalidField            a field is missing, ill-typed or out of range
    │   └── RecordTooLarge          its encoded value exceeds what the brokers take
    ├── ActionError, CatalogueError, ObjectiveError      agents/catalogue/models.py
    ├── ServingError                                     agents/serving/errors.py
    ├── EncoderError                                     agents/embedding.py
    ├── DeciderError                                     agents/bandit/errors.py
    ├── SearchError                                      agents/search/forest.py
    ├── BadReference, UnpricedAnswer, GradingPoolError   agents/grading, agents/reward
    └── SettingsError, BrokerError, BrokerUnreachable, TopicsWrong, UnknownTopic, RowTooLarge   streams

Every message says what is wrong, where, and what to do about it. In a handler a UniscaleError means that the
record is at fault, and makes a dead letter. What is the fault of the process or of a dependency is not one:
`Unavailable` (`streams.log.base`) and `Crash` (`streams.runtime.errors`).
"""

from collections.abc import Iterable
from difflib import get_close_matches


class UniscaleError(Exception):
    """Base class of everything this product refuses. Catch this, never Exception, to make a dead letter or message.

    Attributes:
        instead: What a client reads in place of the message, which names addresses or quotes what a server said. Empty
            where the message is a client's to read.
    """

    instead: str = ""

    @property
    def for_client(self) -> str:
        """Return what a client may read."""
        return self.instead or str(self)


class RecordError(UniscaleError, ValueError):
    """A record cannot be read or written.

    Attributes:
        record: Name of the record's type, for instance `Query`.
        field: Path of the field at fault, for instance `weights.cost`; empty for the record as a whole.
        why: What is wrong and what to do, without record and field.
    """

    def __init__(self, record: str, field: str, why: str) -> None:
        super().__init__(f"{record}: {field}: {why}" if field else f"{record}: {why}")
        self.record = record
        self.field = field
        self.why = why


class UnreadableRecord(RecordError):
    """The bytes are not a zstd frame, not UTF-8, not a JSON object, or over a limit. Correct the producer."""


class UnknownSchema(RecordError):
    """The `schema` field names another record or a version this release does not know."""


class InvalidField(RecordError):
    """A field is missing, ill-typed or out of range; the message names it and the fix."""


class RecordTooLarge(RecordError):
    """The encoded value exceeds MAX_RECORD. Shorten the text, or narrow the search."""


def shown(value: object, most: int = 80) -> str:
    """Return a value from outside for an error message: short, and safe for any nesting.

    >>> shown("query.v9"), shown([[[]]])
    ("'query.v9'", 'a list')
    """
    if isinstance(value, str):
        return repr(value[:most])
    return (
        repr(value)[:most] if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"
    )


def closest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the one that was meant, or all there are.

    >>> closest("sead", ["seed", "prefix"]), closest("speed_of_light", ["seed", "prefix"])
    ("did you mean 'seed'?", 'known: prefix, seed')
    """
    names = sorted(known)
    return (
        f"did you mean {meant[0]!r}?"
        if (meant := get_close_matches(name, names, 1))
        else f"known: {', '.join(names)}"
    )
