"""A stream through real processes and a real broker: the official client reads before the upstream is done."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import openai
import pytest
import yaml

from schemas.answer import Answer
from schemas.chunk import AnswerChunk
from tests.support.deployment import Deployment
from tests.support.upstream import Upstream

pytestmark = pytest.mark.broker

TEXT = "The answer to this is \\boxed{5}"


@pytest.fixture(scope="module")
def upstream() -> Any:
    made = Upstream(says=lambda body: TEXT)
    yield made
    made.close()


@pytest.fixture(scope="module")
def site(
    deploy_gateway: Callable[..., tuple[Deployment, str]], upstream: Upstream, tmp_path_factory: Any
) -> tuple[Deployment, str]:
    endpoint = {"kind": "chat", "url": upstream.url, "model": "hosted", "max_output_tokens": 64}
    entry = {"name": "hosted", "endpoint": endpoint, "price": {"input": 2.0, "output": 8.0}}
    path: Path = tmp_path_factory.mktemp("catalogue") / "catalogue.yaml"
    path.write_text(yaml.safe_dump({"name": "chat", "verifier": "none", "verifiers": [], "models": [entry]}))
    return deploy_gateway(catalogue=str(path), recorded="", policy="contextual", prior="none")


def test_official_client_reads_text_before_its_upstream_is_done(
    site: tuple[Deployment, str], upstream: Upstream
) -> None:
    deployment, url = site
    read = Event()
    upstream.paced = lambda body, chunk: chunk != 2 or read.wait(60)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        stream = client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "What is 2 + 3?"}], stream=True
        )
        text = ""
        for chunk in stream:
            if more := chunk.choices[0].delta.content:
                if not text:
                    assert not deployment.read(deployment.topics.answer, Answer)
                    read.set()
                text += more
    assert text == TEXT
    [answer] = deployment.read(deployment.topics.answer, Answer)
    assert answer.text == TEXT
    chunks = deployment.read(deployment.topics.answer_chunk, AnswerChunk)
    assert TEXT.startswith("".join(chunk.text for chunk in chunks))


def test_an_executor_that_is_killed_in_a_stream_mixes_no_texts(
    site: tuple[Deployment, str], upstream: Upstream
) -> None:
    deployment, url = site
    executor = next(name for name in deployment.supervisor.services if name.startswith("executor"))
    read = Event()
    upstream.paced = lambda body, chunk: chunk != 2 or read.wait(60)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "What is 3 + 3?"}], stream=True
        )
        first = next(more for chunk in stream if (more := chunk.choices[0].delta.content))
        upstream.says = lambda body: "Another text"
        deployment.supervisor.kill(executor)
        read.set()
        with pytest.raises(openai.APIError, match="does not begin with what was streamed"):
            list(stream)
    assert first == "The"
