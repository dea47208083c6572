"""`init`: what servers say becomes one commented file that runs, and what cannot be is refused with its fix."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from agents.catalogue.file import load_catalogue
from schemas.prices import Prices
from streams.control_follower import Control
from streams.settings import Settings
from streams.setup.starter import ASSUMED
from tests.support.upstream import Upstream

Run = Callable[..., Result]
Start = Callable[..., Upstream]

FILE = Path("uniscale.yaml")

VLLM: dict[str, Any] = {
    "models": ("Qwen/Qwen3-8B", "small"),
    "listing": {
        "Qwen/Qwen3-8B": {"root": "Qwen/Qwen3-8B", "max_model_len": 40960},
        "small": {"root": "models/mini-1m", "max_model_len": 1024},
    },
}

PROXY: list[dict[str, Any]] = [
    {
        "model_name": "large",
        "model_info": {
            "mode": "chat",
            "max_input_tokens": 128_000,
            "max_output_tokens": 16_384,
            "input_cost_per_token": 2.5e-06,
            "cache_read_input_token_cost": 1.25e-06,
            "output_cost_per_token": 1e-05,
        },
    },
    {
        "model_name": "large",
        "model_info": {
            "max_input_tokens": 64_000,
            "input_cost_per_token": 3e-06,
            "output_cost_per_token": 2e-05,
        },
    },
    {
        "model_name": "free",
        "model_info": {"mode": "chat", "input_cost_per_token": 0, "output_cost_per_token": 0},
    },
    {"model_name": "vectors", "model_info": {"mode": "embedding"}},
    {"model_name": "openai/*", "model_info": {}},
]


def test_all_kinds_of_servers_give_one_file_that_runs(run: Run, upstream: Start) -> None:
    vllm, openai = upstream(**VLLM), upstream(models=("hosted",), key="secret")
    proxy = upstream(info=PROXY, key="other")
    said = run(
        "init", "--vllm", vllm.url, "--openai", f"{openai.url}/v1", "--litellm", f"{proxy.url},MINE",
        OPENAI_API_KEY="secret", MINE="other",
    ).output  # fmt: skip
    assert "uniscale.yaml: 5 models: qwen3-8b, small, hosted, large, free" in said
    settings = Settings.from_env({})
    catalogue = Control(settings).base
    assert (catalogue.unit, catalogue.verified, settings.queries.attempts) == ("usd", "none", 2)
    assert settings.queries.feedback_wait_s == 3600
    by_name = {each.name: each for each in catalogue.models}
    searched, small, hosted, large, free = by_name.values()
    assert (searched.endpoint.kind, searched.checkpoint, searched.engine.context_tokens) == (
        "http",
        "Qwen/Qwen3-8B",
        40960,
    )
    assert (small.endpoint.served_name, small.checkpoint) == ("small", "models/mini-1m")
    assert (hosted.endpoint.kind, hosted.endpoint.model, hosted.endpoint.key_env) == (
        "chat",
        "hosted",
        "OPENAI_API_KEY",
    )
    assert (large.endpoint.key_env, large.endpoint.context_tokens) == ("MINE", 64_000), (
        "the least of two deployments"
    )
    assert large.rate == Prices(input=3.0, output=20.0), "the dearer of two deployments"
    assert {each.rate for each in (searched, small, hosted, free)} == {ASSUMED}
    lines = FILE.read_text().splitlines()
    marked = [
        line.strip().partition(":")[0] for line in lines if "FILL IN" in line and not line.startswith("#")
    ]
    assert marked == [
        "control_action",
        "price",
        "price",
        "context_tokens",
        "price",
        "context_tokens",
        "price",
    ]
    assert "7 lines marked FILL IN in uniscale.yaml: correct or keep each, then delete its mark" in said
    assert "no price is known for 4 models; assumed: $1 a million tokens of input, $4 of output" in said


def test_one_model_is_not_plural(run: Run, upstream: Start) -> None:
    said = run("init", "--vllm", upstream(models=("m",), listing={"m": {"root": "m"}}).url).output
    assert "uniscale.yaml: 1 model: m" in said
    assert "no price is known for 1 model; assumed" in said
    assert "1 line marked FILL IN" in said


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("option", ["--vllm", "--openai", "--litellm"])
def test_an_address_may_end_in_v1(run: Run, upstream: Start, option: str, ending: str) -> None:
    server = upstream(**VLLM, info=PROXY)
    run("init", option, f"{server.url}{ending}")
    assert len(load_catalogue(FILE).models) == 2


def test_servers_that_list_the_same_model_share_an_entry(run: Run, upstream: Start) -> None:
    first, second, other = upstream(**VLLM), upstream(**VLLM), upstream(models=("hosted",))
    said = run("init", "--vllm", first.url, "--vllm", second.url, "--openai", other.url).output
    assert "uniscale.yaml: 3 models: qwen3-8b, small, hosted" in said
    models = Control(Settings.from_env({})).base.models
    assert [each.endpoint.servers for each in models] == [
        *2 * [(first.url, second.url)], (other.url,)
    ]  # fmt: skip


def test_checkpoint_folder_gives_architecture(run: Run, upstream: Start) -> None:
    folder = Path(__file__).parents[3] / "models" / "mini-1m"
    server = upstream(models=("m",), listing={"m": {"root": str(folder), "max_model_len": 1024}})
    run("init", "--vllm", server.url)
    [model] = load_catalogue(FILE).models
    assert model.parameters > 900_000


def test_models_named_by_option(run: Run, upstream: Start) -> None:
    server = upstream(models=tuple(f"model-{at}" for at in range(30)))
    refused = run("init", "--openai", server.url, code=1).output
    assert "lists 30 models; name yours with --model: model-0, model-1" in refused
    run("init", "--openai", server.url, "--model", "model-1*", "--model", "model-7")
    assert [each.name for each in load_catalogue(FILE).models] == [
        "model-1",
        "model-7",
        *(f"model-{at}" for at in range(10, 20)),
    ]


@pytest.mark.parametrize(
    ("meta", "context"), [({"n_ctx": 2048}, 2048), ({}, 32768), ("a text", 32768), ({"n_ctx": 0}, 32768)]
)
def test_context_that_llama_cpp_states_is_taken(run: Run, upstream: Start, meta: Any, context: int) -> None:
    server = upstream(models=("small.gguf",), listing={"small.gguf": {"meta": meta}})
    run("init", "--openai", server.url)
    [model] = load_catalogue(FILE).models
    assert model.endpoint.context_tokens == context
    assert ("context_tokens: 32768  # FILL IN" in FILE.read_text()) == (context == 32768)
    assert "does not look like vLLM" in run("init", "--vllm", server.url, "--force", code=1).output


def test_known_hosted_model_gets_its_list_price(run: Run, upstream: Start) -> None:
    run("init", "--openai", upstream(models=("openai/gpt-4o", "mine")).url)
    rates = {model.name: model.rate for model in load_catalogue(FILE).models}
    assert rates == {"gpt-4o": Prices(input=2.5, cached_input=1.25, output=10.0), "mine": ASSUMED}
    line = "price: {input: 2.5, cached_input: 1.25, output: 10}  # USD per million tokens, by genai-prices "
    assert line in FILE.read_text()


def test_overwrite_needs_force(run: Run, upstream: Start) -> None:
    server = upstream()
    FILE.write_text("seed: 7\n")
    assert (
        "uniscale.yaml: exists; give another --output, or --force"
        in run("init", "--openai", server.url, code=1).output
    )
    assert FILE.read_text() == "seed: 7\n"
    run("init", "--openai", server.url, "--output", "other.yaml")
    run("init", "--openai", server.url, "--force")
    assert yaml.safe_load(FILE.read_text()) == yaml.safe_load(Path("other.yaml").read_text())
    FILE.write_text("sead: [7\n")
    run("init", "--openai", server.url, "--force")
    assert yaml.safe_load(FILE.read_text()) == yaml.safe_load(Path("other.yaml").read_text())
    Path("broken.yaml").write_text("sead: 7\n")
    said = run("--config", "broken.yaml", "init", "--openai", server.url, "--force", code=1).output
    assert "broken.yaml: sead: there is no such setting" in said, "a file that is named is read"


@pytest.mark.parametrize(
    ("words", "how", "environ", "said"),
    [
        (["--openai", "{url}"], {"key": "k"}, {}, ["HTTP 401", "no key was sent: export OPENAI_API_KEY=…"]),
        (
            ["--openai", "{url}"],
            {"key": "k"},
            {"OPENAI_API_KEY": "wrong"},
            ["HTTP 401", "the key of OPENAI_API_KEY was sent: correct it"],
        ),
        (
            ["--vllm", "{url}"],
            {"key": "k"},
            {"UNISCALE_ENGINE_KEY": "wrong"},
            ["HTTP 401", "the key of UNISCALE_ENGINE_KEY was sent: correct it"],
        ),
        (["--openai", "{url},NONE"], {}, {}, ["NONE is not set; export NONE=…"]),
        (["--vllm", "{url},NONE"], {}, {}, ["a key of vLLM is given by UNISCALE_ENGINE_KEY"]),
        (["--openai", "http://127.0.0.1:1"], {}, {}, ["is the server up, and is its address right?"]),
        (["--openai", "127.0.0.1:8000"], {}, {}, ["--openai 127.0.0.1:8000: is not an address; give one such as"]),
        (["--openai", "{url}"], {"models": ()}, {}, ["lists no models; load or configure one there"]),
        (["--litellm", "{url}"], {}, {}, ["HTTP 404", "another option if it is not litellm"]),
        (["--vllm", "{url}"], {}, {}, ["does not look like vLLM", "use --openai for this server"]),
        (["--openai", "{url}", "--model", "x"], {}, {}, ["none of its models is x; --model takes: hosted"]),
    ],
)  # fmt: skip
def test_refusal_names_option_and_fix(
    run: Run, upstream: Start, words: list[str], how: dict[str, Any], environ: dict[str, str], said: list[str]
) -> None:
    server = upstream(**how)
    shown = run("init", *(word.format(url=server.url) for word in words), code=1, **environ).output
    assert shown.startswith("error: ")
    for each in said:
        assert each in shown
    assert not FILE.exists()


def test_no_server_is_wrong_usage(run: Run) -> None:
    assert "give at least one of --vllm URL" in run("init", code=2).output
