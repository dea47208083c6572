"""The configurations of BEST-Route*, a baseline of the paper: every model with the best of 1 to 20 samples."""

from agents.space.action_space import ActionSpace
from agents.space.catalogue import Catalogue
from schemas.action import Action

SAMPLES = 20


def best_route_space(catalogue: Catalogue) -> ActionSpace:
    """Return the space of BEST-Route*, 120 actions for six models."""
    counts = range(1, SAMPLES + 1)
    return ActionSpace(
        tuple(Action(model=m, qp=n, cp=1, bs=1) for m in catalogue.model_names for n in counts)
    )
