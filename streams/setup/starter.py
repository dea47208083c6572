"""Writes a commented configuration file from the models that servers list."""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from agents.catalogue.checkpoint import read_architecture
from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import CatalogueError
from agents.serving.listing import Listed
from schemas.prices import Prices

Kind = Literal["vllm", "openai", "litellm"]

FILL_IN: Final = "FILL IN"
"""Marks the lines that the operator has to complete. `check` reports each line that still contains it."""

ASSUMED: Final = Prices(input=1.0, output=4.0)
"""The price of a model if no server states one. It is the same for all such models, so that none is preferred."""

_HEAD = f"""\
# What this deployment serves, as its servers described it to `python -m streams init`. Lines marked {FILL_IN} hold what
# no server says: correct or keep each, then delete the mark. `python -m streams check` looks for mistakes and lists the
# lines that are still marked; docs/own-models.md explains the rest.

attempts: 2            # a query whose model fails before it has said anything is given to another model, once
feedback_wait_s: 3600  # seconds for which an answer can be graded
"""

_OFFLINE = """\
offline: false         # tokenizers may be read from the Hugging Face hub, or its cache; true: from folders alone
"""

_BASELINE = """\
policy_options:
  # The baseline answers every query until an answer has been graded: choose the model that you would use without this
  # product, as NAME/1/1/1, which is one answer by the model NAME.
  control_action: {baseline}  # {fill_in}: the first model; name another, or keep it
"""

_CATALOGUE = """\

catalogue:
  name: mine
  verifier: none       # of your own, if you serve a process reward model: docs/catalogue.md, The verifier
  verifiers: []
"""

_STEPS = """\
  # How many answers a model on vLLM may write to one query: 1, 4 or 16, of which the most frequent is returned. All of
  # them cost tokens: 16/1 generates about 16 times as many as 1/1. [1/1] leaves only single answers.
  parallelism: [1/1, 4/1, 16/1]

  defaults:
    models:
      sampling: {temperature: 0.7, top_p: 0.8, top_k: 20, step_tokens: 512, depth_limit: 16}
"""


class Source(Struct, frozen=True, kw_only=True):
    """A server, with the models that a deployment is to use on it.

    Attributes:
        kind: The kind of server.
        url: The server's address.
        key_env: The environment variable containing the API key; empty if the server needs none, or is vLLM.
        models: The models.
    """

    kind: Kind
    url: str
    key_env: str = ""
    models: Sequence[Listed]


def starter(sources: Sequence[Source]) -> str:
    """Return a commented configuration file that serves the models of these servers. There must be at least one.

    A model that several vLLM servers list alike gets one entry with all of them.
    """
    known: set[str] = set()
    entries: list[str] = []
    names: list[str] = []
    alike: dict[Listed, dict[str, None]] = {}  # the servers of each model on vLLM
    for source in sources:
        for model in source.models if source.kind == "vllm" else ():
            alike.setdefault(model, {})[source.url] = None
    for source in sources:
        for model in source.models:
            urls = list(alike.pop(model, ())) if source.kind == "vllm" else [source.url]
            if not urls:
                continue  # it has its entry
            names.append(_name(model.id, known))
            lines = [f"- name: {names[-1]}"]
            lines += _of_vllm(urls, model) if source.kind == "vllm" else _of_chat(source, model)
            lines.append(f"  {_price(model)}")
            entries.append("\n".join(f"    {line}" for line in lines) + "\n")
    searched = any(source.kind == "vllm" for source in sources)
    baseline = _BASELINE.format(baseline=f"{names[0]}/1/1/1", fill_in=FILL_IN)
    head = _HEAD + (_OFFLINE if searched else "") + (baseline if len(names) > 1 else "")
    return head + _CATALOGUE + (_STEPS if searched else "") + "\n  models:\n" + "\n".join(entries)


def unfilled(text: str) -> list[tuple[int, str]]:
    """Return the number and text of each line of a file that still has to be filled in."""
    lines = enumerate(text.splitlines(), 1)
    marked = [(at, line.strip()) for at, line in lines if FILL_IN in line.partition("#")[2]]
    return [(at, line) for at, line in marked if not line.startswith("#")]


def _name(model_id: str, known: set[str]) -> str:
    """Return an unused catalogue name for a model, derived from its name on a server, and add it to `known`.

    >>> known: set[str] = set()
    >>> [_name(each, known) for each in ("Qwen/Qwen3-8B", "openai/gpt-4o:mini", "other/Qwen3-8B", "***")]
    ['qwen3-8b', 'gpt-4o-mini', 'other-qwen3-8b', 'model']
    """
    last, whole = (_plain(each) for each in (model_id.rstrip("/").rpartition("/")[2], model_id))
    numbered = (f"{whole or 'model'}-{number}" for number in range(2, len(known) + 3))
    found = next(each for each in (last, whole, "model", *numbered) if each and each not in known)
    known.add(found)
    return found


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:80]


def _of_vllm(urls: Sequence[str], model: Listed) -> list[str]:
    checkpoint = model.root or model.id
    at = {"url": urls[0]} if len(urls) == 1 else {"urls": list(urls)}
    endpoint: dict[str, Any] = {"kind": "http", **at}
    if checkpoint != model.id:
        endpoint["served_name"] = model.id
    lines = [
        f"  checkpoint: {_quoted(checkpoint)}  # its tokenizer: a folder, or a name on the Hugging Face hub"
    ]
    lines.append(f"  endpoint: {_flow(endpoint)}")
    if model.context_tokens is not None:
        lines.append(f"  engine: {{context_tokens: {model.context_tokens}}}")
    with contextlib.suppress(CatalogueError):  # no folder on this machine; prices in USD need no architecture
        lines.append(f"  architecture: {_flow(read_architecture(Path(checkpoint)))}")
    return lines


def _of_chat(source: Source, model: Listed) -> list[str]:
    usual = Endpoint()
    context = model.context_tokens or usual.context_tokens
    longest = min(model.max_output_tokens or usual.max_output_tokens, usual.max_output_tokens)
    longest = longest if longest < context else max(1, context // 2)
    lines = [
        "  # capabilities: [tools, json, images, audio, logprobs]  # what it supports besides text; check tries each",
        "  endpoint:",
        "    kind: chat",
        f"    url: {_quoted(source.url)}",
        f"    model: {_quoted(model.id)}",
    ]
    if source.key_env:
        lines.append(f"    key_env: {source.key_env}  # the environment variable that holds the API key")
    note = (
        ""
        if model.context_tokens
        else f"  # {FILL_IN}: the server does not say it; the longest prompt plus answer"
    )
    lines.append(f"    context_tokens: {context}{note}")
    lines.append(f"    max_output_tokens: {longest}  # the longest answer, reasoning included")
    lines.append(
        "    # extra_body: {temperature: 0.7, reasoning_effort: low}  # further fields of each request"
    )
    return lines


def _price(model: Listed) -> str:
    given = model.price or ASSUMED
    costs = {"input": given.input, "cached_input": given.cached_input, "output": given.output}
    said = f"price: {_flow({name: each for name, each in costs.items() if each is not None})}"
    if model.price is not None:
        return f"{said}  # USD per million tokens, by {model.priced_by}"
    return f"{said}  # {FILL_IN}: USD per million tokens; no server states them, and these are assumed"


def _flow(fields: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {_quoted(each)}" for name, each in fields.items()) + "}"


def _quoted(value: Any) -> str:
    if isinstance(value, float):  # YAML reads 1e-05 as text
        return f"{value:.9f}".rstrip("0").removesuffix(".")
    return json.dumps(value, ensure_ascii=False)
