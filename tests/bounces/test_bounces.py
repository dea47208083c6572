"""Services on three nodes of Apache Kafka: whatever befalls the connections and the nodes, each query ends once."""

import os
from pathlib import Path

import msgspec
import pytest

from streams.local.broker import kafka_home
from tests.bounces.__main__ import read, table
from tests.bounces.faults import FAULTS
from tests.bounces.run import Run, nodes_and_proxy, run

on_nodes = [pytest.mark.broker, pytest.mark.slow, pytest.mark.kafka("three nodes"), pytest.mark.timeout(1200)]


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=on_nodes) for fault in FAULTS])
def test_a_fault_loses_and_repeats_nothing(tmp_path: Path, fault: str) -> None:
    home = kafka_home(os.environ)
    assert home is not None
    with nodes_and_proxy(home) as (nodes, proxy):
        done = run(fault, 1, nodes, proxy, tmp_path)
    assert done.failed == "", done.strikes


def test_a_journal_goes_on_where_it_was_cut_short(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    assert read(journal) == {}
    failed = Run(fault="cut", seed=2, commit="a", date="2026-01-01", failed="no Answer: ['q1']")
    passed = Run(fault="cut", seed=1, commit="a", date="2026-01-01", drained_s=3.4)
    journal.write_bytes(
        b"\n".join(msgspec.json.encode(each) for each in (failed, passed)) + b'\n{"fault": "de'
    )
    runs = read(journal)
    assert runs == {("cut", 1): passed, ("cut", 2): failed}
    assert table(runs.values()).splitlines() == [
        "| fault | 1 | 2 |",
        "|---|--:|--:|",
        "| cut | 3 | **failed** |",
    ]
