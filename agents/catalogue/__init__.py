"""The choices: actions, the model catalogue, and the texts that describe an action (App. B.2)."""

from agents.catalogue.eflops import search_cost
from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Architecture, Catalogue, Model, Sampling, VerifierModel

__all__ = [
    "load_catalogue",
    "Catalogue",
    "Model",
    "VerifierModel",
    "Architecture",
    "Sampling",
    "search_cost",
]
