"""Search beside bare vLLM, on the catalogue that ships: its largest model that runs in this process is measured."""

from pathlib import Path

import msgspec
import pytest

from agents.catalogue.file import load_catalogue
from bench.engine import EnginePlan, largest, measure_engine
from bench.streams import BenchFailed
from streams.settings import Settings

CATALOGUE = load_catalogue(Path(Settings().catalogue))


def test_largest_runs_in_this_process() -> None:
    assert max(CATALOGUE.models, key=lambda model: model.parameters).name == "smollm2-135m"
    assert largest(CATALOGUE).name == "mini-4m"


def test_a_catalogue_of_servers_alone_has_none() -> None:
    served = tuple(model for model in CATALOGUE.models if model.endpoint.kind == "chat")
    with pytest.raises(BenchFailed, match="no model of catalogue 'mini' runs in this process"):
        largest(msgspec.structs.replace(CATALOGUE, models=served))


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_search_and_bare_vllm_generate_tokens(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        '{"id": "one", "text": "What is 3 + 4?"}\n{"id": "two", "text": "What is 17 - 8?"}\n'
    )
    plan = EnginePlan(catalogue=Settings().catalogue, questions=str(questions), queries=2, widths=(1, 2, 1))
    found = measure_engine(plan, tmp_path / "parts", print)
    assert found["action"] == "mini-4m/1/2/1"
    assert found["ratio"] > 0
    assert min(found["search_tokens_per_s"], found["raw_vllm_tokens_per_s"]) > 0
