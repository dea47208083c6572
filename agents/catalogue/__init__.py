"""The available choices: actions, the model catalogue, and the texts that describe an action (App. B.2)."""

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Architecture, Catalogue, Model, Sampling, VerifierModel
from agents.catalogue.search_cost import search_cost

__all__ = [
    "load_catalogue",
    "Catalogue",
    "Model",
    "VerifierModel",
    "Architecture",
    "Sampling",
    "search_cost",
]
