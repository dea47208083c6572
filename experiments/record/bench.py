"""Open what a recording runs on: a catalogue's checkpoints under the plain sampler, or under vLLM."""

import hashlib
from pathlib import Path
from typing import Literal

from agents.aggregator.grade import Judge
from agents.executor.engine import Engine
from agents.executor.engines.build import EngineOptions, start_engines
from agents.executor.rules import SearchRules
from agents.space.catalogue import Catalogue
from agents.verifier.build import VerifierOptions, start_verifier
from agents.verifier.formats import StepTagFormat
from agents.verifier.prm import ProcessRewardModel, Verifier
from experiments.record.sampler.engine import TorchEngine
from experiments.record.sampler.pump import Pump
from experiments.record.sampler.texts import Stepwise
from experiments.record.sampler.verifier import TorchRows
from experiments.record.searches import Bench
from schemas.search import Served

Kind = Literal["torch", "vllm"]


def weights(catalogue: Catalogue, folder: Path = Path()) -> dict[str, str]:
    """Return a digest of each checkpoint's weights: what a recording must not change under way."""
    folders = {model.name: model.checkpoint for model in catalogue.models}
    folders |= {verifier.name: verifier.checkpoint for verifier in catalogue.verifiers}
    return {
        name: hashlib.sha256((folder / each / "model.safetensors").read_bytes()).hexdigest()[:16]
        for name, each in folders.items()
    }


async def open_bench(
    catalogue: Catalogue,
    kind: Kind,
    judge: Judge,
    *,
    folder: Path = Path(),
    device: str = "cpu",
    rules: SearchRules | None = None,
    verifiers: int | None = None,
) -> Bench:
    """Return engines and verifiers of a catalogue, ready.

    Args:
        catalogue: Whose checkpoints.
        kind: What runs them.
        judge: For grading.
        folder: What the catalogue's paths start from.
        device: Of the plain sampler.
        rules: Of the search.
        verifiers: How many, the one in use first; all by default.
    """
    entries = sorted(catalogue.verifiers, key=lambda each: each.name != catalogue.verifier)[:verifiers]
    engines: dict[str, Engine]
    scorers: dict[str, Verifier]
    close = None
    if kind == "vllm":
        started = await start_engines(catalogue.models, EngineOptions(folder=str(folder)))
        engines, close = dict(started.engines), started.close
        scorers = {
            v.name: await start_verifier(v, VerifierOptions(folder=str(folder)), started.host)
            for v in entries
        }
    else:
        pump = Pump()
        engines = {
            m.name: TorchEngine(
                m.name,
                folder / m.checkpoint,
                m.engine.context_tokens,
                pump,
                m.sampling.delimiter,
                device=device,
            )
            for m in catalogue.models
        }
        scorers = {}
        for v in entries:
            if v.step_tags is None:
                raise ValueError(
                    f"verifier {v.name}: the plain sampler scores step tags only; record with vLLM"
                )
            rows = TorchRows(folder / v.checkpoint, v.step_tags.tag_id, pump, device=device)
            scorers[v.name] = ProcessRewardModel(
                Served(name="torch", model=v.name),
                rows,
                Stepwise(StepTagFormat(rows.prompts, v.step_tags.tag, tag_id=v.step_tags.tag_id)),
                good_label=v.step_tags.good_label,
                context_tokens=v.engine.context_tokens,
            )
    return Bench(catalogue, engines, scorers, judge, rules or SearchRules(), close)
