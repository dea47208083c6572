"""What many handlers send at once: order within a partition, one acknowledgement for all, and what is refused."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.log.pacing import BURST
from streams.runtime.kafka_sender import Sender
from streams.runtime.memory import run

PARTITIONS = 3


class Broker:
    """Takes batches as aiokafka's producer does, and acknowledges them when it is told to."""

    def __init__(self, batch_bytes: int = 4096) -> None:
        self.batch_bytes = batch_bytes
        self.under_way: list[tuple[tuple[str, int], list[bytes], asyncio.Future[None]]] = []
        self.log: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)

    async def partitions_for(self, topic: str) -> set[int]:
        await asyncio.sleep(0)
        return set(range(PARTITIONS))

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(self.batch_bytes, 0)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Any:
        records = [record.value for record in DefaultRecordBatch(batch._build())]
        acknowledged = asyncio.get_running_loop().create_future()
        assert (topic, partition) not in [place for place, _, _ in self.under_way], "one batch at a time"
        self.under_way.append(((topic, partition), records, acknowledged))
        return acknowledged

    def acknowledge(self, at: int, error: Exception | None = None) -> None:
        place, records, acknowledged = self.under_way.pop(at)
        if error:
            acknowledged.set_exception(error)
        else:
            self.log[place] += records
            acknowledged.set_result(None)


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_what_many_send_in_one_moment_shares_a_batch() -> None:
    broker = Broker()
    sender = Sender(lambda: broker, 0.0)
    calls = [asyncio.ensure_future(sender.send([("t", 1, b"k", b"%d" % n)])) for n in range(5)]
    await settle()
    assert [records for _, records, _ in broker.under_way] == [[b"0", b"1", b"2", b"3", b"4"]]
    assert not any(call.done() for call in calls)
    broker.acknowledge(0)
    await asyncio.gather(*calls)


async def test_sends_after_a_burst_wait_for_the_pause() -> None:
    broker = Broker()
    sender = Sender(lambda: broker, 0.05)
    calls = []
    for at in range(BURST):
        calls.append(asyncio.ensure_future(sender.send([("t", at, None, b"a")])))
        await settle()
        assert len(broker.under_way) == at + 1, "nothing was sent before: nothing waits"
    calls += [asyncio.ensure_future(sender.send([("t", BURST + p, None, b"b")])) for p in (1, 2)]
    await settle()
    assert len(broker.under_way) == BURST
    await asyncio.sleep(0.08)
    assert len(broker.under_way) == BURST + 2
    for _ in calls:
        broker.acknowledge(0)
    await asyncio.gather(*calls)


async def test_rest_of_a_full_batch_does_not_wait() -> None:
    broker = Broker(batch_bytes=1)
    sender = Sender(lambda: broker, 3600.0)
    calls = [asyncio.ensure_future(sender.send([("t", 0, None, b"%d" % n)])) for n in range(5)]
    for _ in calls:
        await settle()
        broker.acknowledge(0)
    await asyncio.wait_for(asyncio.gather(*calls), 5.0)
    assert broker.log["t", 0] == [b"0", b"1", b"2", b"3", b"4"]


async def test_records_behind_a_partial_batch_wait_for_the_pause() -> None:
    broker = Broker()
    sender, calls = Sender(lambda: broker, 0.05), []
    for at in range(BURST):
        calls.append(asyncio.ensure_future(sender.send([("t", min(at, 1), None, b"a")])))
        await settle()
        if at:
            broker.acknowledge(1)
    calls += [asyncio.ensure_future(sender.send([("t", 0, None, b"%d" % n)])) for n in range(2)]
    await settle()
    broker.acknowledge(0)
    await settle()
    assert not broker.under_way, "what may still be grouped is not sent alone"
    await asyncio.sleep(0.08)
    assert [records for _, records, _ in broker.under_way] == [[b"0", b"1"]]
    broker.acknowledge(0)
    await asyncio.gather(*calls)


@given(st.binary(min_size=1, max_size=40))
def test_a_key_lies_where_every_kafka_client_puts_it(key: bytes) -> None:
    async def main() -> None:
        broker = Broker()
        call = asyncio.ensure_future(Sender(lambda: broker, 0.0).send([("t", None, key, b"v")]))
        await settle()
        everywhere = list(range(PARTITIONS))
        assert broker.under_way[0][0] == ("t", DefaultPartitioner()(key, everywhere, everywhere))
        broker.acknowledge(0)
        await call

    run(main())


async def test_a_refusal_reaches_those_whose_records_it_concerns() -> None:
    broker = Broker()
    sender = Sender(lambda: broker, 0.0)
    both = asyncio.ensure_future(sender.send([("t", 0, None, b"a"), ("t", 1, None, b"b")]))
    other = asyncio.ensure_future(sender.send([("t", 1, None, b"c")]))
    await settle()
    broker.acknowledge(0, MessageSizeTooLargeError("too large"))
    with pytest.raises(MessageSizeTooLargeError):
        await both
    broker.acknowledge(0)
    await other
    assert broker.log == {("t", 1): [b"b", b"c"]}
    again = asyncio.ensure_future(sender.send([("t", 0, None, b"d")]))
    await settle()
    broker.acknowledge(0)
    await again


def test_without_a_connection_it_is_the_sender_who_is_told() -> None:
    def none_yet() -> Any:
        raise KafkaError("not connected")

    with pytest.raises(KafkaError, match="not connected"):
        run(Sender(none_yet, 0.0).send([("t", 0, None, b"a")]))


@settings(deadline=None)
@given(st.data())
def test_records_of_a_partition_arrive_once_in_order(data: st.DataObject) -> None:
    async def main() -> None:
        broker = Broker(batch_bytes=data.draw(st.sampled_from([1, 150, 4096])))
        sender = Sender(lambda: broker, 0.0)
        sent: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
        calls: list[tuple[asyncio.Future[None], list[tuple[tuple[str, int], bytes]]]] = []
        for number in range(data.draw(st.integers(1, 12))):
            places = data.draw(st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=3))
            values = [(("t", p), b"%d.%d" % (number, at)) for at, p in enumerate(places)]
            for place, value in values:
                sent[place].append(value)
            calls.append(
                (
                    asyncio.ensure_future(sender.send([(*place, b"k", value) for place, value in values])),
                    values,
                )
            )
            for _ in range(data.draw(st.integers(0, 3))):
                await asyncio.sleep(0)
            if data.draw(st.booleans()) and broker.under_way:
                broker.acknowledge(data.draw(st.integers(0, len(broker.under_way) - 1)))
        while not all(call.done() for call, _ in calls):
            await settle()
            while broker.under_way:
                broker.acknowledge(data.draw(st.integers(0, len(broker.under_way) - 1)))
            await settle()
            for call, values in calls:
                if call.done():
                    assert all(value in broker.log[place] for place, value in values)
        assert broker.log == sent

    run(main())
