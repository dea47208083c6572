"""What policies see of outcomes: embedded questions, embedded arms, an objective with the table's own bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agents.decider.policies.base import ActionVector, Objective
from agents.embedder.actions import embed_actions
from agents.embedder.encoder import Encoder, encoder_id
from agents.space.catalogue import Catalogue
from agents.space.describe import describe_action
from agents.space.objectives import MODES
from experiments.outcomes.history import seen_by_contextual
from experiments.outcomes.table import Arm, Outcomes
from schemas.action import Action

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Outcomes as a bandit meets them.

    Attributes:
        outcomes: Of the arms on offer.
        queries: s_q, shape (Q, d).
        vectors: One an arm, in the outcomes' order.
        bounds: (minimum, maximum) of log C: of the whole table it was cut from, shared by all scenarios.
        texts: What was embedded, and by what: with the outcomes it identifies the world.
    """

    outcomes: Outcomes
    queries: Array
    vectors: tuple[ActionVector, ...]
    bounds: tuple[float, float]
    texts: str = ""

    def restrict(self, arms: Sequence[int], name: str) -> "World":
        """Return the world of some arms, under the same bounds."""
        return replace(
            self,
            outcomes=self.outcomes.restrict(arms, name),
            vectors=tuple(self.vectors[i] for i in arms),
        )

    def of_questions(self, questions: Sequence[int]) -> "World":
        """Return the world of some questions, under the same bounds."""
        index = list(questions)
        return replace(self, outcomes=self.outcomes.of_questions(index), queries=self.queries[index])

    def with_counts(self) -> "World":
        """Return the same questions with their surface counts after the embedding, for policies that read them."""
        texts = [each.text for each in self.outcomes.questions]
        return replace(self, queries=seen_by_contextual(self.queries, texts))

    def spanned(self) -> "World":
        """Return the same questions in coordinates of their own span, where that is smaller.

        Lengths and angles stay, and with them whatever a linear policy or a nearest neighbour chooses; a learner on
        142 questions then inverts a matrix of 142 columns instead of the encoder's 384.
        """
        if len(self.queries) >= self.queries.shape[1]:
            return self
        u, s, _ = np.linalg.svd(self.queries, full_matrices=False)
        return replace(self, queries=u * s)

    def objective(self, mode: str, *, dense: bool = True) -> Objective:
        """Return the objective of a mode; without dense feedback the score's weight goes to correctness."""
        w = MODES[mode]
        low, high = self.bounds
        correct, score = (w.correct, w.score) if dense else (w.correct + w.score, 0.0)
        return Objective(correct, score, w.cost, low, high)

    def rewards(self, objective: Objective) -> Array:
        """Return r of every cell (Eq. 4, less a linear price where there is one), shape (samples, Q, A)."""
        o, c = self.outcomes, objective.coefficients
        earned = np.asarray(c[0] * o.correct + c[1] * o.score + c[2] * o.log_cost + c[3])
        return earned - objective.price * o.cost if objective.price else earned


def build_world(
    outcomes: Outcomes, encoder: Encoder, catalogue: Catalogue | None = None, cache: Path | None = None
) -> World:
    """Embed questions and arms.

    Args:
        outcomes: The whole table.
        encoder: Of both halves.
        catalogue: Describes our own arms (App. B.2); others are described by their name.
        cache: A folder for vectors.
    """
    queries = embed_actions(encoder, [each.text for each in outcomes.questions], cache)
    described = [_described(arm, catalogue) for arm in outcomes.arms]
    arms = embed_actions(encoder, described, cache)
    sizes = {m.name: float(m.architecture.parameters) for m in catalogue.models} if catalogue else {}
    vectors = tuple(
        ActionVector(arm.arm_id, arm.model, row.astype(np.float64), sizes.get(arm.model, 0.0))
        for arm, row in zip(outcomes.arms, arms, strict=True)
    )
    texts = "\n".join([encoder_id(encoder), *(each.text for each in outcomes.questions), *described])
    return World(outcomes, queries.astype(np.float64), vectors, outcomes.bounds(), texts)


def _described(arm: Arm, catalogue: Catalogue | None) -> str:
    if catalogue is not None and arm.model in catalogue.model_names:
        return describe_action(Action(model=arm.model, qp=arm.qp, cp=arm.cp, bs=arm.bs), catalogue)
    return arm.description or arm.arm_id
