"""The memory runtime: topics as lists and a clock of its own. A second implementation of the protocol, not a mock.

Rooms, guard and tables behave as on Kafka, which `tests/streams/runtime` holds both to: order within a partition,
redelivery, tables that recover, dead letters. A worker can die after any single effect (a send, a row, a commit). The
whole loop from Query to Reward takes milliseconds, and the same seed gives the same bytes.

    cluster = Cluster(settings, ROOMS)
    run(cluster.serve(...))
"""

from streams.runtime.memory.broker import Broker, Effect
from streams.runtime.memory.clock import Standstill, run
from streams.runtime.memory.cluster import Cluster
from streams.runtime.memory.runtime import Died, MemoryRuntime

__all__ = ["Broker", "Cluster", "Died", "Effect", "MemoryRuntime", "Standstill", "run"]
