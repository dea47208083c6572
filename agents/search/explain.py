"""Explains a search: each draft with its score, its path's score and its fate in words (§3.3).

For a path that was pruned early, the words include the proof: the best mean it could still have reached by H_max, and
the score it would have had to beat.
"""

from dataclasses import dataclass

from agents.search.early_exit import h_max, last_answer
from agents.search.forest import place_of
from schemas.answer import Answer
from schemas.forest import Draft, Fate, Forest, completes


@dataclass(frozen=True)
class StepControl:
    """The state of search control after a step, which the bounds of the step's paths were compared with.

    Attributes:
        step: The step.
        v_max: Score of the best completed path.
        best_depth: Depth of the best completed path.
        limit: H_max.
        bar: The score that a bound must reach: V_max or, if several answers are wanted, the lowest one's score.
        verified: Whether a verifier scores the search. Without one, there is no early exit.
    """

    step: int
    v_max: float | None
    best_depth: int | None
    limit: int
    bar: float | None = None
    verified: bool = True


@dataclass(frozen=True)
class DraftExplained:
    """One draft, with its scores and its fate.

    Attributes:
        index: Index of the draft in the trace.
        place: Path to the draft: subtree, then slot at each step, as in `0.3.1`.
        tokens: Number of tokens generated.
        score: v(s); None if it was never scored.
        path_score: V(p), the mean score over its path.
        fate: The draft's fate.
        why: The fate in words.
        chosen: Whether the draft is on the path chosen for the Answer.
    """

    index: int
    place: str
    tokens: int
    score: float | None
    path_score: float | None
    fate: Fate
    why: str
    chosen: bool


@dataclass(frozen=True)
class StepExplained:
    """One step: its drafts, best path first, and the state of search control after the step."""

    control: StepControl
    drafts: tuple[DraftExplained, ...]


def explain(answer: Answer) -> tuple[StepExplained, ...]:
    """Return the steps of an Answer's search; empty if nothing was run.

    Raises:
        ValueError: The trace cannot come from a search.
    """
    if answer.action is None or answer.limits is None or not answer.trace:
        return ()
    # A search that failed at the verifier ends with a step without scores.
    unscored = answer.limits.verified and any(draft.score is None for draft in answer.trace)
    forest = Forest(
        action=answer.action,
        limits=answer.limits,
        drafts=answer.trace,
        step=answer.steps,
        scored=answer.steps - unscored,
        prompt_tokens=answer.prompt_tokens,
    )
    steps = []
    for control in history(forest):
        drafts = [
            _draft(forest, at, control, at in answer.path)
            for at, draft in enumerate(forest.drafts)
            if draft.depth == control.step
        ]
        steps.append(StepExplained(control, tuple(sorted(drafts, key=lambda d: -(d.path_score or 0.0)))))
    return tuple(steps)


def history(forest: Forest) -> list[StepControl]:
    """Return V_max, D_best and H_max after each step, derived from the fates."""
    found: list[StepControl] = []
    best: Draft | None = None
    v_max: float | None = None
    scores: list[float] = []
    if not forest.limits.verified:
        limit = forest.limits.depth_limit
        return [StepControl(step, None, None, limit, verified=False) for step in range(1, forest.step + 1)]
    for step in range(1, forest.step + 1):
        for at, draft in enumerate(forest.drafts):
            if draft.depth == step and completes(draft.fate, draft.finish, forest.limits):
                scores.append(forest.path_score(at))
                if v_max is None or scores[-1] > v_max:
                    best, v_max = draft, scores[-1]
        depth = best.depth if best else None
        bar = last_answer(scores, forest.limits.answers)
        limit = h_max(forest.limits, depth if bar is not None else None)
        found.append(StepControl(step, v_max, depth, limit, bar))
    return found


def bounds_in_words(control: StepControl, eta: float) -> str:
    """Return the state of search control after a step, as one sentence.

    >>> bounds_in_words(StepControl(step=5, v_max=0.81, best_depth=5, limit=6, bar=0.81), eta=1.2)
    'V_max = 0.810 at D_best = 5, so H_max = ⌈1.2·5⌉ = 6'
    >>> bounds_in_words(StepControl(step=1, v_max=None, best_depth=None, limit=40), eta=1.2)
    'no path has completed: H_max = 40'
    """
    if not control.verified:
        return f"no verifier scores this model, so there is no early exit: H_max = {control.limit}"
    if control.v_max is None:
        return f"no path has completed: H_max = {control.limit}"
    known = f"V_max = {control.v_max:.3f} at D_best = {control.best_depth}"
    if control.bar is None:
        return f"{known}; more answers are wanted: H_max = {control.limit}"
    risen = f"⌈{eta:g}·{control.best_depth}⌉"
    return f"{known}, so H_max = {risen} = {control.limit}"


def _draft(forest: Forest, at: int, control: StepControl, chosen: bool) -> DraftExplained:
    draft = forest.drafts[at]
    path_score = forest.path_score(at) if draft.score is not None else None
    return DraftExplained(
        index=at,
        place=".".join(map(str, place_of(forest, at))),
        tokens=draft.tokens,
        score=draft.score,
        path_score=path_score,
        fate=draft.fate,
        why=_why(draft, path_score, forest, control),
        chosen=chosen,
    )


def _why(draft: Draft, path_score: float | None, forest: Forest, control: StepControl) -> str:
    match draft.fate:
        case "early_exit":
            wanted = forest.limits.answers
            beaten = "V_max" if wanted == 1 else f"the score of answer {wanted}"
            return (
                f"pruned: with {path_score or 0.0:.3f} after {draft.depth} of at most {control.limit} steps (H_max) it "
                f"could reach {draft.bound or 0.0:.3f} at best, below {beaten} = {control.bar or 0.0:.3f}"
            )
        case "beam":
            return f"not among the best {forest.action.bs} of its subtree"
        case "kept":
            return "continues" if draft.finish != "length" else "continues within its step"
        case "finished":
            return "complete" if draft.finish != "stop" else "complete: ended by a stop text of the client"
        case "cut":
            if draft.finish == "context":
                return "unfinished: the context is full"
            if draft.finish == "max_tokens":
                return f"unfinished: cut at the client's max_tokens = {forest.limits.max_tokens}"
            return f"unfinished at H_max = {control.limit} steps"
        case "stopped":
            return "alive when the budget ran out"
        case _:
            return "never scored"
