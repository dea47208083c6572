"""The commands of the rooms, and the settings that a local broker needs."""

import socket
from collections.abc import Iterable, Sequence

from streams.local.broker import Broker
from streams.local.supervisor import python
from streams.rooms import ROOMS
from streams.settings import Settings


def settings_for(settings: Settings, broker: Broker) -> Settings:
    """Return the settings for a broker that was started here."""
    fields: dict[str, object] = {"bootstrap": broker.bootstrap}
    if broker.kind == "embedded":
        # The first join of a group takes half the rebalance timeout.
        fields |= {"session_timeout_s": 6.0, "rebalance_timeout_s": 6.0}
        # A pause between two sends groups nothing where each record has a batch of its own.
        fields |= {"send_interval_ms": 0.0}
    return settings.replace(**fields)


def with_previews(settings: Settings) -> Settings:
    """Return the settings with a port at which the decider tells a gateway on this machine what it would choose."""
    if settings.previews.port or settings.previews.urls:
        return settings
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return settings.replace(decider_port=free.getsockname()[1])


def room_commands(
    groups: Iterable[str], *, metrics_port: int = 0, optional: Iterable[str] = ()
) -> dict[str, Sequence[str]]:
    """Return the command of every room, one process each, one executor per group, and of these optional rooms."""
    groups, asked = tuple(groups), set(optional)
    # Against the stream: what a room writes finds its reader started.
    rooms = [
        (spec.name, group)
        for spec in reversed(ROOMS.values())
        if not spec.optional or spec.name in asked
        for group in (groups if spec.grouped else ("",))
    ]
    commands: dict[str, Sequence[str]] = {}
    for at, (room, group) in enumerate(rooms):
        argv = [*python(), "worker", room]
        if group:
            argv += ["--group", group]
        if metrics_port:
            argv += ["--metrics-port", str(metrics_port + at)]
        commands[f"{room}.{group}" if group else room] = argv
    return commands
