"""A small history in lists."""

import time
from pathlib import Path

import pytest

from bench.history import SyntheticHistory
from streams.audit.reading import Raw
from streams.settings import Settings
from tests.support.recorded import CATALOGUE
from tests.support.topic_lists import History, TopicLists


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder: Path = tmp_path_factory.mktemp("history")
    (folder / "catalogue.yaml").write_text(CATALOGUE)
    settings = Settings().replace(
        catalogue=str(folder / "catalogue.yaml"), encoder="hashed", encoder_dimension=24, warm_up=10,
        policy="linucb",        state_dir=str(folder), snapshot_every=200, feedback_wait_s=1.0,
    )  # fmt: skip
    records: dict[tuple[str, int], list[Raw]] = {}
    for w in SyntheticHistory(settings, int(time.time() * 1000) - 60_000).records(200):
        raws = records.setdefault((w.topic, w.partition), [])
        raws.append(Raw(len(raws), w.timestamp_ms, w.key, w.value))
    return settings, records


@pytest.fixture
def log(lived: History) -> TopicLists:
    return TopicLists(*lived)
