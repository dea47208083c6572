"""`price: auto`: list prices of the pinned release, the same in every process, or a clear error."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.catalogue.file import decode_model, entry_of, with_list_price
from agents.catalogue.list_prices import AS_OF, RELEASE, SOURCE, list_price
from agents.catalogue.models import CatalogueError
from schemas.errors import InvalidField
from schemas.prices import Prices

ROOT = Path(__file__).parents[3]
OPENAI = "https://api.openai.com/v1"


def entry(url: str = OPENAI, model: str = "gpt-4o", kind: str = "chat", **fields: Any) -> dict[str, Any]:
    endpoint = {"kind": kind, "url": url} | ({"model": model} if kind == "chat" else {})
    return {"name": "hosted", "price": "auto", "endpoint": endpoint, **fields}


def test_release_is_the_pinned_one() -> None:
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    assert re.findall(r"^genai-prices==(\S+)", lock, re.MULTILINE) == [RELEASE] == [version("genai-prices")]
    assert f"genai-prices {RELEASE} of {AS_OF.date()}" == SOURCE


@pytest.mark.parametrize(
    ("url", "model", "price"),
    [
        (OPENAI, "gpt-4o", Prices(input=2.5, cached_input=1.25, output=10.0)),
        ("http://127.0.0.1:4000/v1", "openai/gpt-4o", Prices(input=2.5, cached_input=1.25, output=10.0)),
        (
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "gemini-2.5-pro",
            Prices(input=1.25, cached_input=0.125, output=10.0),
        ),
    ],
    ids=["by its address", "behind a proxy", "dearer for long prompts"],
)
def test_entry_has_the_list_price_and_says_of_when(url: str, model: str, price: Prices) -> None:
    found = decode_model(entry(url, model), "file")
    assert found.rate == list_price(url, model) == price
    assert type(found.rate) is Prices, "as records have it"
    assert found.price is not None
    assert found.price.source == SOURCE
    assert decode_model(yaml.safe_load(entry_of(found)), "file") == found, (
        "an entry that is shown can be added again"
    )


def test_record_of_an_added_model_holds_the_price_itself() -> None:
    written = with_list_price(entry())
    assert written["price"] == {"input": 2.5, "cached_input": 1.25, "output": 10.0, "source": SOURCE}
    assert decode_model(written, "record") == decode_model(entry(), "file")
    assert with_list_price(written) == written


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            entry("http://127.0.0.1:8000", "mine"),
            "is auto, but .* does not know mine at http://127.0.0.1:8000; give USD",
        ),
        (entry("http://127.0.0.1:8000", "nobody/mine"), ".* does not know nobody/mine"),
        (entry(model="gpt-unheard-of"), ".* does not know gpt-unheard-of"),
        (entry(kind="http", checkpoint="a/b"), "is auto, which works only for hosted models"),
    ],
)
def test_unknown_price_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(CatalogueError, match=f"file, model 'hosted', field price: {said}"):
        decode_model(given, "file")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(InvalidField, match="needs the package genai-prices"):
        list_price(OPENAI, "gpt-4o")


def test_package_is_imported_only_for_auto() -> None:
    imports = "import sys, agents.catalogue.file; print('genai_prices' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", imports], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
