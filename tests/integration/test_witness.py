"""A witness that is not ours: Apache Kafka's own tools on our topics."""

import json
import os
import subprocess

import pytest

from streams.local.broker import LocalBroker
from tests.support.deployment import Ask, Deploy

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kafka("its tools are the witness"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


def tool(broker: LocalBroker, name: str, *arguments: str) -> str:
    assert broker.home is not None
    done = subprocess.run(
        [str(broker.home / "bin" / name), "--bootstrap-server", broker.bootstrap, *arguments],
        capture_output=True, text=True, timeout=200, check=False, env={**os.environ, "KAFKA_LOG_LEVEL": "ERROR"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kafka_tools_see_records_settings_and_no_lag(broker: LocalBroker, deploy: Deploy, ask: Ask) -> None:
    loop = deploy()
    t = loop.topics
    loop.serve(*(ask(n) for n in range(12)))

    def lag() -> int:
        total = 0
        for line in tool(broker, "kafka-consumer-groups.sh", "--describe", "--all-groups").splitlines():
            words = line.split()
            if len(words) > 5 and words[0].startswith(loop.settings.kafka.prefix) and words[5].isdigit():
                total += int(words[5])
        return total

    loop.until(lambda: lag() == 0, what="no lag in any group")
    for topic, kind in ((t.decision, "decision.v1"), (t.reward, "reward.v1")):
        said = tool(
            broker, "kafka-console-consumer.sh", "--topic", topic, "--from-beginning", "--max-messages", "12",
            "--timeout-ms", "60000",
        )  # fmt: skip
        records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert len(records) == 12
        assert {r["schema"] for r in records} == {kind}
    described = tool(broker, "kafka-topics.sh", "--describe", "--topic", t.control)
    assert "PartitionCount: 1" in described
    assert "cleanup.policy=compact" in described
    assert f"max.message.bytes={loop.settings.kafka.max_record_bytes}" in described
