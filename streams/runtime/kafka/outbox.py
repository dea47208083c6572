"""Send and wait: a record exists before the offset of its cause may move."""

import asyncio
from collections.abc import Sequence

import faust

from schemas.base import MAX_RECORD, MAX_VALUE
from schemas.errors import RecordTooLarge
from streams.runtime.base import Outgoing
from streams.settings import Settings


class Outbox:
    """The way out of a room.

    Handlers run side by side, and each would have a request of its own made to the broker. So after one has
    sent, the others wait for a moment and send together. Where nothing was sent lately, nothing waits.
    """

    def __init__(self, app: faust.App, settings: Settings) -> None:
        self.app = app
        self._pause_s = settings.send_interval_ms / 1000
        self._open_at = 0.0
        # Room for key, headers and the batch's own frame, as in `schemas.base`.
        self.limit = settings.max_record_bytes - (MAX_RECORD - MAX_VALUE)

    def fits(self, value: bytes) -> bool:
        """Say whether a value may be sent."""
        return len(value) <= self.limit

    async def send(self, topic: str, key: bytes | None, value: bytes) -> None:
        """Send one record and wait for its delivery.

        Raises:
            RecordTooLarge: the value exceeds the limit.
        """
        await self.send_all([Outgoing(topic, key, value)])

    async def send_all(self, records: Sequence[Outgoing]) -> None:
        """Send records in order and wait for all deliveries."""
        for record in records:
            if not self.fits(record.value):
                why = (
                    f"takes {len(record.value)} bytes of {self.limit}; shorten the text or narrow the search"
                )
                raise RecordTooLarge(record.topic, "", why)
        await self._gather()
        producer = self.app.producer
        pending = [
            await producer.send(r.topic, r.key, r.value, None, None, None) for r in records
        ]  # fmt: skip
        for delivery in pending:
            await delivery

    async def _gather(self) -> None:
        """Wait for the next moment of sending; whoever comes first after it sets the one that follows."""
        now, at = asyncio.get_running_loop().time(), self._open_at
        if now < at:
            await asyncio.sleep(at - now)
        if self._open_at == at:
            self._open_at = max(now, at) + self._pause_s
