"""Runs one search with the product's own forest, engine and verifier, and returns its outcome.

Randomness is keyed to the path: a draft's seed is a hash of the search's id and the draft's position in the forest.
Therefore, two runs of a search that differ in early exit, verifier or number of independent paths share the drafts that
both make. `SearchMemory` stores them; a second run reuses them, and the engine generates the rest. A run made entirely
from memory is *derived*. It is identical to a real run, as tests verify with new engines.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from agents.catalogue.cost_model import CostModel
from agents.catalogue.models import NO_VERIFIER, Catalogue, Sampling
from agents.catalogue.search_cost import search_cost
from agents.grading.grade import AskGrader, Grade, extract_boxed, grade, grader_version, is_program
from agents.grading.pool import GraderFailed
from agents.search.forest import Ask, ask, outcome, plant, tell_drafts, tell_scores
from agents.search.search import SearchRules, limits
from agents.search.unscored import tell_unscored
from agents.serving.engine import Drafted, Engine, Prefix
from agents.serving.registry import GroupEngines, HostingOptions, connected
from agents.verifier.formats import StepTagFormat
from agents.verifier.prm import ProcessRewardModel, Verifier, start_verifier
from experiments.record.table import Question
from schemas.action import Action
from schemas.forest import Forest
from schemas.grader import NamedGrader, grader_of
from schemas.query import Message
from schemas.search import Scored, Served


@dataclass
class Known:
    """Cached scores and grades of one question, shared by all models, because equal paths have equal scores and grades.

    Attributes:
        scores: Scores, keyed by verifier and steps.
        grades: Grades, keyed by the grader's name and text.
    """

    scores: dict[tuple[str, tuple[str, ...]], Scored] = field(default_factory=dict)
    grades: dict[tuple[str, str], Grade] = field(default_factory=dict)


@dataclass
class SearchMemory:
    """Drafts that the searches of one question, model and sample share.

    Attributes:
        drafts: The drafts, keyed by seed.
        known: Cached scores and grades of the question.
        made: Number of drafts that an engine generated.
    """

    drafts: dict[int, Drafted] = field(default_factory=dict)
    known: Known = field(default_factory=Known)
    made: int = 0


@dataclass(frozen=True)
class Variant:
    """How a search is run: with which verifier, or `none`, and with or without early exit."""

    verifier: str
    early_exit: bool

    @property
    def verified(self) -> bool:
        """Return whether a verifier scores the search."""
        return self.verifier != NO_VERIFIER


@dataclass(frozen=True)
class Bench:
    """Everything that searches need.

    Attributes:
        catalogue: The catalogue, for architectures and sampling.
        engines: Engines, keyed by model.
        verifiers: Verifiers, keyed by name.
        ask: Asks a grading process if no exact rule decides.
        rules: Rules of the search, except for early exit.
        close: Frees all resources.
    """

    catalogue: Catalogue
    engines: dict[str, Engine]
    verifiers: dict[str, Verifier]
    ask: AskGrader
    rules: SearchRules = field(default_factory=SearchRules)
    close: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True)
class Found:
    """The outcome of one search. Costs are in eFLOPs; `seconds` depend on what else ran while recording.

    Without a verifier, the score is 1 for a right answer and 0 for a wrong one, as in what a learner learns, and the
    journal keeps the whole text, which the file does not have.
    """

    correct: bool
    complete: bool
    score: float
    eflops: float
    prefill_eflops: float
    decoding_eflops: float
    verifier_eflops: float
    compute_flops: float
    memory_bytes: float
    depth: int
    steps: int
    completed: int
    drafts: int
    tokens: int
    verifier_tokens: int
    prompt_tokens: int
    seconds: float | None
    answer: str
    text: str = ""


async def search(
    question: Question, action: Action, variant: Variant, search_id: str, bench: Bench, memory: SearchMemory
) -> tuple[Found, bool]:
    """Run one search; return its outcome, and whether all of it came from memory.

    Args:
        question: The question.
        action: The configuration.
        variant: Verifier and early exit.
        search_id: The id that determines the drafts' seeds, together with their positions.
        bench: Engines, verifiers and catalogue.
        memory: Memory of this question, model and sample.
    """
    began, made = time.perf_counter(), 0
    model = bench.catalogue.model(action.model)
    rules = replace(bench.rules, early_exit=variant.early_exit)
    bounds = msgspec.structs.replace(limits(model.sampling, rules), verified=variant.verified)
    forest = plant(action, bounds)
    while (wanted := ask(forest, search_id)) is not None:
        forest, above, new = await _drafted(
            forest, wanted, question, model.sampling, search_id, bench, memory
        )
        made += new
        if variant.verified:
            forest = await _scored(forest, above, wanted, question, variant.verifier, bench, memory.known)
        else:
            forest = tell_unscored(forest, wanted.step)
    derived = made == 0
    memory.made += made
    seconds = None if derived else time.perf_counter() - began
    return _worth(forest, question, variant, seconds, bench, memory.known), derived


async def _drafted(
    forest: Forest,
    wanted: Ask,
    question: Question,
    sampling: Sampling,
    search_id: str,
    bench: Bench,
    memory: SearchMemory,
) -> tuple[Forest, list[tuple[str, ...]], int]:
    """Return the forest with a step's drafts, the paths that they continue, and the number of new drafts generated."""
    messages = (Message(role="user", content=question.text),)
    above = [forest.steps(e.parent) for e in wanted.expansions]
    missing = [
        (e, steps)
        for e, steps in zip(wanted.expansions, above, strict=True)
        if any(seed not in memory.drafts for seed in e.seeds)
    ]
    if missing:
        prefixes = [Prefix(messages=messages, steps=steps) for _, steps in missing]
        seeds = [seed for e, _ in missing for seed in e.seeds]
        engine = bench.engines[forest.action.model]
        drafts = await engine.generate(f"{search_id}/{wanted.step}", prefixes, wanted.n, seeds, sampling)
        for seed, draft in zip(seeds, drafts, strict=True):
            # Another variant of this search may have made the draft meanwhile; keep a single draft per seed.
            memory.drafts.setdefault(seed, draft)
    taken = [memory.drafts[seed] for e in wanted.expansions for seed in e.seeds]
    return tell_drafts(forest, wanted.step, taken, taken[0].prompt_tokens), above, len(missing) * wanted.n


async def _scored(
    forest: Forest,
    above: Sequence[tuple[str, ...]],
    wanted: Ask,
    question: Question,
    verifier: str,
    bench: Bench,
    known: Known,
) -> Forest:
    paths = [
        (verifier, (*above[place // wanted.n], forest.drafts[at].text))
        for place, at in enumerate(forest.pending)
    ]
    missing = list(dict.fromkeys(path for path in paths if path not in known.scores))
    if missing:
        scores = await bench.verifiers[verifier].score(question.text, [steps for _, steps in missing])
        for path, score in zip(missing, scores, strict=True):
            known.scores.setdefault(path, score)
    scored = [known.scores[path] for path in paths]
    return tell_scores(forest, wanted.step, scored)


def _named_grader(question: Question, model: str, bench: Bench) -> NamedGrader | None:
    """Return the name of an answer's grader, by the rules of a deployment; None for the default one."""
    if question.grader or is_program(question.reference):
        return question.grader or None
    return bench.catalogue.model(model).grader or bench.catalogue.grader


def _graded(text: str, question: Question, named: NamedGrader | None, bench: Bench) -> Grade:
    try:
        return grade(text, question.reference, ask=bench.ask, grader=grader_of(named))
    except GraderFailed:  # a recorded answer is either right or wrong
        return Grade(correct=False, answer=extract_boxed(text), how="math-verify", version=grader_version())


def _worth(
    forest: Forest, question: Question, variant: Variant, seconds: float | None, bench: Bench, known: Known
) -> Found:
    ended = outcome(forest)
    text, named = forest.text(ended.index), _named_grader(question, forest.action.model, bench)
    if (key := (f"{named}", text)) not in known.grades:
        known.grades[key] = _graded(text, question, named, bench)
    graded = known.grades[key]
    costs = CostModel.of(bench.catalogue)
    generator = costs.generators[forest.action.model]
    verifier = costs.verifiers.get(variant.verifier, generator)  # without a verifier, nothing is scored
    price = search_cost(forest.prompt_tokens, forest.drafts, generator, verifier, costs.intensity)
    return Found(
        correct=graded.correct,
        complete=ended.status == "ok",
        score=(ended.score or 0.0) if variant.verified else float(graded.correct),
        eflops=price.eflops,
        prefill_eflops=price.prefill.eflops(price.intensity),
        decoding_eflops=price.decoding.eflops(price.intensity),
        verifier_eflops=price.verifier_eflops,
        compute_flops=price.compute_flops,
        memory_bytes=price.memory_bytes,
        depth=forest.drafts[ended.index].depth,
        steps=forest.step,
        completed=ended.completed,
        drafts=len(forest.drafts),
        tokens=forest.generated_tokens,
        verifier_tokens=forest.verifier_tokens,
        prompt_tokens=forest.prompt_tokens,
        seconds=seconds,
        answer=(graded.answer or "")[:80],
        text="" if variant.verified else text,
    )


def weights(catalogue: Catalogue, folder: Path = Path()) -> dict[str, str]:
    """Return a digest of each checkpoint's weights, which must not change during a recording."""
    folders = {model.name: model.checkpoint for model in catalogue.models if model.checkpoint}
    folders |= {verifier.name: verifier.checkpoint for verifier in catalogue.verifiers}
    return {
        name: hashlib.sha256((folder / each / "model.safetensors").read_bytes()).hexdigest()[:16]
        for name, each in folders.items()
    }


async def open_bench(
    catalogue: Catalogue, engine: str, ask: AskGrader, *, folder: Path = Path(), verifiers: int | None = None
) -> Bench:
    """Load the engines and verifiers of a catalogue, and connect to its chat endpoints.

    Args:
        catalogue: The catalogue.
        engine: `torch` for the plain sampler, or `vllm` for the product's engine; chat endpoints have their own.
        ask: Asks a grading process.
        folder: The folder to which the catalogue's paths refer.
        verifiers: Number of verifiers to load, starting with the one in use; None for all.
    """
    entries = sorted(catalogue.verifiers, key=lambda each: each.name != catalogue.verifier)[:verifiers]
    scorers: dict[str, Verifier] = {}
    if engine == "vllm":
        options = HostingOptions(folder=str(folder))
        started = GroupEngines(options)
        ready = {model.name: await started.get(model) for model in catalogue.models}
        for v in entries:
            scorers[v.name] = await start_verifier(v, options, started.host)
        return Bench(catalogue, ready, scorers, ask, close=started.close)

    from experiments.sampler.engine import Pump, Stepwise, TorchEngine
    from experiments.sampler.verifier import TorchRows

    pump = Pump()
    engines: dict[str, Engine] = {}
    for m in catalogue.models:
        if m.endpoint.kind == "chat":
            engines[m.name] = (await connected(m, HostingOptions(folder=str(folder)))).engine
            continue
        engines[m.name] = TorchEngine(
            m.name, folder / m.checkpoint, m.engine.context_tokens, pump, m.sampling.delimiter
        )
    for v in entries:
        if v.step_tags is None:
            raise ValueError(f"verifier {v.name}: the plain sampler scores step tags only; record with vLLM")
        rows = TorchRows(folder / v.checkpoint, v.step_tags.tag_id, pump)
        scorers[v.name] = ProcessRewardModel(
            Served(name="torch", model=v.name),
            rows,
            Stepwise(StepTagFormat(rows.prompts, v.step_tags.tag, tag_id=v.step_tags.tag_id)),
            good_label=v.step_tags.good_label,
            context_tokens=v.engine.context_tokens,
        )
    return Bench(catalogue, engines, scorers, ask)
