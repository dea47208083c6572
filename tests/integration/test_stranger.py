"""Forty questions in plain English to `up` with its defaults, by somebody who had seen no fact and no grammar.

They were written on 28 November 2026 without access to this repository, and nothing was tuned on them. A fact or a
request is right if the answer contains an accepted word; sums and word problems if the last number is the accepted one.
"""

import json
import re
import signal
import statistics
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from streams.local import llama
from streams.local.broker import free_port
from streams.settings import Settings
from tests.support.command_line import Operator, read_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
QUESTIONS = [json.loads(line) for line in Path(__file__).with_name("stranger.jsonl").read_text().splitlines()]
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
RIGHT, FACTS_RIGHT = 19, 4
"""Floors, below what was measured (docs/benchmarks.md). The aims are 28, which is missed, and 6."""


def is_right(question: dict[str, Any], answer: str) -> bool:
    if question["kind"] in ("sum", "word problem"):
        numbers = NUMBER.findall(answer)
        return bool(numbers) and float(numbers[-1].replace(",", "")) in map(float, question["accepted"])
    words = f" {' '.join(re.findall(r'[a-z0-9]+', answer.lower()))} "
    return any(f" {each.lower()} " in words for each in question["accepted"])


def test_a_strangers_questions(tmp_path: Path) -> None:
    if not llama.is_fetched() and (why := llama.fetch()):
        pytest.skip(f"{llama.PINS.name} cannot be fetched here: {why}")
    settings = Settings().replace(
        bootstrap=f"127.0.0.1:{(port := free_port())}", gateway_port=free_port(), state_dir=str(tmp_path / "state")
    )  # fmt: skip
    operator = Operator(ROOT, settings)
    where = ("--port", f"{port}", "--data", f"{tmp_path}", "--log", f"{tmp_path}/up.log")
    up = operator.start("up", "--broker", "embedded", *where, "--gateway")
    right: Counter[str] = Counter()
    took: list[float] = []
    try:
        read_until(up, "services are ready")
        assert up.stdout is not None
        threading.Thread(target=up.stdout.read, daemon=True).start()
        with httpx.Client(
            base_url=f"http://127.0.0.1:{settings.gateway.port}", timeout=120, trust_env=False
        ) as client:
            for question in QUESTIONS:
                began = time.monotonic()
                body = {"model": "auto", "messages": [{"role": "user", "content": question["text"]}]}
                try:
                    said = client.post("/v1/chat/completions", json=body).raise_for_status().json()
                except httpx.ReadTimeout:
                    # Seen once, on 29 November 2026: no service was processing the query; the broker's log was lost.
                    audit = operator.run("audit", "--settled", code=1).stdout
                    pytest.fail(f"{question['text']}: no answer in 120 s; where it is: {audit}")
                took.append(time.monotonic() - began)
                answer = said["choices"][0]["message"]["content"]
                right[question["kind"]] += is_right(question, answer)
                verdict = "right" if is_right(question, answer) else "wrong"
                print(
                    f"{verdict}  {said['uniscale']['action']:22} {took[-1]:.2f} s  {question['text']} -> {answer!r}"
                )
        print(dict(right), f"median {statistics.median(took):.2f} s")
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
    assert right.total() >= RIGHT, right
    assert right["fact"] >= FACTS_RIGHT, right
