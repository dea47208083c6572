"""Kafka's default partitioner, for both runtimes."""

import functools
import struct

# The Java client, kafka-python and aiokafka partition by the key's 32-bit MurmurHash2. librdkafka's default is CRC-32,
# and for a record without a key a client picks any partition. The hash is reimplemented here because the in-memory
# runtime must partition like Kafka's clients without importing them; a test compares the results with theirs.

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_WORD = 0xFFFFFFFF


def partition_for(key: bytes | None, partitions: int) -> int:
    """Return the partition of a key, given the number of partitions.

    >>> partition_for(b"q-1", 8)
    6
    """
    return (murmur2(key or b"") & 0x7FFFFFFF) % partitions


# A query's records share one key, so its hash is cached.
@functools.lru_cache(maxsize=4096)
def murmur2(key: bytes) -> int:
    """Return the 32-bit MurmurHash2 of a key."""
    whole = len(key) & ~3
    found = _SEED ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        word = word * _MIX & _WORD
        word = (word ^ word >> 24) * _MIX & _WORD
        found = found * _MIX & _WORD ^ word
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _MIX & _WORD
    found = (found ^ found >> 13) * _MIX & _WORD
    return found ^ found >> 15
