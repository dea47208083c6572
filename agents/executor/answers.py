"""The Answers of searches: finished, out of time, failed, cancelled. Each says what was spent."""

import msgspec

from agents.executor.forest import outcome, stop
from agents.executor.job import Job
from agents.serving.errors import ServingError
from schemas.answer import Answer, Completion, Fault, Status
from schemas.boxed import extract_boxed
from schemas.decision import Decision
from schemas.forest import Forest, Stop
from schemas.search import SearchStep, Served


def answer_of(
    source: Job | SearchStep,
    forest: Forest,
    index: int,
    status: Status,
    *,
    error: str | None,
    engine: Served | None = None,
    verifier: Served | None = None,
) -> Answer:
    """Return the Answer with one path of a search.

    Args:
        source: The step the search has come to: its query, and the time spent.
        forest: The search.
        index: The draft that ends the path; -1 for no path.
        status: How the search ended.
        error: Why it ended early, if it did.
        engine: The generator to name, if known.
        verifier: Likewise.
    """
    path = forest.path(index)
    text = forest.answer(index) if path else None
    wanted = forest.limits.answers if forest.limits.answers > 1 else 0
    answers = tuple(_completion(forest, at) for at in forest.completed_paths[:wanted])
    trace = tuple(
        node if at in path or not node.text else msgspec.structs.replace(node, text="")
        for at, node in enumerate(forest.drafts)
    )
    return Answer(
        query_id=source.query_id,
        status=status,
        by="executor",
        action=forest.action,
        group=source.group,
        seq=source.seq,
        text=text,
        complete=index >= 0 and forest.drafts[index].fate == "finished",
        extracted=extract_boxed(text) if text is not None else None,
        score=forest.path_score(index) if path else None,
        answers=answers,
        path=path,
        trace=trace,
        limits=forest.limits,
        prompt_tokens=forest.prompt_tokens,
        depth=len(path),
        steps=forest.step,
        completed=sum(node.fate == "finished" for node in forest.drafts),
        shortened=sum(node.shortened for node in forest.drafts),
        spent=source.spent,
        engine=engine,
        verifier=verifier,
        error=error,
    )


def overdue(job: Job, engine: Served | None = None) -> Answer:
    """Return the Answer of a search whose deadline passed while a step was drafted: the best path so far."""
    forest = stop(job.forest, "deadline")
    ended = outcome(forest)
    return answer_of(job, forest, ended.index, ended.status, error=ran_out("deadline"), engine=engine)


def failed(
    source: Decision | Job | SearchStep, error: Exception | str, engine: Served | None = None
) -> Answer:
    """Return the Answer of a search that cannot continue: status `failed`, with the best completed path if any.

    Args:
        source: The step at which it failed.
        error: The cause and the fix. A fault of the infrastructure is marked, and nothing is learned from it.
        engine: The generator to name in the Answer, if known.
    """
    fault: Fault = "infrastructure" if isinstance(error, ServingError) and error.infrastructure else ""
    why = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    if not isinstance(source, Decision):
        made = answer_of(source, source.forest, source.forest.best, "failed", error=why, engine=engine)
        return msgspec.structs.replace(made, fault=fault)
    return msgspec.structs.replace(_without_search(source, "failed", why), engine=engine, fault=fault)


def cancelled(source: Decision | Job, why: str) -> Answer:
    """Return the Answer of a search that nobody waits for any more: status `cancelled`, with what was spent.

    Args:
        source: The step at which it was cancelled.
        why: Who cancelled it, and the reason they gave.
    """
    if not isinstance(source, Decision):
        return answer_of(source, source.forest, source.forest.best, "cancelled", error=why)
    return _without_search(source, "cancelled", why)


def _without_search(decision: Decision, status: Status, why: str) -> Answer:
    return Answer(
        query_id=decision.query_id,
        status=status,
        by="executor",
        action=decision.action,
        group=decision.group,
        seq=decision.seq,
        error=why,
    )


def ran_out(stopped: Stop) -> str:
    """Return the words for a budget that stopped a search."""
    return f"the budget of {stopped} ran out"


def _completion(forest: Forest, at: int) -> Completion:
    text = forest.answer(at)
    return Completion(text=text, score=forest.path_score(at), extracted=extract_boxed(text))
