"""Entries of chat endpoints: what they need, what they become, and what is refused by field."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from agents.catalogue.action_space import uis_space
from agents.catalogue.descriptions import describe_actions
from agents.catalogue.file import decode_model, entry_of
from agents.catalogue.models import Catalogue, CatalogueError

Load = Callable[[dict[str, Any]], Catalogue]

SHAPE = {"parameters": 8_000_000, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 8}


@pytest.fixture
def hosted(content: dict[str, Any]) -> dict[str, Any]:
    """A catalogue whose second model is a chat endpoint."""
    endpoint = {"kind": "chat", "url": "https://api.example/v1", "model": "org/large"}
    content["models"][1] = {"name": "hosted", "verifier": "none", "architecture": SHAPE, "endpoint": endpoint}
    return content


def test_a_chat_endpoint_needs_no_checkpoint_and_no_sampling(load: Load, hosted: dict[str, Any]) -> None:
    hosted["models"][1]["endpoint"] |= {"n": [1, 4], "context_tokens": 128_000, "max_output_tokens": 2_000}
    hosted["defaults"] = {"models": {"sampling": {"top_k": 5}, "engine": {"max_sequences": 8}}}
    catalogue = load(hosted)
    model = catalogue.model("hosted")
    assert (model.checkpoint, model.sampling.depth_limit, model.sampling.step_tokens) == ("", 1, 2_000)
    assert (model.engine.context_tokens, model.engine.max_sequences) == (128_000, 8)
    assert catalogue.model("small").sampling.top_k == 5
    space = uis_space(catalogue, ((1, 1), (2, 1), (4, 16)))
    assert [str(action) for action in space.restrict(["hosted"])] == ["hosted/1/1/1", "hosted/4/1/1"]
    assert len(space.restrict(["small"])) == 3
    assert "Model: hosted" in describe_actions(list(space), catalogue)[-1]
    assert decode_model(yaml.safe_load(entry_of(model)), "shown") == model, "what `catalogue show` prints"


@pytest.mark.parametrize(
    ("entry", "endpoint", "complaint"),
    [
        ({}, {"model": ""}, "endpoint.model: is missing: give the model's name at the server"),
        ({}, {"url": "api.example"}, "url is 'api.example': a chat endpoint needs one"),
        (
            {},
            {"url": "https://a/v1/chat/completions"},
            "endpoint.url: ends in /chat/completions: give it up to",
        ),
        ({}, {"urls": ["http://a"]}, "endpoint.urls: is given beside url: give one server as url, or all as"),
        ({}, {"url": None, "urls": ["http://a", "b"]}, "urls.1. is 'b': a chat endpoint needs one such as"),
        ({}, {"url": None, "urls": ["http://a/v1", "http://a"]}, "endpoint.urls: holds http://a twice: keep"),
        (
            {},
            {"kind": "in-process", "url": None, "urls": ["http://a"]},
            "urls is .* on an in-process endpoint",
        ),
        ({}, {"served_name": "x"}, "endpoint.served_name: is for kind http: give model"),
        ({}, {"kind": "http"}, "endpoint.model: is for kind chat, not http: drop it, or set kind to chat"),
        ({}, {"n": [3]}, "endpoint.n: is .3.: give powers of two up to 64"),
        ({}, {"n": []}, "endpoint.n: is ..: give powers of two up to 64"),
        ({}, {"n": [1, 128]}, "endpoint.n.*: expected `int` <= 64"),
        ({}, {"n": ["4/16"]}, "endpoint.n.*: expected `int`"),
        ({}, {"timeout_s": 0}, "endpoint.timeout_s: is 0.0: give seconds above 0"),
        ({}, {"max_output_tokens": 40_000}, "endpoint.max_output_tokens: is 40000 of context_tokens 32768"),
        (
            {},
            {"extra_body": {"seed": 3}},
            "endpoint.extra_body.seed: is set by each request: .* endpoint.seed",
        ),
        ({}, {"beam_size": 4}, "endpoint.beam_size: is set, but a chat endpoint answers as a whole"),
        ({"early_exit": True}, {}, "early_exit: is set, .* no beams and no early exit; leave it out"),
        ({"parallelism": ["4/16"]}, {}, "parallelism: is set, .* give endpoint.n for several answers"),
        (
            {"sampling": {"temperature": 0.7, "step_tokens": 9, "depth_limit": 3}},
            {},
            "sampling: is for models with",
        ),
    ],
)
def test_what_is_wrong_with_it_is_named(
    load: Load, hosted: dict[str, Any], entry: dict[str, Any], endpoint: dict[str, Any], complaint: str
) -> None:
    hosted["models"][1] |= entry
    hosted["models"][1]["endpoint"] |= endpoint
    with pytest.raises(CatalogueError, match=f"model 'hosted', field .*{complaint}"):
        load(hosted)


def test_efforts_make_an_entry_several_models(load: Load, hosted: dict[str, Any]) -> None:
    hosted["models"][1]["endpoint"] |= {"extra_body": {"temperature": 0.2}}
    high = {"reasoning_effort": "high", "max_tokens": 16_000}
    hosted["models"][1]["efforts"] = {"low": {"reasoning_effort": "low"}, "high": high}
    catalogue = load(hosted)
    assert set(catalogue.model_names) == {"small", "hosted.low", "hosted.high"}
    assert set(catalogue.efforts) == {"low", "high"}
    low, high_ = catalogue.model("hosted.low"), catalogue.model("hosted.high")
    assert low.endpoint.extra_body == {"temperature": 0.2, "reasoning_effort": "low"}
    assert high_.endpoint.extra_body == {"temperature": 0.2, "reasoning_effort": "high"}
    assert (low.base, high_.base, catalogue.model("small").base) == ("hosted", "hosted", "")
    assert (low.sampling.step_tokens, high_.sampling.step_tokens) == (4_096, 16_000)
    assert "hosted.high/1/1/1" in [action.id for action in uis_space(catalogue)]
    assert decode_model(yaml.safe_load(entry_of(high_)), "shown") == high_


@pytest.mark.parametrize(
    ("at", "efforts", "complaint"),
    [
        (1, [], "model 'hosted', field efforts: is not a mapping"),
        (1, {}, "model 'hosted', field efforts: is not a mapping"),
        (1, {"low": "low"}, "model 'hosted', field efforts.low: is not a mapping"),
        (
            1,
            {"low": {"seed": 3}},
            "model 'hosted.low', field endpoint.extra_body.seed: is set by each request",
        ),
        (0, {"low": {}}, "model 'small', field efforts: is for endpoint.kind chat"),
    ],
)
def test_wrong_efforts_are_named(
    load: Load, hosted: dict[str, Any], at: int, efforts: Any, complaint: str
) -> None:
    hosted["models"][at]["efforts"] = efforts
    with pytest.raises(CatalogueError, match=complaint):
        load(hosted)


def test_costs_follow_from_a_price_or_an_architecture(load: Load, hosted: dict[str, Any]) -> None:
    del hosted["models"][1]["architecture"]
    with pytest.raises(CatalogueError, match="model 'hosted', field price: is missing: give USD per million"):
        load(hosted)


def test_checkpoint_required_and_chat_verifier_refused(load: Load, content: dict[str, Any]) -> None:
    del content["models"][0]["checkpoint"]
    with pytest.raises(CatalogueError, match="model 'small', field checkpoint: is missing; give it"):
        load(content)
    content["models"][0]["checkpoint"] = "org/Small"
    content["verifiers"][0]["endpoint"] = {"kind": "chat", "url": "http://a", "model": "x"}
    with pytest.raises(
        CatalogueError,
        match=r"verifier 'judge', field endpoint\.kind: is chat, but a verifier must return scores",
    ):
        load(content)
