"""`calibrate`: what it prints can be used, and what it cannot measure is refused."""

import re
from collections.abc import Callable
from pathlib import Path

import yaml
from click.testing import Result

from tests.support.upstream import Upstream

Run = Callable[..., Result]
Start = Callable[..., Upstream]


def configured(url: str) -> None:
    endpoint = {"kind": "chat", "url": url, "model": "hosted"}
    entry = {"name": "mine", "price": {"input": 1.0, "output": 4.0}, "endpoint": endpoint}
    content = {"name": "mine", "verifier": "none", "verifiers": [], "models": [entry]}
    Path("uniscale.yaml").write_text(yaml.safe_dump({"catalogue": content}))


def test_line_for_the_entry_says_what_it_assumes(run: Run, upstream: Start) -> None:
    server = upstream(says=lambda body: "word " * 40)
    configured(server.url)
    said = run("calibrate", "mine", "--usd-per-hour", "4.5", "--at-once", "3", "--seconds", "2").output
    [line] = [each for each in said.splitlines() if each.startswith("price: ")]
    assert line.endswith("# USD per million tokens, at $4.5 an hour, 3 requests at once")
    price = yaml.safe_load(line)["price"]
    assert 0 < price["input"] < price["output"]
    assert "sending mine 3 requests at once for 2 s" in said
    assert "next: replace the `price` line of mine in uniscale.yaml with this one" in said
    words = f"catalogue price mine --input {price['input']:g} --output {price['output']:g}"
    assert re.search(re.escape(words), said)


def test_only_a_server_in_the_catalogue_can_be_driven(run: Run, upstream: Start) -> None:
    configured(upstream().url)
    assert (
        "no model 'other'; choose one of mine"
        in run("calibrate", "other", "--usd-per-hour", "1", code=1).output
    )
    configured(upstream(key="secret").url)
    assert "HTTP 401: no such key" in run("calibrate", "mine", "--usd-per-hour", "1", code=1).output
