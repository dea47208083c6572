"""What can be chosen: actions, the model catalogue, and the texts that describe an action (App. B.2)."""

from agents.space.catalogue import Catalogue
from agents.space.catalogue_file import load_catalogue
from agents.space.models import Architecture, Model, Sampling, Verifier

__all__ = ["load_catalogue", "Catalogue", "Model", "Verifier", "Architecture", "Sampling"]
