"""The eleven faults between the services and three nodes of Apache Kafka; moments, victims and spans are drawn."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, NamedTuple

from streams.topics import writer_of
from tests.support.deployment import Deployment
from tests.support.nodes import ALL, Nodes
from tests.support.proxy import TO_CLIENT, TO_SERVER, Proxy

SESSION_S: Final = 6.0
"""Session time-out of the services' groups. The nodes' own, after which the controller fences one, is 9 s."""


class Stage(NamedTuple):
    """What a fault strikes."""

    nodes: Nodes
    proxy: Proxy
    deployment: Deployment


Strike = Callable[[Stage, Random], str]
"""Breaks something, repairs it, and returns a description of both."""


class Fault(NamedTuple):
    """How often a fault strikes during one run, at least and at most, and how."""

    least: int
    most: int
    strike: Strike


def _roads(rng: Random) -> list[int]:
    """Draw which nodes a fault of the proxy concerns: all of them as often as one."""
    return list(range(len(ALL))) if rng.random() < 0.5 else [rng.randrange(len(ALL))]


def _named(roads: list[int]) -> str:
    return "all nodes" if len(roads) > 1 else f"node {roads[0] + 1}"


def _span(rng: Random, longest_s: float) -> float:
    """Draw seconds, short ones more often: half are below a quarter of the longest."""
    return round(0.2 + (longest_s - 0.2) * rng.random() ** 2, 2)


def _cut(stage: Stage, rng: Random) -> str:
    roads, span_s = _roads(rng), _span(rng, 2 * SESSION_S)
    with stage.proxy.cut(roads):
        time.sleep(span_s)
    return f"{_named(roads)} cut for {span_s} s"


def _delay(stage: Stage, rng: Random) -> str:
    roads, span_s = _roads(rng), _span(rng, 2 * SESSION_S)
    there_s, back_s = _span(rng, 3.0), _span(rng, 3.0)
    with stage.proxy.delayed(roads, there_s, back_s):
        time.sleep(span_s)
    return f"{_named(roads)} {there_s} s late, answers {back_s} s, for {span_s} s"


def _half_close(stage: Stage, rng: Random) -> str:
    roads, span_s, direction = _roads(rng), _span(rng, 2 * SESSION_S), rng.choice((TO_SERVER, TO_CLIENT))
    with stage.proxy.half_closed(roads, direction):
        time.sleep(span_s)
    return f"{_named(roads)} half-closed to the {'server' if direction == TO_SERVER else 'client'} for {span_s} s"


def _lose_answers(stage: Stage, rng: Random) -> str:
    roads, span_s = _roads(rng), _span(rng, 2 * SESSION_S)
    with stage.proxy.losing_answers(roads):
        time.sleep(span_s)
    return f"{_named(roads)} unheard for {span_s} s"


def _suspend(stage: Stage, rng: Random) -> str:
    """Suspend a node and then a service, each beyond its session."""
    node, node_s = rng.choice(ALL), round(9.0 + _span(rng, 6.0), 2)
    with _stopped(lambda number: stage.nodes.signal(node, number)):
        time.sleep(node_s)
    stage.nodes.wait_whole()
    service, service_s = (
        rng.choice(sorted(stage.deployment.supervisor.services)),
        round(SESSION_S + _span(rng, 8.0), 2),
    )
    pid = stage.deployment.supervisor.services[service].pid
    with _stopped(lambda number: os.killpg(pid, number)):
        time.sleep(service_s)
    return f"node {node} suspended for {node_s} s, then {service} for {service_s} s"


@contextlib.contextmanager
def _stopped(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def _leader(stage: Stage, rng: Random) -> tuple[str, int]:
    topic = rng.choice([each for each in stage.deployment.page if not each.name.endswith("control")])
    partition = rng.randrange(topic.partitions)
    return (
        f"leader of {topic.name.removeprefix(stage.deployment.topics.prefix)}/{partition}",
        stage.nodes.leader(topic.name, partition),
    )


def _controller(stage: Stage, rng: Random) -> tuple[str, int]:
    return "controller", stage.nodes.controller()


def _coordinator(stage: Stage, rng: Random) -> tuple[str, int]:
    topics = stage.deployment.topics
    if rng.random() < 0.4:
        writer = writer_of(topics.changelog("decider", "pending"))
        return "coordinator of the learner's transactions", stage.nodes.coordinator(
            "__transaction_state", writer
        )
    service = rng.choice(["embedder", "decider", "executor", "verifier", "aggregator"])
    group = topics.app_id(service, "mini" if service == "executor" else "")
    return f"coordinator of {service}", stage.nodes.coordinator("__consumer_offsets", group)


def _bounce(who: Callable[[Stage, Random], tuple[str, int]], end: Callable[[Nodes, int], None]) -> Strike:
    def strike(stage: Stage, rng: Random) -> str:
        role, node = who(stage, rng)
        span_s = _span(rng, 8.0)
        end(stage.nodes, node)
        time.sleep(span_s)
        stage.nodes.start(node)
        stage.nodes.wait_whole()
        return f"node {node}, {role}, down for {span_s} s"

    return strike


FAULTS: Final[dict[str, Fault]] = {
    "cut": Fault(3, 5, _cut),
    "delay": Fault(3, 4, _delay),
    "half-close": Fault(3, 5, _half_close),
    "lost-acks": Fault(3, 5, _lose_answers),
    "suspend": Fault(1, 1, _suspend),
    **{
        f"{role}-{manner}": Fault(2, 2, _bounce(who, end))
        for role, who in (("leader", _leader), ("controller", _controller), ("coordinator", _coordinator))
        for manner, end in (("clean", Nodes.stop), ("hard", Nodes.kill))
    },
}
"""By name. Each node is leader of some partitions and coordinator of some groups, and one is the controller."""
