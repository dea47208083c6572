"""The model catalogue, and the actions, descriptions (App. B.2), costs and objectives built on it."""

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
