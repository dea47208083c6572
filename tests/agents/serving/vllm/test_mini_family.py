"""The shipped family through the same doors as any other model: catalogue entries to engines and verifiers."""

import asyncio
import json
from pathlib import Path

import pytest

from agents.catalogue.checkpoint import read_family
from agents.catalogue.models import Model, VerifierModel
from agents.serving.engine import Prefix
from agents.serving.registry import HostingOptions, hosted_engine, hosted_model
from agents.verifier.prm import start_verifier
from schemas.query import Message

ROOT = Path(__file__).parents[4]
FAMILY = ROOT / "models" / "family.json"
QUESTION = "Tom has 12 apples. Tom buys 7 more apples. How many apples does Tom have now?"

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def family() -> tuple[list[Model], list[VerifierModel]]:
    import msgspec

    generators, verifiers = read_family(FAMILY, folder="models")
    for entry in (*generators, *verifiers):
        entry["engine"] |= {"dtype": "float32", "context_tokens": 1024}
        entry["architecture"] |= {"weight_bytes": 4, "kv_bytes": 4}
    return msgspec.convert(generators, list[Model]), msgspec.convert(verifiers, list[VerifierModel])


def test_all_generators_draft_and_all_verifiers_score(host, family) -> None:
    generators, verifiers = family
    options = HostingOptions(folder=str(ROOT))
    root = Prefix(messages=(Message(role="user", content=QUESTION),))

    async def run():
        drafts = {}
        for model in generators:
            await asyncio.wrap_future(host.load(hosted_model(model, options)))
            engine = hosted_engine(model, options, host)
            drafts[model.name] = await engine.generate("q/1", [root], 8, list(range(8)), model.sampling)
        scores = {}
        for entry in verifiers:
            verifier = await start_verifier(entry, HostingOptions(folder=str(ROOT)), host)
            paths = [(draft.text,) for draft in drafts[generators[-1].name]]
            scores[entry.name] = await verifier.score(QUESTION, paths)
        for entry in (*generators, *verifiers):
            await asyncio.wrap_future(host.unload(entry.name))
        return drafts, scores

    drafts, scores = asyncio.run(run())
    delimiter = json.loads(FAMILY.read_text())["delimiter"]
    for made in drafts.values():
        assert len(made) == 8
        assert all(draft.text.endswith(delimiter) for draft in made if draft.finish == "separator")
    # The largest has learnt to write steps: most first drafts end at the delimiter, and not at a limit.
    assert sum(draft.finish in ("separator", "eos") for draft in drafts[generators[-1].name]) >= 6
    assert all(0 <= scored.score <= 1 for each in scores.values() for scored in each)
    assert {len(each) for each in scores.values()} == {8}
