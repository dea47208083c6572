"""A whole deployment on this machine: a broker, the topics and every room, started together and stopped together."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Self

from agents.space.catalogue_file import load_catalogue
from streams.local.broker import Broker
from streams.local.launch import room_commands, settings_for
from streams.local.supervisor import Supervisor
from streams.runtime.kafka.clients import admin
from streams.settings import Settings
from streams.topics import Topics


class Deployment:
    """Context manager that runs everything on this machine; good for examples, trials and measurements.

    Args:
        settings: The deployment. Its address is replaced by that of the broker that is started.
        broker: `embedded`, `kafka` (needs KAFKA_HOME and Java) or `auto`.
        log_path: Where the output of the rooms goes.
        environ: Environment of the rooms besides this process's own, for instance thread counts.
        optional: Rooms to start that no deployment needs, for instance `gateway`.

    Attributes:
        settings: The settings that clients of this deployment need.
        groups: Its executor groups.
        broker: The broker that was started.
        supervisor: The rooms.

    Raises:
        BrokerError: on entering, when the broker cannot be started.
        CatalogueError: on entering, when the settings' catalogue cannot be used.

    Example:
        with Deployment(Settings()) as deployment:
            deployment.supervisor.wait_ready()
            with Client(deployment.settings) as client:
                print(client.ask("How many is 2 + 3?").text)
    """

    def __init__(
        self,
        settings: Settings,
        *,
        broker: Literal["auto", "kafka", "embedded"] = "auto",
        log_path: Path = Path("out/rooms.log"),
        environ: Mapping[str, str] | None = None,
        optional: Iterable[str] = (),
    ) -> None:
        self.settings = settings
        self.groups: tuple[str, ...] = ()
        self.broker: Broker
        self.supervisor: Supervisor
        self._kind = broker
        self._log_path = log_path
        self._environ = dict(environ or {})
        self._optional = tuple(optional)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.groups = tuple(load_catalogue(Path(self.settings.catalogue)).groups)
            self.broker = stack.enter_context(Broker.choose(self._kind, os.environ))
            self.settings = settings_for(self.settings, self.broker)
            admin.create(self.settings, Topics(self.settings).declared(self.groups))
            environ = {**os.environ, **self._environ, **self.settings.environ()}
            commands = room_commands(self.groups, optional=self._optional)
            rooms = Supervisor(commands, environ=environ, log_path=self._log_path)
            self.supervisor = stack.enter_context(rooms)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()
