"""The page "Your own models", line by line: a real vLLM server, and a scripted upstream in place of a hosted model."""

import json
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from schemas.decision import Decision
from streams.local.broker import free_port
from streams.settings import Settings
from tests.support.command_line import Operator, read_until
from tests.support.upstream import Upstream
from tests.support.vllm_servers import mini_servers

pytestmark = [pytest.mark.broker, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own-models.md"
SERVED = "Qwen/Qwen3-8B"
"""What the page serves with vLLM; here the smallest model that ships is served under this name."""


def page_lines() -> list[str]:
    """Return every line of the page's bash blocks, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def hosted() -> Iterator[Upstream]:
    upstream = Upstream(key="sk-test", says=lambda body: "It is \\boxed{63}.")
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mini_servers(tmp_path_factory.mktemp("vllm"), {SERVED: ROOT / "models" / "mini-1m"}) as urls:
        yield urls[SERVED]


class Walk:
    """A reader of the page, who types its lines in an empty folder with the addresses that are there."""

    def __init__(self, folder: Path, vllm: str, hosted: str) -> None:
        self.port = free_port()
        settings = Settings().replace(bootstrap=f"127.0.0.1:{self.port}", gateway_port=free_port())
        self.operator = Operator(folder, settings)
        self.addresses = {
            "http://127.0.0.1:8000": vllm,
            "https://api.example.com/v1": hosted,
            "127.0.0.1:8080": f"127.0.0.1:{settings.gateway.port}",
        }
        self.asked = ""
        self.up: subprocess.Popen[str] | None = None
        self.said: dict[str, str] = {}

    def type(self, line: str) -> None:
        """Run one line of the page."""
        for there, here in {**self.addresses, "QUERY_ID": self.asked}.items():
            line = line.replace(there, here)
        words = shlex.split(line)
        if words[0] == "export":
            name, _, _ = words[1].partition("=")
            self.operator.environ[name] = "sk-test"
        elif words[:3] == ["python", "-m", "streams"]:
            self.streams(words[3:])
        elif words[0] == "curl":
            done = subprocess.run(words, capture_output=True, timeout=120, check=True)
            kind = "feedback" if "/v1/feedback" in line else "chat.completion"
            assert json.loads(done.stdout)["object"] == kind, done.stdout
        else:
            assert words[:3] == ["vllm", "serve", SERVED], "which runs already"

    def streams(self, words: list[str]) -> None:
        if words[0] == "up":
            self.up = self.operator.start(*words, "--port", str(self.port), "--log", "up.log")
            self.said["up"] = read_until(self.up, "services are ready")
            assert self.up.stdout is not None
            threading.Thread(target=self.up.stdout.read, daemon=True).start()
            return
        done = self.operator.run(*words)
        self.said[words[0]] = done.stdout
        if words[0] == "ask" and not self.asked:
            self.asked = re.findall(r"\[(ask-\w+): ok", done.stderr)[0]

    def decisions(self) -> list[Decision]:
        """Return all Decisions in the order in which they were made."""
        lines = self.operator.run("follow", "decision", "--since", "1h", "--no-wait", "--json").stdout
        events = [json.loads(line) for line in lines.splitlines()]
        found = [msgspec.convert(event["record"], Decision) for event in events]
        return sorted(found, key=lambda decision: decision.seq)

    def close(self) -> None:
        if self.up is not None:
            self.up.send_signal(signal.SIGTERM)
            assert self.up.wait(60) == 0


def test_every_line_of_the_page_runs(
    tmp_path_factory: pytest.TempPathFactory, own: str, hosted: Upstream
) -> None:
    walk = Walk(tmp_path_factory.mktemp("walk"), own, f"{hosted.url}/v1")
    try:
        lines = page_lines()
        assert len(lines) == 11
        for line in lines:
            walk.type(line)
        assert "2 models: qwen3-8b, hosted" in walk.said["init"]
        assert "0 would fail" in walk.said["check"]
        assert "still to be filled in" in walk.said["check"]
        assert "by baseline" in walk.said["explain"]
        assert "price $" in walk.operator.run("explain", walk.asked).stdout, "once it is graded"
        # The third question had the page's first reference, and the verdict came later.
        made = walk.decisions()
        assert [(each.reason, each.action.id) for each in made] == [("baseline", "qwen3-8b/1/1/1")] * 3
        for _ in range(12):
            said = walk.operator.run("ask", "How much is 9 times 7?", "--reference", "63").stderr
            assert "[graded " in said
        assert "no query nobody is on record" in walk.operator.run("feedback", "nobody", "true").stderr
        later = walk.decisions()[4:]
        assert "baseline" not in {each.reason for each in later}
        assert {each.action.model for each in later} == {"qwen3-8b", "hosted"}
        log = (walk.operator.folder / "up.log").read_text()
        assert "every query gets the baseline, qwen3-8b/1/1/1" in log
        assert "an answer has been graded" in log
        assert "0 discrepancies" in walk.operator.run("audit").stdout
    finally:
        walk.close()
