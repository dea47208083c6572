"""Two processes with one name: who keeps it, and how a member learns that its name has passed on."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.group import HeartbeatRequest, SyncGroupRequest

from streams.log.base import Unavailable
from streams.runtime.kafka_consumer import InstanceName, MemberSession, NameInUse, track_heartbeats
from streams.settings import Settings

_HOLD = """
import sys, time
from streams.runtime.kafka_consumer import InstanceName
from streams.settings import Settings
name = InstanceName(Settings().replace(state_dir=sys.argv[1]), "u.decider", "0")
name.lock()
print("held", flush=True)
time.sleep(600)
"""


def test_the_older_process_keeps_its_name_until_it_ends(tmp_path: Path) -> None:
    settings = Settings().replace(state_dir=str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NameInUse, match=r"instance 0 of u\.decider.*`--instance 1`") as refused:
            InstanceName(settings, "u.decider", "0").lock()
        assert str(tmp_path) in str(refused.value)
        InstanceName(settings, "u.decider", "1").lock()
        InstanceName(settings, "u.verifier", "0").lock()
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
    InstanceName(settings, "u.decider", "0").lock()  # a killed process leaves nothing behind


class Coordinator:
    """A group as the broker keeps it: who has the name, and what a join under an old id is answered with."""

    def __init__(self) -> None:
        self.member_id = "first"
        self.holder: str | None = "first"
        self.asked: list[str] = []

    def reset_generation(self) -> None:
        self.member_id = ""

    async def _send_req(self, request: Any) -> Any:
        class Response:
            error_code = 0

        self.asked.append(self.member_id)
        if self.member_id and self.holder is None:
            Response.error_code = 25
        elif self.member_id and self.member_id != self.holder:
            Response.error_code = 82
        return Response


@pytest.mark.parametrize(("holder", "noticed", "asked"), [("second", 1, ["first"]), (None, 0, ["first", ""])])
def test_a_member_that_is_not_known_asks_once_under_its_old_id(
    holder: str | None, noticed: int, asked: list[str]
) -> None:
    coordinator, replaced = Coordinator(), []
    track_heartbeats(coordinator, lambda: replaced.append(1), MemberSession(10.0))
    coordinator.holder = holder  # the name has passed on, or the session has ended
    coordinator.reset_generation()  # as after a heartbeat with UNKNOWN_MEMBER_ID
    assert asyncio.run(coordinator._send_req("join")).error_code == (82 if holder else 25)
    if holder is None:
        coordinator.reset_generation()  # as aiokafka does where a join is answered so
        assert asyncio.run(coordinator._send_req("join")).error_code == 0
    assert coordinator.asked == asked
    assert len(replaced) == noticed


def test_lapsed_session_blocks_effects_until_the_group_answers() -> None:
    now_s = 100.0
    session = MemberSession(10.0, clock=lambda: now_s)
    coordinator = Coordinator()
    track_heartbeats(coordinator, lambda: None, session)
    heartbeat = HeartbeatRequest("group", 1, "first")
    now_s = 109.0
    asyncio.run(coordinator._send_req(heartbeat))
    now_s = 119.0
    session.check()
    asyncio.run(coordinator._send_req("offsets"))  # whoever is not a member may ask that, too
    now_s = 120.0  # it was stopped
    with pytest.raises(Unavailable, match="no heartbeat for 11 s"):
        session.check()
    coordinator.holder = None  # and the group has gone on without it
    asyncio.run(coordinator._send_req(heartbeat))
    with pytest.raises(Unavailable):
        session.check()
    coordinator.holder = "first"
    asyncio.run(coordinator._send_req(SyncGroupRequest("group", 2, "first", None, [])))
    session.check()
