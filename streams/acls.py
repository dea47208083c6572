"""Apache Kafka access control lists (ACLs) for each process.

Derived from the services' specs and topic names. Each worker gets only what its service needs, so that no other
service, and no client, can write the learner's log, its snapshots, or the rewards it learns from:

    worker      embedder, executor.<group>, …: reads what its service handles and follows, writes what its service sends
    client      a program that sends queries and feedback, and reads their outcomes
    operator    every command of `python -m streams`, including the creation of topics

`python -m streams topics acls` prints them as commands. All of a deployment's names start with its prefix.
"""

import shlex
from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from streams.client.events import KINDS, topic_names
from streams.runtime.runtime import ServiceSpec
from streams.services import SERVICES
from streams.topics import Topics, writer_of

Resource: TypeAlias = Literal["topic", "group", "transactional-id"]

CLIENT: Final = "client"
OPERATOR: Final = "operator"

_GROUP: Final = "<group>"


class Grant(Struct, frozen=True, kw_only=True):
    """Permission for operations on resources.

    Attributes:
        operations: The operations, under Kafka's names.
        resources: The kind and name of each resource.
        prefixed: Whether the names are prefixes.
    """

    operations: tuple[str, ...]
    resources: tuple[tuple[Resource, str], ...]
    prefixed: bool = False


def grants(topics: Topics, groups: Iterable[str]) -> dict[str, list[Grant]]:
    """Return the grants for each of a deployment's processes: workers by name, `client` and `operator`.

    A group added later needs new grants only for its executor: services that write to all groups may write to every
    topic of that kind.

    Args:
        topics: The deployment's topics.
        groups: The deployment's executor groups.
    """
    found = {}
    for spec in SERVICES.values():
        for group in sorted(set(groups)) if spec.grouped else ("",):
            found[f"{spec.name}.{group}" if group else spec.name] = list(_worker(topics, spec, group))
    return found | {CLIENT: list(_client(topics)), OPERATOR: list(_operator(topics))}


def _worker(topics: Topics, spec: ServiceSpec, group: str) -> Iterator[Grant]:
    yield _looks(topics)
    own: tuple[tuple[Resource, str], ...] = ()
    if spec.inputs:
        own = (("group", topics.app_id(spec.name, group)),)
    read: tuple[tuple[Resource, str], ...] = tuple(
        ("topic", name) for name in spec.readable_topics(topics, group)
    )
    yield Grant(operations=("Read",), resources=(*read, *own))
    written = (*spec.outputs, *spec.state)
    if plain := [name for name in written if _GROUP not in name]:
        yield Grant(operations=("Write",), resources=_topics(topics, plain))
    if grouped := [name.removesuffix(_GROUP) for name in written if _GROUP in name]:
        yield Grant(operations=("Write",), resources=_topics(topics, grouped), prefixed=True)
    if spec.one_writer:
        ids = (writer_of(topics.prefix + name) for name in spec.state if name.endswith("-changelog"))
        yield Grant(operations=("Write",), resources=tuple(("transactional-id", each) for each in ids))
    if not spec.inputs:
        # The gateway shows the lag of the other services' consumer groups.
        yield _everything("group", topics, "Describe")


def _client(topics: Topics) -> Iterator[Grant]:
    yield _looks(topics)
    yield Grant(operations=("Write",), resources=_topics(topics, ["query", "feedback"]))
    # Verifications are for executors only: the next steps contain the same scores.
    names = topic_names(topics, [kind for kind in KINDS if kind != "verification"])
    yield Grant(operations=("Read",), resources=tuple(("topic", name) for name in names))


def _operator(topics: Topics) -> Iterator[Grant]:
    resources: tuple[Resource, ...] = ("topic", "group", "transactional-id")
    for resource in resources:
        yield _everything(resource, topics, "All")


def _looks(topics: Topics) -> Grant:
    """Return the grant to describe topics, which every process needs to check them at startup."""
    return _everything("topic", topics, "Describe", "DescribeConfigs")


def _everything(resource: Resource, topics: Topics, *operations: str) -> Grant:
    return Grant(
        operations=operations, resources=((resource, topics.prefix or "*"),), prefixed=bool(topics.prefix)
    )


def _topics(topics: Topics, names: Iterable[str]) -> tuple[tuple[Resource, str], ...]:
    return tuple(("topic", topics.prefix + name) for name in dict.fromkeys(names))


def command(grant: Grant, principal: str, connection: Iterable[str] = ()) -> str:
    """Return the shell command that creates a grant.

    Args:
        grant: The grant.
        principal: The principal, such as `User:decider`.
        connection: The tool and its connection options.

    >>> command(Grant(operations=("Read",), resources=(("topic", "a"),)), "User:x", ["kafka-acls.sh"])
    'kafka-acls.sh --add --allow-principal User:x --operation Read --topic a'
    """
    words = [*connection, "--add", "--allow-principal", principal]
    for operation in grant.operations:
        words += ["--operation", operation]
    for kind, name in grant.resources:
        words += [f"--{kind}", name]
    if grant.prefixed:
        words += ["--resource-pattern-type", "prefixed"]
    return shlex.join(words)
