"""What a client of OpenAI's chat interface can observe, case by case: from `vllm serve`, and from the gateway.

A case is one HTTP request. Its facts are what does not depend on the model: the status, the type of every field, finish
reasons, the order of a stream. They are recorded from a real `vllm serve` with a model of the mini family:

    .venv/bin/python -m tests.support.conformance --record

`DEVIATIONS` lists every fact in which the gateway differs on purpose, with the reason. A difference that is not listed
fails the suite, and so does a deviation that no longer occurs.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.support.vllm_servers import vllm_servers

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "openai" / "vllm.json"
MODEL = "mini-500k"
CHAT = "/v1/chat/completions"
QUESTION = "Ann has 3 apples and buys 4. How many has she?"
USER = [{"role": "user", "content": QUESTION}]
TOKENS = 200
SALT = "7"

ANSWER_S = 120.0
"""Longest time one case may take, to the end of its stream: 1 s on an idle machine."""

Facts = dict[str, Any]


class Case(NamedTuple):
    """One request. `body` is JSON with `model` put in unless it is there; `raw` is sent as it is."""

    body: Mapping[str, Any] | None = None
    method: str = "POST"
    path: str = CHAT
    raw: bytes | None = None
    model: bool = True


def chat(**more: Any) -> Case:
    """Return a chat request with one message, changed by some fields."""
    return Case({"messages": USER, "max_tokens": TOKENS, **more})


def said(*messages: Any) -> Case:
    """Return a chat request with these messages."""
    return Case({"messages": list(messages), "max_tokens": TOKENS})


CASES: dict[str, Case] = {
    "completion": chat(),
    "completion, other name of the bound": Case({"messages": USER, "max_completion_tokens": TOKENS}),
    "completion, cut off": chat(max_tokens=3),
    "completion, two choices": chat(n=2),
    "completion, one choice": chat(n=1),
    "completion, user": chat(user="ann"),
    "completion, neutral values": chat(
        temperature=1, top_p=1, presence_penalty=0, frequency_penalty=0, logprobs=False, stream=False, stop=[]
    ),
    "completion, null values": chat(temperature=None, stop=None, seed=None, tools=None, n=None, user=None),
    "completion, text format": chat(response_format={"type": "text"}),
    "completion, text parts": said({"role": "user", "content": [{"type": "text", "text": QUESTION}]}),
    "completion, system message": said({"role": "system", "content": "Be brief."}, *USER),
    "completion, developer message": said({"role": "developer", "content": "Be brief."}, *USER),
    "completion, conversation": said(*USER, {"role": "assistant", "content": "7"}, *USER),
    "completion, stop": chat(stop=["\n"]),
    "completion, temperature": chat(temperature=0.5),
    "completion, seed": chat(seed=7),
    "completion, logprobs": chat(logprobs=True),
    "completion, unknown field": chat(no_such_field=1),
    "stream": chat(stream=True),
    "stream, usage": chat(stream=True, stream_options={"include_usage": True}),
    "stream, no usage": chat(stream=True, stream_options={"include_usage": False}),
    "stream, cut off": chat(stream=True, max_tokens=3),
    "stream, two choices": chat(stream=True, n=2),
    "models": Case(method="GET", path="/v1/models"),
    "bad, options without stream": chat(stream_options={"include_usage": True}),
    "bad, unknown model": chat(model="no-such-model"),
    "bad, model is a number": chat(model=7),
    "bad, no model": Case({"messages": USER, "max_tokens": TOKENS}, model=False),
    "bad, no messages": Case({"max_tokens": TOKENS}),
    "bad, empty messages": said(),
    "bad, messages is a text": Case({"messages": QUESTION}),
    "bad, message is a text": said(QUESTION),
    "bad, no role": said({"content": QUESTION}),
    "bad, role is a number": said({"role": 7, "content": QUESTION}),
    "bad, content is a number": said({"role": "user", "content": 7}),
    "bad, temperature is a text": chat(temperature="hot"),
    "bad, temperature below 0": chat(temperature=-1),
    "bad, max_tokens is a text": chat(max_tokens="many"),
    "bad, max_tokens is negative": chat(max_tokens=-1),
    "bad, max_tokens is 0": chat(max_tokens=0),
    "bad, n is 0": chat(n=0),
    "bad, n is a text": chat(n="two"),
    "bad, stream is an object": chat(stream={}),
    "bad, stream with an unknown model": chat(stream=True, model="no-such-model"),
    "bad, not JSON": Case(raw=b"{"),
    "bad, no body": Case(raw=b""),
    "bad, JSON but no object": Case(raw=b"[]"),
    "bad, unknown path": Case({}, path="/v1/no/such/path"),
}


class Deviation(NamedTuple):
    """Facts in which the gateway differs, as patterns of case and fact, with the reason."""

    cases: str
    facts: str
    why: str


VLLM_S_OWN = "vLLM's own field; OpenAI's API does not have it"
OPTIONAL = "OpenAI's API allows leaving it out, and a search never has a value for it"
OURS = "what the search did, beside OpenAI's fields"
REFUSED = "it asks for another kind of answer, or is no field of OpenAI's API: 400 with the field's name"
A_WORD = "vLLM repeats the status here; OpenAI's own API has a word, or null"

DEVIATIONS: tuple[Deviation, ...] = (
    *(
        Deviation("*", field, VLLM_S_OWN)
        for field in (
            "choices[].message.reasoning", "choices[].routed_experts", "choices[].stop_reason", "choices[].token_ids",
            "ec_transfer_params", "kv_transfer_params", "metrics", "prompt_logprobs", "prompt_text", "prompt_token_ids",
            "data[].max_model_len", "data[].parent", "data[].permission*", "data[].root",
        )
    ),
    *(
        Deviation("*", field, OPTIONAL)
        for field in (
            "choices[].message.annotations", "choices[].message.audio", "choices[].message.function_call",
            "service_tier",
        )
    ),
    Deviation("*", "uniscale*", OURS),
    Deviation("models", "data[].routing", OURS),
    *(
        Deviation("models", f"data[].{field}*", "under OpenRouter's names, which other gateways' clients read")
        for field in ("context_length", "pricing", "supported_parameters")
    ),
    Deviation("*", "usage.prompt_tokens_details*", "vLLM fills it in with --enable-prompt-tokens-details only"),
    Deviation("*", "usage.completion_tokens_details*", "reasoning_tokens: what was generated but is not in the text"),
    Deviation("stream*", "choices[].delta.refusal", "OpenAI's first chunk has it, with null; vLLM leaves it out"),
    Deviation("bad*", "error.code", A_WORD),
    *(
        Deviation(f"completion, {name}", "*", REFUSED)
        for name in ("logprobs", "unknown field")
    ),
    Deviation("stream, two choices", "*", "a stream has one choice, because only a search's best path is streamed"),
    Deviation("bad, no model", "*", "vLLM serves one model and takes that; OpenAI's API requires the field"),
    Deviation("bad, unknown path", "*", "vLLM answers `detail`; here every error has OpenAI's shape"),
)  # fmt: skip


def facts(client: httpx.Client, case: Case, model: str) -> Facts:
    """Return what one request shows."""
    content = case.raw
    if case.body is not None:
        content = json.dumps({**({"model": model} if case.model else {}), **case.body}).encode()
    headers = {"content-type": "application/json"} if content is not None else {}
    deadline = time.monotonic() + ANSWER_S
    with client.stream(case.method, case.path, content=content, headers=headers) as got:
        kind = got.headers.get("content-type", "").partition(";")[0]
        found: Facts = {"status": got.status_code, "content-type": kind}
        if kind == "text/event-stream":
            return {**found, **_of_stream([line for line in _lines(got, deadline) if line])}
        said = got.read()
    try:
        body = json.loads(said)
    except ValueError:
        return {**found, "body": "not JSON"}
    return {**found, **_types(body), **_values(body, (case.body or {}).get("n") or 1)}


def _lines(got: httpx.Response, deadline: float) -> Iterator[str]:
    """Yield the lines of a stream. One that is kept alive for ever has no time-out between two of them."""
    for line in got.iter_lines():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the stream has not ended in {ANSWER_S:.0f} s; its last line: {line[:200]!r}")
        yield line


def _of_stream(lines: list[str]) -> Facts:
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    kinds: dict[str, set[str]] = {}
    for chunk in chunks:
        for path, kind in _types(chunk).items():
            kinds.setdefault(path, set()).update(kind.split("|"))
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    with_usage = [at for at, chunk in enumerate(chunks) if chunk.get("usage")]
    return {
        **{path: "|".join(sorted(each)) for path, each in kinds.items()},
        "stream: every line is data": len(events) == len(lines),
        "stream: last line is [DONE]": bool(events) and events[-1] == "[DONE]",
        "stream: ids": len({chunk.get("id") for chunk in chunks}),
        "stream: choices": sorted({choice["index"] for choice in choices}),
        "stream: role in the first chunk": bool(choices) and choices[0]["delta"].get("role"),
        "stream: has text": any(choice["delta"].get("content") for choice in choices),
        "stream: finish reasons": sorted({c["finish_reason"] for c in choices if c.get("finish_reason")}),
        "stream: finish only at the end of a choice": all(
            not choice.get("finish_reason") or choice["index"] not in {c["index"] for c in choices[at + 1 :]}
            for at, choice in enumerate(choices)
        ),
        "stream: usage": "none" if not with_usage else "last" if with_usage == [len(chunks) - 1] else "more",
        "stream: choices of the usage chunk": [len(chunks[at]["choices"]) for at in with_usage],
    }  # fmt: skip


def _values(body: Any, n: int) -> Facts:
    """Return values that a client acts on."""
    if not isinstance(body, dict):
        return {}
    choices = body.get("choices")
    if not isinstance(choices, list):
        return {}
    used = body.get("usage") or {}
    return {
        # A search returns its n best completed paths, and there may be fewer.
        "choices: n at most": 1 <= len(choices) <= n,
        "finish reasons": sorted({choice["finish_reason"] for choice in choices}),
        "choices: indexes count from 0": [choice["index"] for choice in choices] == list(range(len(choices))),
        "usage adds up": used.get("total_tokens")
        == used.get("prompt_tokens", 0) + used.get("completion_tokens", 0),
    }


def _types(value: Any, path: str = "") -> dict[str, str]:
    """Return the JSON type of every field below a value by its path; elements of a list are taken together."""
    if isinstance(value, dict):
        found: dict[str, set[str]] = {}
        for name, each in value.items():
            for at, kind in _types(each, f"{path}.{name}".lstrip(".")).items():
                found.setdefault(at, set()).update(kind.split("|"))
        if path:
            found[path] = {"object"}
        return {at: "|".join(sorted(kinds)) for at, kinds in found.items()}
    if isinstance(value, list):
        found = {path: {"list"}}
        for each in value:
            for at, kind in _types(each, f"{path}[]").items():
                found.setdefault(at, set()).update(kind.split("|"))
        return {at: "|".join(sorted(kinds)) for at, kinds in found.items()}
    kinds_of = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
    return {path: kinds_of[type(value)]}


def differences(expected: Facts, found: Facts) -> dict[str, tuple[Any, Any]]:
    """Return the facts that differ, as (expected, found). A field that is null fits every type."""
    names = expected.keys() | found.keys()
    return {
        name: (expected.get(name, "absent"), found.get(name, "absent"))
        for name in sorted(names)
        if not _fits(expected.get(name, "absent"), found.get(name, "absent"))
    }


def _fits(expected: Any, found: Any) -> bool:
    if expected == found:
        return True
    if not (isinstance(expected, str) and isinstance(found, str)) or "absent" in (expected, found):
        return False
    first, second = set(expected.split("|")) - {"null"}, set(found.split("|")) - {"null"}
    return not first or not second or first == second


def unlisted(
    case: str, differ: Mapping[str, tuple[Any, Any]]
) -> tuple[dict[str, tuple[Any, Any]], set[Deviation]]:
    """Return the differences that no deviation explains, and the deviations that explain the others."""
    left, used = {}, set()
    for fact, pair in differ.items():
        why = [
            d
            for d in DEVIATIONS
            if fnmatchcase(case, d.cases) and fnmatchcase(fact, d.facts.replace("[]", "[[]]"))
        ]
        used.update(why)
        if not why:
            left[fact] = pair
    return left, used


@contextmanager
def vllm_serve(model: str, folder: Path) -> Iterator[str]:
    """Run `vllm serve` with a model of the mini family, its log in a folder; yield its address."""
    argv = [
        "--model",
        str(ROOT / "models" / model),
        "--served-model-name",
        model,
        "--generation-config",
        "vllm",
    ]
    argv += ["--max-model-len", "512", "--max-num-seqs", "16", "--block-size", "32"]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with vllm_servers({model: argv}, environ, folder) as urls:
        yield urls[model]


def observed(url: str, model: str) -> dict[str, Facts]:
    """Return the facts of every case.

    Args:
        url: The server.
        model: The model that requests name.
    """
    found = {}
    with httpx.Client(
        base_url=url, timeout=ANSWER_S, trust_env=False, headers={"authorization": "Bearer none"}
    ) as client:
        for name, case in CASES.items():
            # The gateway's seeds derive from this key; vLLM does not read it.
            client.headers["idempotency-key"] = f"{SALT} {name}"
            try:
                found[name] = facts(client, case, model)
            except (httpx.TransportError, TimeoutError) as error:
                raise AssertionError(f"{url}, case {name!r}: {error!r}") from error
    return found


def main() -> None:
    """Record what `vllm serve` does, or show in what it differs from the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {GOLDEN.relative_to(ROOT)}")
    parser.add_argument("--log", type=Path, default=Path("out"), help="folder of its log")
    arguments = parser.parse_args()
    arguments.log.mkdir(parents=True, exist_ok=True)
    with vllm_serve(MODEL, arguments.log) as url:
        found = observed(url, MODEL)
        version = httpx.get(f"{url}/version", trust_env=False).json()["version"]
    if arguments.record:
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        told = {"server": f"vllm serve {version}", "model": MODEL, "cases": found}
        GOLDEN.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
        return
    expected = json.loads(GOLDEN.read_text())["cases"]
    for name, each in found.items():
        for fact, (was, now) in differences(expected[name], each).items():
            print(f"{name}: {fact}: {was!r} was recorded, now {now!r}")


if __name__ == "__main__":
    main()
