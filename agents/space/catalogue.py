"""The catalogue: which models can be chosen, which verifier scores them, and what one FLOP is worth a byte.

A file under `infra/catalogue/` becomes one frozen `Catalogue` (`catalogue_file.py`). Adding or removing a model gives a
new one with a higher version, so a decision can say which catalogue it chose from.
"""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from agents.space.errors import CatalogueError
from agents.space.models import Hardware, Model, Name, Verifier, first_repeated
from schemas.objective import CostRange


class Catalogue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The models of the space, in the stable order that actions are enumerated in."""

    name: Name
    hardware: Hardware
    verifier: Name  # the one in use, of `verifiers`
    cost_range: CostRange  # what log C is normalised by, until a control record says otherwise
    models: tuple[Model, ...]
    verifiers: tuple[Verifier, ...]
    version: Annotated[int, Meta(ge=-1)] = -1  # offset in `control` of the last change; −1: the file alone

    def __post_init__(self) -> None:
        """Refuse an empty catalogue, a name used twice and a verifier that is not there."""
        if not self.models:
            raise ValueError("models is empty: a catalogue holds at least one")
        if twice := first_repeated(self._names):
            raise ValueError(f"name {twice!r} is used twice: rename one")
        if self.verifier not in {each.name for each in self.verifiers}:
            known = ", ".join(each.name for each in self.verifiers) or "none"
            raise ValueError(f"verifier is {self.verifier!r}, verifiers holds {known}: name one of them")

    @property
    def _names(self) -> tuple[str, ...]:
        return (*(each.name for each in self.models), *(each.name for each in self.verifiers))

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names of the candidate models, in catalogue order."""
        return tuple(each.name for each in self.models)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the model names of each executor group."""
        names = dict.fromkeys(each.group for each in self.models)
        return {group: tuple(m.name for m in self.models if m.group == group) for group in names}

    @property
    def price_factors(self) -> dict[str, float]:
        """Return the price factor of each model that costs other than its eFLOPs."""
        return {m.name: m.price_factor for m in self.models if m.price_factor != 1.0}

    @property
    def smallest(self) -> Model:
        """Return the model with the fewest parameters: the one the TTS scenario scales."""
        return min(self.models, key=lambda each: each.architecture.parameters)

    @property
    def fingerprint(self) -> str:
        """Return a digest of all but version and prices: equal for equal content, however it came about.

        A recording made under other prices holds the same searches.
        """
        plain = msgspec.to_builtins(msgspec.structs.replace(self, version=-1))
        for model in plain["models"]:
            del model["price_factor"]
        content = msgspec.json.encode(plain, order="sorted")
        return hashlib.sha256(content).hexdigest()[:16]

    @property
    def pricing(self) -> dict[str, float | str]:
        """Return what the eFLOPs of a search follow from (App. D.3): the hardware, the verifier in use, the models.

        Two catalogues that agree in it price equal traces of a model equally, in eFLOPs.
        """
        verifier = self.verifier_named()
        found: dict[str, float | str] = {
            "hardware.intensity": self.hardware.intensity,
            "verifier": verifier.name,
        }
        priced = {"verifier": verifier.architecture}
        priced |= {f"models.{each.name}": each.architecture for each in self.models}
        for at, architecture in priced.items():
            found |= {f"{at}.{field}": value for field, value in msgspec.to_builtins(architecture).items()}
        return found

    def model(self, name: str) -> Model:
        """Return a candidate model.

        Raises:
            CatalogueError: when the catalogue does not hold it.
        """
        for each in self.models:
            if each.name == name:
                return each
        known = ", ".join(self.model_names)
        raise CatalogueError(f"catalogue {self.name!r}: no model {name!r}; choose one of {known}, or add it")

    def verifier_named(self, name: str | None = None) -> Verifier:
        """Return a verifier, by default the one in use.

        Raises:
            CatalogueError: when the catalogue does not hold it.
        """
        wanted = self.verifier if name is None else name
        for each in self.verifiers:
            if each.name == wanted:
                return each
        known = ", ".join(each.name for each in self.verifiers)
        raise CatalogueError(f"catalogue {self.name!r}: no verifier {wanted!r}; choose one of {known}")

    def add(self, model: Model, version: int | None = None) -> "Catalogue":
        """Return the catalogue with one more model, at the end so that no other action changes its index.

        Args:
            model: The newcomer.
            version: The new version, in production the change's offset in `control`; by default one higher.

        Raises:
            CatalogueError: when the name is taken, or the version does not grow.
        """
        if model.name in self._names:
            raise CatalogueError(
                f"catalogue {self.name!r}: model {model.name!r} already exists; "
                "replace it, or take another name"
            )
        return self._changed((*self.models, model), version)

    def replace(self, model: Model, version: int | None = None) -> "Catalogue":
        """Return the catalogue with another entry for a model it holds, at the end as if it were new.

        Raises:
            CatalogueError: when it is not there, or the version does not grow.
        """
        before = self.model(model.name)
        return self._changed((*(each for each in self.models if each is not before), model), version)

    def remove(self, name: str, version: int | None = None) -> "Catalogue":
        """Return the catalogue without one model.

        Raises:
            CatalogueError: when it is not there or is the last one, or the version does not grow.
        """
        gone = self.model(name)
        if len(self.models) == 1:
            raise CatalogueError(
                f"catalogue {self.name!r}: {name!r} is the last model; add another one first"
            )
        return self._changed(tuple(each for each in self.models if each is not gone), version)

    def price(self, name: str, factor: float, version: int | None = None) -> "Catalogue":
        """Return the catalogue with another price factor for a model, which keeps its place.

        Raises:
            CatalogueError: when the model is not there, the factor is no price, or the version does not grow.
        """
        before = self.model(name)
        try:
            after = msgspec.structs.replace(before, price_factor=float(factor))
        except ValueError as error:
            raise CatalogueError(f"catalogue {self.name!r}, model {name!r}: {error}") from None
        return self._changed(tuple(after if each is before else each for each in self.models), version)

    def unchanged(self, version: int) -> "Catalogue":
        """Return the same models under a later version.

        Raises:
            CatalogueError: when the version does not grow.
        """
        return self._changed(self.models, version)

    def _changed(self, models: tuple[Model, ...], version: int | None) -> "Catalogue":
        after = self.version + 1 if version is None else version
        if after <= self.version:
            raise CatalogueError(
                f"catalogue {self.name!r}: version {after} does not follow {self.version}; give a higher one"
            )
        return msgspec.structs.replace(self, models=models, version=after)
