"""The page "From 200 questions to a prior", line by line, with a scripted upstream in place of hosted models."""

import json
import re
import shlex
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from streams.local.broker import free_port
from streams.settings import Settings
from tests.support.command_line import Operator, read_until
from tests.support.upstream import Body, Upstream

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "prior.md"
QUESTIONS = 12


def says(body: Body) -> str:
    """Return the right answer from the model `large`, and a wrong one to every other question from `small`."""
    a, b = map(int, re.findall(r"\d+", body["messages"][-1]["content"]))
    wrong = body["model"] == "small" and a % 2 == 1
    return f"It is {a * b + wrong}."


class Reader:
    """Somebody who types the lines of the page in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        settings = Settings().replace(
            bootstrap=f"127.0.0.1:{self.port}", gateway_port=free_port(), encoder="hashed"
        )
        self.operator = Operator(folder, settings)
        self.asked = ""
        self.up: subprocess.Popen[str] | None = None
        self.said: list[str] = []

    def type(self, line: str) -> None:
        words = shlex.split(line.replace("QUERY_ID", self.asked))[3:]
        if "up" in words:
            self.stop()
            self.up = self.operator.start(*words, "--port", str(self.port), "--log", "up.log")
            read_until(self.up, "services are ready")
            assert self.up.stdout is not None
            threading.Thread(target=self.up.stdout.read, daemon=True).start()
            return
        done = self.operator.run(*words)
        self.said.append(done.stdout)
        if words[0] == "ask":
            self.asked = re.findall(r"\[(ask-\w+): ok", done.stderr)[0]

    def stop(self) -> None:
        if self.up is not None:
            self.up.send_signal(signal.SIGTERM)
            assert self.up.wait(60) == 0
        self.up = None


def test_every_line_of_the_page_runs(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    lines = [
        line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    assert len(lines) == 8
    upstream, reader = Upstream(models=("small", "large"), says=says), Reader(tmp_path)
    try:
        reader.operator.run("init", "--openai", f"{upstream.url}/v1")
        graded = {"reference": "?", "grader": "last-number"}
        questions = [
            {"text": f"How much is {n} times 7?", **graded, "reference": str(n * 7)} for n in range(QUESTIONS)
        ]
        (tmp_path / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
        for line in lines:
            if line == "python -m streams check":
                [addition] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
                with (tmp_path / "uniscale.yaml").open("a") as file:
                    file.write(addition)
                assert yaml.safe_load((tmp_path / "uniscale.yaml").read_text())["prior"] == "prior.bin"
            reader.type(line)
        first, rest, prior, check, _, explained = reader.said
        assert "10 questions × 2 configurations: 20 searches, 0 done" in first
        assert "20 outcomes" in first
        assert f"{QUESTIONS} questions × 2 configurations: {2 * QUESTIONS} searches, 20 done" in rest
        rows = [json.loads(line) for line in (tmp_path / "outcomes.jsonl").read_text().splitlines()]
        right = {
            name: [row["correct"] for row in rows if row["action"] == f"{name}/1/1/1"]
            for name in ("small", "large")
        }
        assert (sum(right["small"]), sum(right["large"])) == (QUESTIONS / 2, QUESTIONS)
        assert f"prior.bin: {QUESTIONS} questions" in prior
        assert "contextual begins from prior.bin" in check
        assert "by policy" in explained
        assert "the learner begins from prior" in (tmp_path / "up.log").read_text()
    finally:
        reader.stop()
        upstream.close()
