"""The one error tree.

    UniscaleError                   whatever this product refuses; each package hangs its own branch here
    └── RecordError                 a record that cannot be read or written, with its `field`
        ├── UnreadableRecord        not a zstd frame, not UTF-8, not JSON
        ├── UnknownSchema           another record, or a version this release does not know
        ├── InvalidField            a field is missing, ill-typed or out of range
        └── RecordTooLarge          its encoded value exceeds what the brokers take

Every message says which record, which field, what is wrong and what to do about it. A RecordError makes a
dead letter; nothing else is caught there.
"""


class UniscaleError(Exception):
    """Whatever this product refuses. Catch this, never Exception, and only where a dead letter is made."""


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
    """The bytes are no zstd frame, no UTF-8 or no JSON object. Mend the producer."""


class UnknownSchema(RecordError):
    """The `schema` field names another record or a version this release does not know."""


class InvalidField(RecordError):
    """A field is missing, ill-typed or out of range; the message names it and the mend."""


class RecordTooLarge(RecordError):
    """The encoded value exceeds MAX_RECORD. Shorten the text, or narrow the search."""
