"""Send and wait: a record is stored on the broker before the offset of the record that caused it can be committed."""

from collections.abc import Sequence

from schemas.base import MAX_RECORD, MAX_VALUE
from schemas.errors import RecordTooLarge
from streams.runtime.kafka.writing.sender import Sender
from streams.runtime.records import Outgoing
from streams.settings import Settings


class Outbox:
    """Sends a room's records, within the size limit, and waits for delivery."""

    def __init__(self, sender: Sender, settings: Settings) -> None:
        self._sender = sender
        # Leaves space for key, headers and the batch's frame, as in `schemas.base`.
        self.limit = settings.kafka.max_record_bytes - (MAX_RECORD - MAX_VALUE)

    async def send_all(self, records: Sequence[Outgoing]) -> None:
        """Send records and wait for all deliveries. Records of one partition keep their order.

        Raises:
            RecordTooLarge: a value exceeds the limit; nothing was sent.
        """
        for record in records:
            if len(record.value) > self.limit:
                why = (
                    f"takes {len(record.value)} bytes of {self.limit}; shorten the text or narrow the search"
                )
                raise RecordTooLarge(record.topic, "", why)
        await self._sender.send(
            [(record.topic, record.partition, record.key, record.value) for record in records]
        )
