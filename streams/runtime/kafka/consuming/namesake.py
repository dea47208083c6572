"""One process per instance name. A second process is refused or takes over for good; the first then says why it exits.

Without this, two processes with one name would keep taking the partitions from each other, and neither would make
progress: Kafka treats a static member that joins again as the successor of the first, and aiokafka joins as a new
member when the broker no longer knows its member id.

- If both have the same `state_dir`, the first keeps the name: it holds a lock on a file there until it exits.
- Otherwise the second takes the name. The first rejoins once under its old member id, which the broker refuses if the
  name has passed to another member (KIP-345). It then leaves a mark in its `state_dir` and exits. When it is restarted,
  it waits until the other process has left the group, and gives up after one session.
"""

import asyncio
import contextlib
import fcntl
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn

from kafka.errors import KafkaError

from schemas.errors import UniscaleError
from streams.runtime.kafka.clients import connections
from streams.settings import Settings

log = logging.getLogger("streams.worker")

# FENCED_INSTANCE_ID, which aiokafka does not know.
_FENCED = 82


class NameInUse(UniscaleError):
    """Another process runs under this instance name. Give each process its own `--instance`, or stop one of them."""


class InstanceName:
    """The name of this process in its consumer group.

    Args:
        settings: The process's settings.
        group: The consumer group.
        instance: The value of `--instance`.
    """

    def __init__(self, settings: Settings, group: str, instance: str) -> None:
        self._settings = settings
        self._group = group
        self._instance = instance
        self._lock: IO[bytes] | None = None
        self._mark = settings.state_path("crashes", f"{group}.{instance}.replaced")

    def lock(self) -> None:
        """Reserve the name among processes with this `state_dir`, until this process ends.

        Raises:
            NameInUse: another process has the name.
        """
        path = self._settings.state_path("crashes", f"{self._group}.{self._instance}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("ab")
        try:
            # The lock belongs to the process, so child processes do not keep it alive.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            lock.close()
            raise NameInUse(
                self._told(f"runs with state_dir {Path(self._settings.state_dir).resolve()}")
            ) from None
        except OSError as error:  # a file system without locks
            log.warning("%s: no lock: %s", path, error)
        self._lock = lock

    async def wait(self, pause_s: float = 2.0) -> None:
        """If another process took this name before, wait until it has left the group.

        Raises:
            NameInUse: it is still a member after one session, so it is alive.
        """
        if not self._mark.exists():
            return
        until = time.monotonic() + self._settings.kafka.session_timeout_s + 10.0
        while host := await asyncio.to_thread(self._holder):
            if time.monotonic() > until:
                raise NameInUse(self._told(f"is a member of the group, on {host}"))
            await asyncio.sleep(pause_s)
        self._mark.unlink(missing_ok=True)

    def replaced(self, crash: Callable[[str], NoReturn]) -> NoReturn:
        """Leave the mark and end the process, because another one has joined under this name."""
        with contextlib.suppress(OSError):
            self._mark.touch()
        crash(self._told("has joined, and has this one's partitions now"))

    def _holder(self) -> str:
        """Return the host of the member with this name; empty if there is none or the broker does not say."""
        client = connections.admin(self._settings)
        try:
            found = client.describe_groups([self._group]).get(self._group) or {}
        except KafkaError as error:
            log.warning("%s: its members are unknown: %r", self._group, error)
            return ""
        finally:
            client.close()
        name = f"{self._group}.{self._instance}"
        hosts = [
            m.get("client_host") for m in found.get("members") or () if m.get("group_instance_id") == name
        ]
        return str(hosts[0] or "another host") if hosts else ""

    def _told(self, what: str) -> str:
        return (
            f"instance {self._instance} of {self._group}: another process with this name {what}. Give each process "
            "its own name (`--instance 1`; a second decider is then a standby), or stop one of them"
        )


def notice(coordinator: Any, replaced: Callable[[], None]) -> None:
    """Call `replaced` when another process has joined under the instance name of this aiokafka coordinator."""
    reset, send = coordinator.reset_generation, coordinator._send_req
    asked = ""

    def keep_member_id() -> None:
        nonlocal asked
        member = coordinator.member_id
        reset()
        if (
            member and member != asked
        ):  # only once: a broker that does not know the id either assigns a new one
            asked = coordinator.member_id = member

    async def look(request: Any) -> Any:
        response = await send(request)
        if getattr(response, "error_code", 0) == _FENCED:
            replaced()
        return response

    coordinator.reset_generation, coordinator._send_req = keep_member_id, look
