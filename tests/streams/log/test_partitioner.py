"""Keys are placed as every other client of the topics with Kafka's default partitioner places them."""

from aiokafka.partitioner import murmur2 as aiokafkas
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2 as kafka_pythons

from streams.log.partitioner import murmur2, partition_for


@given(key=st.binary(max_size=60))
def test_the_hash_is_that_of_both_clients(key: bytes) -> None:
    assert murmur2(key) == aiokafkas(key) & 0xFFFFFFFF == kafka_pythons(key) & 0xFFFFFFFF


@given(key=st.binary(max_size=20), partitions=st.integers(1, 100))
def test_missing_key_has_the_partition_of_the_empty_one(key: bytes, partitions: int) -> None:
    assert 0 <= partition_for(key, partitions) < partitions
    assert partition_for(None, partitions) == partition_for(b"", partitions)
