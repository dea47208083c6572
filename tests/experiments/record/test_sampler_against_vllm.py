"""The plain sampler held to vLLM on the same checkpoints: greedy text, distribution, scores.

Starts vLLM once a family (about half a minute).
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Catalogue, Sampling
from agents.grading.grade import Verdict
from agents.serving.engine import Prefix
from agents.serving.prompts import ChatPrompts
from experiments.record.searches import Bench, open_bench
from experiments.sampler.decoder import Decoder
from schemas.query import Message

ROOT = Path(__file__).parents[3]
QUESTIONS = {
    "tiny": ["12 ox", "4 d 5", "b 3 c 4"],
    "mini": ["Tom has 12 apples. Tom buys 5 more apples. How many apples does Tom have now?"],
}

pytestmark = pytest.mark.vllm


class Both:
    """One family under both engines, in one event loop: an engine host belongs to the loop that began it."""

    def __init__(self, name: str, folder: Path, catalogue: Catalogue) -> None:
        self.name, self.folder, self.catalogue = name, folder, catalogue
        self.runner = asyncio.Runner()
        ask = lambda rule, request: Verdict(False, rule)  # noqa: E731
        self.torch: Bench = self.runner.run(open_bench(catalogue, "torch", ask, folder=folder))
        self.vllm: Bench = self.runner.run(open_bench(catalogue, "vllm", ask, folder=folder))

    def close(self) -> None:
        if self.vllm.close is not None:
            self.runner.run(self.vllm.close())  # type: ignore[arg-type]
        self.runner.close()


@pytest.fixture(scope="module", params=["tiny", pytest.param("mini", marks=pytest.mark.thorough)])
def both(
    request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory, host_keeper: Any
) -> Iterator[Both]:
    host_keeper.close()  # a process hosts vLLM once
    if request.param == "mini":
        made = Both("mini", ROOT, load_catalogue(ROOT / "infra" / "catalogue" / "mini-six.yaml"))
    else:
        folder = tmp_path_factory.mktemp("served") / "tiny"
        shutil.copytree(tiny, folder)
        served = (
            (folder / "tiny.yaml")
            .read_text()
            .replace("dtype: float32", "dtype: float32, kv_cache_bytes: 33554432")
        )
        (folder / "tiny.yaml").write_text(served)
        made = Both("tiny", folder, load_catalogue(folder / "tiny.yaml"))
    yield made
    made.close()


def prefix(text: str) -> Prefix:
    return Prefix(messages=(Message(role="user", content=text),))


def test_greedy_text_is_the_same(both: Both) -> None:
    greedy = Sampling(temperature=0, step_tokens=24, depth_limit=5)
    for model in both.catalogue.model_names:
        for text in QUESTIONS[both.name]:
            ours, theirs = (
                both.runner.run(bench.engines[model].generate("q/1", [prefix(text)], 1, [1], greedy))
                for bench in (both.torch, both.vllm)
            )
            assert [(d.text, d.token_ids, d.finish, d.prompt_tokens) for d in ours] == [
                (d.text, d.token_ids, d.finish, d.prompt_tokens) for d in theirs
            ]


def test_first_tokens_are_drawn_from_one_distribution(both: Both) -> None:
    """Both engines' first tokens against the probabilities that the checkpoint gives."""
    text, n = QUESTIONS[both.name][0], 1_500
    sampling = Sampling(temperature=0.8, step_tokens=1, depth_limit=5)
    for entry in both.catalogue.models:
        folder = both.folder / entry.checkpoint
        decoder = Decoder(folder)
        ids = ChatPrompts.load(str(folder)).prompt([("user", text)])
        with torch.inference_mode():
            hidden = decoder.forward(torch.tensor([ids]), decoder.cache([[]], [0], len(ids)))
            p = (decoder.logits(hidden)[0, -1].double() / 0.8).softmax(-1).numpy()
        for bench in (both.torch, both.vllm):
            drafts = both.runner.run(
                bench.engines[entry.name].generate("q/1", [prefix(text)], n, range(n), sampling)
            )
            counts = np.bincount([(d.token_ids or ())[0] for d in drafts], minlength=len(p))
            often = p * n >= 5
            observed, expected = [*counts[often]], [*(p[often] * n)]
            if p[~often].sum() * n > 1:
                observed.append(counts[~often].sum())
                expected.append(p[~often].sum() * n)
            scale = sum(observed) / sum(expected)
            if len(observed) > 1:
                assert stats.chisquare(observed, np.array(expected) * scale).pvalue > 1e-4


def test_step_scores_are_the_same(both: Both) -> None:
    paths = [("12\n\n",), ("3 5\n\n", "4 1\n\n"), ("3 5\n\n", "4 1\n\n", "\\boxed{7}")]
    for name in both.torch.verifiers:
        ours, theirs = (
            both.runner.run(bench.verifiers[name].score(QUESTIONS[both.name][0], paths))
            for bench in (both.torch, both.vllm)
        )
        assert [s.tokens for s in ours] == [s.tokens for s in theirs]
        assert np.allclose([s.score for s in ours], [s.score for s in theirs], atol=1e-4)
