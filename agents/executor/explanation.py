"""Why a search went as it did: every draft with its score, its path's score and its fate, step by step."""

from dataclasses import dataclass

from agents.executor.derive import place_of
from agents.executor.early_exit import StepControl, history
from schemas.answer import Answer
from schemas.forest import Draft, Fate, Forest


@dataclass(frozen=True)
class DraftExplained:
    """One draft. `place` names it: subtree, then slot at each step, as in `0.3.1`; `why` puts its fate in words."""

    place: str
    tokens: int
    score: float | None
    path_score: float | None
    fate: Fate
    why: str
    chosen: bool


@dataclass(frozen=True)
class StepExplained:
    """One step: its drafts, best path first, and what search control knew after it."""

    control: StepControl
    drafts: tuple[DraftExplained, ...]


def explain(answer: Answer) -> tuple[StepExplained, ...]:
    """Return the steps of an Answer's search; none when nothing was run."""
    if answer.action is None or answer.limits is None or not answer.trace:
        return ()
    forest = Forest(
        action=answer.action,
        limits=answer.limits,
        drafts=answer.trace,
        step=answer.steps,
        scored=answer.steps,
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


def _draft(forest: Forest, at: int, control: StepControl, chosen: bool) -> DraftExplained:
    draft = forest.drafts[at]
    return DraftExplained(
        place=".".join(map(str, place_of(forest, at))),
        tokens=draft.tokens,
        score=draft.score,
        path_score=forest.path_score(at) if draft.score is not None else None,
        fate=draft.fate,
        why=_why(draft, forest.action.bs, control),
        chosen=chosen,
    )


def _why(draft: Draft, bs: int, control: StepControl) -> str:
    match draft.fate:
        case "early_exit":
            return (
                f"could reach {draft.bound:.3f} at best by step {control.limit}, V_max is {control.v_max:.3f}"
            )
        case "beam":
            return f"not among the best {bs} of its subtree"
        case "kept":
            return "goes on" if draft.finish != "length" else "goes on in the middle of its step"
        case "finished":
            return "complete"
        case "cut":
            full = draft.finish == "context"
            return (
                "unfinished: the context is full"
                if full
                else f"unfinished at the limit of {control.limit} steps"
            )
        case "stopped":
            return "alive when the budget ran out"
        case _:
            return "never scored"
