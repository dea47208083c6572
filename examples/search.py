"""A search forest alone: ask what to draft, tell the drafts and their scores, until the search is over.

The engine and the verifier are toys: a draft's text, length and score follow from its seed. With a real model you
would send each prefix to it, and each path to a process reward model.
"""

import random
import sys

sys.path.insert(0, "")  # the packages lie in the repository root, where this is run

from agents.search import Drafted, ask, outcome, plant, tell_drafts, tell_scores
from schemas import Action, Limits, Scored

# Two subtrees of four drafts each, of which the best two go on.
forest = plant(Action(model="toy", qp=2, cp=4, bs=2), Limits(depth_limit=8, step_tokens=64, eta=1.2))

while (wanted := ask(forest, query_id="example", seed=7)) is not None:
    drafts, scores = [], []
    for expansion in wanted.expansions:
        for seed in expansion.seeds:
            dice = random.Random(seed)
            ends = wanted.step > 2 and dice.random() < 0.4
            text = f"step {wanted.step} of tree {expansion.tree}\n\n"
            drafts.append(
                Drafted(text=text, tokens=dice.randint(8, 24), finish="eos" if ends else "separator")
            )
            scores.append(Scored(score=round(dice.uniform(0.2, 0.9), 3)))
    forest = tell_drafts(forest, wanted.step, drafts, prompt_tokens=30)
    forest = tell_scores(forest, wanted.step, scores)

for at, draft in enumerate(forest.drafts):
    after = f"after {draft.parent}" if draft.parent >= 0 else "at the root"
    why = f", at best {draft.bound:.3f} from here" if draft.bound is not None else ""
    print(
        f"{at:2} step {draft.depth}, tree {draft.tree}, {after}: {draft.tokens} tokens, "
        f"score {draft.score:.3f}, {draft.fate}{why}"
    )
found = outcome(forest)
print(
    f"{found.status}: draft {found.index} ends the best of {found.completed} completed paths, score {found.score:.3f}"
)
