"""`check`: each mistake in a configuration is named with its field and its fix, and exits with 1 if it would fail."""

import base64
import io
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from tests.support.upstream import Upstream

Run = Callable[..., Result]
Start = Callable[..., Upstream]

ROOT = Path(__file__).parents[3]
FILE = Path("uniscale.yaml")


def entry(url: str, name: str = "hosted", **fields: Any) -> dict[str, Any]:
    """Return an entry of a chat endpoint; fields of its endpoint have a dot before their name."""
    usual = {".kind": "chat", ".url": url, ".model": "hosted", "price": {"input": 0.15, "output": 0.6}}
    given = {field: value for field, value in (usual | fields).items() if value is not None}
    endpoint = {field[1:]: value for field, value in given.items() if field.startswith(".")}
    own = {field: value for field, value in given.items() if not field.startswith(".")}
    return {"name": name, **own, "endpoint": endpoint}


def configured(*entries: dict[str, Any], catalogue: dict[str, Any] | None = None, **settings: Any) -> None:
    """Write the configuration file."""
    models = {"name": "mine", "verifier": "none", "verifiers": [], "models": list(entries)}
    FILE.write_text(yaml.safe_dump({**settings, "catalogue": models | (catalogue or {})}, sort_keys=False))


def test_good_file_passes_with_its_notes(run: Run, upstream: Start) -> None:
    server = upstream(models=("hosted", "other"))
    first: dict[str, Any] = {".extra_body": {"temperature": 0.5}, ".n": [1, 4]}
    second: dict[str, Any] = {".model": "other"}
    configured(entry(server.url, **first), entry(server.url, "other", **second))
    said = run("check").output
    assert "0 would fail" in said
    for words in (
        "model hosted ok gave a token; charges $0.15 a million tokens of input, $0.6 of output",
        "unit of costs ok USD",
        "baseline note until then every query gets hosted/1/1/1",
        "no model of the catalogue has a verifier",
        "feedback note feedback_wait_s is 0: an answer without a reference is closed at once",
        "policy and prior ok contextual begins without history",
        "broker note no broker answers at bootstrap=127.0.0.1:1",
    ):  # fmt: skip
        assert words in _plain(said), _plain(said)
    asked = sorted(
        (each["model"], each["max_tokens"], each.get("temperature"), each.get("stream", False))
        for each in server.requests
    )
    assert asked == [
        ("hosted", 1, 0.5, False), ("hosted", 1, 0.5, True), ("other", 1, None, False), ("other", 1, None, True)
    ], "one token each, and one of a stream, with the entry's own parameters"  # fmt: skip


def test_each_of_several_servers_is_asked(run: Run, upstream: Start) -> None:
    first, second = upstream(), upstream(listing={"hosted": {"max_model_len": 4096}})
    urls = [first.url, second.url, "http://127.0.0.1:1"]
    several: dict[str, Any] = {".url": None, ".urls": urls}
    configured(entry(first.url, **several))
    said = _plain(run("check", code=1).output)
    assert "2 would fail" in said
    assert f"model hosted at {first.url} ok gave a token" in said
    assert all(f"asking hosted at {url} …" in said for url in urls)
    assert f"hosted at {first.url}: ok" in said
    assert "hosted at http://127.0.0.1:1: failed" in said
    assert "set endpoint.context_tokens to 4096" in said
    assert "correct endpoint.urls, which has http://127.0.0.1:1, or the key of its server" in said


def test_a_folder_without_a_configuration(run: Run) -> None:
    said = run("check", code=1).output
    assert "error: there is no uniscale.yaml with a catalogue in " in said
    assert "`python -m streams init` writes one from your servers" in said


def test_lines_left_open_by_init(run: Run, upstream: Start) -> None:
    run("init", "--openai", upstream().url)
    said = _plain(run("check").output)
    assert "feedback_wait_s is 0" not in said
    assert "still to be filled in: context_tokens (line 2" in said
    assert "; price (line 2" in said


def test_price_that_the_proxy_contradicts(run: Run, upstream: Start) -> None:
    info = {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05}
    server = upstream(info=[{"model_name": "hosted", "model_info": info}])
    configured(entry(server.url))
    assert "set price to {input: 2.5, output: 10}, if that is what you pay" in _plain(run("check").output)
    configured(entry(server.url, price={"input": 2.5, "output": 10.0}))
    assert "gave a token" in _plain(run("check").output)


def test_list_price_says_of_which_date_it_is(run: Run, upstream: Start) -> None:
    server = upstream(models=("openai/gpt-4o",))
    hosted: dict[str, Any] = {".model": "openai/gpt-4o"}
    configured(entry(server.url, **hosted, price="auto"))
    said = _plain(run("check").output)
    assert (
        "$2.5 a million tokens of input, $1.25 of those cached, $10 of output, as genai-prices 0.2.3 of 2026-"
        in said
    )
    configured(entry(server.url, **hosted, price={"input": 1.0, "output": 2.0}))
    said = _plain(run("check").output)
    assert (
        "charges $1 a million tokens of input, $2 of output, and genai-prices 0.2.3 of 2026-11-10 says"
        in said
    )


def test_catalogue_that_ships(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    said = _plain(run("check", "infra/catalogue/mini.yaml").output)
    assert "model mini-4m ok is loaded by its executor" in said
    assert "contextual begins without history: prior: encoder is" in said
    said = _plain(run("check", "infra/catalogue/mini.yaml").output)
    assert "model smollm2-135m ok is fetched and served by `up` or `demo`" in said


def test_configured_prior_must_fit(run: Run, upstream: Start) -> None:
    configured(entry(upstream().url), prior=str(ROOT / "infra" / "prior" / "mini.bin"))
    said = _plain(run("check", code=1).output)
    assert "policy and prior fails prior: catalogue: unit of costs is" in said
    assert "or set prior to none" in said


def test_each_declared_capability_is_tried(run: Run, upstream: Start) -> None:
    server = upstream()
    configured(entry(server.url, capabilities=["tools", "json", "images", "audio", "logprobs"]))
    assert "0 would fail" in run("check").output
    first, *tried, streamed = server.requests
    assert (first["max_tokens"], streamed["stream"]) == (1, True)
    assert [{"tools", "response_format", "logprobs"} & set(body) for body in tried] == [
        {"tools"}, {"response_format"}, set(), set(), {"logprobs"}
    ]  # fmt: skip
    assert tried[2]["messages"][0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    heard = tried[3]["messages"][0]["content"][1]["input_audio"]
    with wave.open(io.BytesIO(base64.b64decode(heard["data"]))) as recording:
        assert recording.getnframes() / recording.getframerate() == 0.5


def test_a_capability_that_the_server_lacks(run: Run, upstream: Start) -> None:
    server = upstream(lacks=("tools", "logprobs"))
    configured(entry(server.url, capabilities=["tools", "json", "logprobs"]))
    said = _plain(run("check", code=1).output)
    assert "2 would fail" in said
    assert "declares tools: " in said
    assert "HTTP 400" in said
    assert "declares logprobs: the reply has no logprobs" in said
    assert "remove tools from capabilities, or have the server support it" in said


@pytest.mark.parametrize("lacks", ["usage", "stream_options"])
def test_a_server_that_does_not_stream(lacks: str, run: Run, upstream: Start) -> None:
    server = upstream(lacks=(lacks,))
    configured(entry(server.url))
    said = _plain(run("check", code=1).output)
    assert "does not stream: " in said
    assert "set endpoint.stream to false" in said
    whole: dict[str, Any] = {".stream": False}
    configured(entry(server.url, **whole))
    assert "0 would fail" in run("check").output


Change = Callable[[str], None]


def _one(**fields: Any) -> Change:
    return lambda url: configured(entry(url, **fields))


SHAPE = {"parameters": 8, "layers": 1, "query_heads": 1, "kv_heads": 1, "head_dim": 1}

BAD: dict[str, tuple[dict[str, Any], Change, list[str]]] = {
    "a wrong key": (
        {"key": "right"},
        _one(**{".key_env": "MY_KEY"}),
        ["HTTP 401", "check its key: endpoint.key_env"],
    ),
    "a key that is not set": (
        {},
        _one(**{".key_env": "NOT_SET"}),
        ["endpoint.key_env is NOT_SET", "export NOT_SET=…"],
    ),
    "no price": ({}, _one(price=None), ["field price: is missing", "give USD per million tokens"]),
    "half a price": ({}, _one(price={"input": 0.1}), ["field price.output: is missing"]),
    "an unknown price": (
        {},
        _one(price={"input": 1, "output": 2, "prompt": 3}),
        ["field price.prompt: is unknown; correct its name, or leave it out"],
    ),
    "a price of 0": (
        {},
        _one(price={"input": 0, "output": 1}),
        ["price.input: is 0", "give the least that you would pay"],
    ),
    "prices in eFLOPs": (
        {},
        lambda url: configured(entry(url), catalogue={"cost_range": {"unit": "eflops"}}),
        ["field price: is in usd, but costs are in eflops", "cost_range: {unit: usd}"],
    ),
    "a price for one of two": (
        {},
        lambda url: configured(
            entry(url),
            entry(url, "bare", price=None, architecture=SHAPE),
        ),
        ["model 'bare', field price: is missing, but model 'hosted' has one", "give every model a price"],
    ),
    "a price factor in USD": (
        {},
        _one(price_factor=2.0),
        ["field price_factor: is for eflops, but costs are in usd"],
    ),
    "a model that is not there": (
        {"models": ("hosted-2", "vectors")},
        _one(),
        ["no model hosted", "set endpoint.model to a model that the server has, such as hosted-2"],
    ),
    "a verifier that is not there": (
        {},
        _one(verifier="prm"),
        ["verifier is 'prm', verifiers holds none", "write none"],
    ),
    "a baseline that is not there": (
        {},
        lambda url: configured(entry(url), policy_options={"control_action": "gpt/1/1/1"}),
        ["control_action: model 'gpt' is not in the space; choose one of hosted"],
    ),
    "an objective that is not there": (
        {},
        lambda url: configured(entry(url), objective="mine"),
        ["'mine'", "choose one of"],
    ),
    "beams": ({}, _one(beams=4), ["field beams: is set", "no beams and no early exit; leave it out"]),
    "early exit": ({}, _one(early_exit=True), ["field early_exit: is set", "leave it out"]),
    "steps": ({}, _one(**{".step_tokens": 64}), ["field endpoint.step_tokens: is set", "leave it out"]),
    "parallelism without steps": (
        {},
        lambda url: configured(entry(url), catalogue={"parallelism": ["1/1", "4/4"]}),
        ["parallelism is 1/1, 4/4, but all models of the catalogue are chat endpoints", "give endpoint.n"],
    ),
    "a context longer than the model's": (
        {"listing": {"hosted": {"max_model_len": 4096}}},
        _one(**{".max_output_tokens": 512}),
        [
            "endpoint.context_tokens is 32768, and the server's longest context is 4096",
            "set endpoint.context_tokens to 4096",
        ],
    ),
    "an answer longer than the context": (
        {},
        _one(**{".context_tokens": 4096}),
        ["max_output_tokens: is 4096 of context_tokens 4096", "leave room for a question"],
    ),
    "a field of another kind": (
        {},
        _one(**{".served_name": "x"}),
        ["served_name: is for kind http: give model"],
    ),
    "a server that is not there": (
        {},
        lambda url: configured(entry("http://127.0.0.1:1")),
        ["is the server up, and is its address right?", "correct endpoint.url, which is http://127.0.0.1:1"],
    ),
    "a parameter that the server refuses": (
        {"spoilt": [(400, {"error": {"message": "no such effort"}}, {})]},
        _one(**{".extra_body": {"reasoning_effort": "most"}}),
        ["HTTP 400: no such effort", "correct what the server refuses in the model's entry"],
    ),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistake_names_field_and_fix(run: Run, upstream: Start, mistake: str) -> None:
    how, write, said = BAD[mistake]
    write(upstream(**how).url)
    shown = _plain(run("check", code=1, MY_KEY="wrong").output)
    for each in said:
        assert each in shown, shown


def _plain(output: str) -> str:
    """Return what a table says, without its lines, as one text."""
    return " ".join("".join(" " if each in "│┃┏┓┗┛┡┩┬┴├┤┼┌┐└┘━─╇╃┳┻" else each for each in output).split())
