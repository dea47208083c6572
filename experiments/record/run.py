"""Run a recording's plan, many questions in flight, resumable.

A recording may be given further variants of its searches later: those it has stay as they are.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from agents.space.action_space import MAX_DRAFTS
from experiments.record.journal import Journal
from experiments.record.plan import Plan, Shard, search_id
from experiments.record.questions import Question
from experiments.record.searches import Bench, Known, Memory, Variant, search
from schemas.action import Action
from schemas.errors import UniscaleError


class DerivationError(UniscaleError):
    """A derived search asked for a draft its source does not hold: the engine is not reproducible."""


async def record(
    plan: Plan,
    bench: Bench,
    journal: Journal,
    *,
    in_flight: int = 8,
    progress: Callable[[int], Any] = lambda n: None,
) -> float:
    """Run what the journal does not hold; return searches per second.

    Args:
        plan: What to run.
        bench: What it runs on.
        journal: Takes every finished shard.
        in_flight: Shards at a time.
        progress: Told how many searches were finished.
    """
    began, finished = time.perf_counter(), 0
    waiting = iter(
        [(*shard, missing) for shard in plan.shards() if (missing := _missing(plan, journal, shard))]
    )

    # Shards of one question stand together, so those that went before are all but done with theirs.
    known: dict[str, Known] = {}

    async def worker() -> None:
        nonlocal finished
        for name, sample, model, question, variants in waiting:
            if question.question_id not in known and len(known) > in_flight:
                known.pop(next(iter(known)))
            memory = Memory(known=known.setdefault(question.question_id, Known()))
            rows = await _shard(plan, bench, sample, model, question, variants, memory)
            journal.add(name, rows)
            finished += len(rows)
            progress(len(rows))

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())
    return finished / max(time.perf_counter() - began, 1e-9)


def _missing(plan: Plan, journal: Journal, shard: Shard) -> list[Variant]:
    name, sample, _, question = shard
    return [
        each
        for each in plan.variants(sample, question)
        if (name, each.verifier, each.early_exit) not in journal.done
    ]


async def _shard(
    plan: Plan,
    bench: Bench,
    sample: int,
    model: str,
    question: Question,
    variants: Sequence[Variant],
    memory: Memory,
) -> list[dict[str, Any]]:
    own = [action for action in plan.actions if action.model == model]
    in_use, whole = Variant(plan.verifier, early_exit=True), Variant(plan.verifier, early_exit=False)
    wide = next((a for a in own if (a.qp, a.cp) == (MAX_DRAFTS, 1)), None)

    async def run(action: Action) -> list[dict[str, Any]]:
        if sample > 0 and action == wide and question.question_id in plan.whole:
            await search(
                question, action, whole, search_id(question, action, sample, plan.seed), bench, memory
            )
        return [await _row(bench, sample, action, action, question, v, memory, plan.seed) for v in variants]

    rows = [row for batch in await asyncio.gather(*map(run, own)) for row in batch]
    if wide is not None and in_use in variants:
        made = memory.made
        # The widest first: what it had to make, the narrower ones find.
        for action in reversed([action for action in plan.derived if action.model == model]):
            rows.append(await _row(bench, sample, wide, action, question, in_use, memory, plan.seed))
        if question.question_id in plan.whole and (sample > 0 or whole in variants) and memory.made != made:
            raise DerivationError(
                f"{question.question_id}, {model}: {memory.made - made} drafts were missing from 64 whole paths"
            )
    return rows


async def _row(
    bench: Bench,
    sample: int,
    source: Action,
    action: Action,
    question: Question,
    variant: Variant,
    memory: Memory,
    seed: int,
) -> dict[str, Any]:
    found, derived = await search(
        question, action, variant, search_id(question, source, sample, seed), bench, memory
    )
    return {
        "question": question.question_id,
        "model": action.model,
        "qp": action.qp,
        "cp": action.cp,
        "bs": action.bs,
        "sample": sample,
        "verifier": variant.verifier,
        "early_exit": variant.early_exit,
        "derived": derived,
        **asdict(found),
    }
