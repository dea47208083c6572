"""A connection that has closed under aiokafka is a broken one, on the event loop that workers run on."""

import asyncio

import pytest
import uvloop
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.admin import ApiVersionRequest

from streams.log.kafka_clients import expect_uvloop


async def _sent_after_close() -> None:
    """Send a request in the moment between the end of a connection and its reader's learning of it."""
    asked = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    connection = AIOKafkaConnection("127.0.0.1", server.sockets[0].getsockname()[1])
    connecting = asyncio.ensure_future(connection.connect())
    await asked.wait()  # for the versions; this server does not answer
    connection._writer.transport.abort()
    await asyncio.sleep(0)
    try:
        await connection.send(ApiVersionRequest())
    finally:
        connecting.cancel()
        server.close()


def test_request_on_a_closed_transport_is_a_connection_error() -> None:
    expect_uvloop()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(KafkaConnectionError):
        runner.run(_sent_after_close())
