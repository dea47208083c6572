"""The catalogue: which models can be chosen, which verifier scores them, and what one FLOP is worth a byte.

A file under `infra/catalogue/` becomes one frozen `Catalogue`. Adding or removing a model gives a new one
with a higher version, so a decision can say which catalogue it chose from. A file may point at a family of
checkpoints (`family: models/family.json`) instead of typing their numbers again: see `family.py`.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import Meta, Struct

from agents.space.errors import CatalogueError
from agents.space.family import read_family
from agents.space.models import DTYPE_BYTES, EngineSettings, Hardware, Model, Name, Verifier, first_repeated
from schemas.errors import InvalidField
from schemas.objective import CostRange

KEYS = (
    "name", "hardware", "verifier", "cost_range", "family", "parallelism", "prior", "defaults", "models", "verifiers",
)  # fmt: skip
T = TypeVar("T")
_MADE = {"family": "train the family", "prior": "make it with `python -m experiments prior`"}
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<field>.*)`)?$", re.DOTALL)


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


def load_catalogue(path: Path, version: int = -1) -> Catalogue:
    """Read a catalogue file.

    Args:
        path: The YAML file. A relative path in it starts from the file's folder, or else from the nearest
            folder above it that holds it (so `models/family.json` is found from `infra/catalogue/`).
        version: The version the catalogue gets.

    Raises:
        CatalogueError: naming the file, the model, the field and the fix.
    """
    entry = _read(path)
    for beside in ("prior", "parallelism"):
        entry.pop(beside, None)
    models = _entries(entry.pop("models", []), f"{path}, field models")
    verifiers = _entries(entry.pop("verifiers", []), f"{path}, field verifiers")
    if (family := entry.pop("family", None)) is not None:
        found_models, found_verifiers = read_family(
            _locate(path, "family", family), folder=str(Path(family).parent)
        )
        models, verifiers = _joined(found_models, models), _joined(found_verifiers, verifiers)
    defaults = _mapping(entry.pop("defaults", {}), f"{path}, field defaults")
    for_models = _mapping(defaults.pop("models", {}), f"{path}, field defaults.models")
    for_verifiers = _mapping(defaults.pop("verifiers", {}), f"{path}, field defaults.verifiers")
    if defaults:
        raise CatalogueError(
            f"{path}, field defaults.{next(iter(defaults))}: is unknown; use models and verifiers"
        )
    content = {
        **entry,
        "models": [decode_model(_over(each, for_models), f"{path}") for each in models],
        "verifiers": [decode_verifier(_over(each, for_verifiers), f"{path}") for each in verifiers],
        "version": version,
    }
    return _convert(content, Catalogue, f"{path}")


def prior_of_catalogue(path: Path) -> Path | None:
    """Return the prior that a catalogue file names: what a learner of these models knows before its first decision.

    Args:
        path: The YAML file.

    Returns:
        The prior's file; None if the catalogue names none.

    Raises:
        CatalogueError: naming the file, and the field if what it names is not there.
    """
    named = _read(path).get("prior")
    return None if named is None else _locate(path, "prior", named)


def parallelism_of_catalogue(path: Path) -> tuple[str, ...]:
    """Return the question and candidate parallelism that a catalogue file offers, as QP/CP; empty if it does not say.

    Args:
        path: The YAML file.

    Raises:
        CatalogueError: naming the file and the field.
    """
    given = _read(path).get("parallelism", [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise CatalogueError(
            f"{path}, field parallelism: expected a list of QP/CP, got {given!r}; write it like [1/1, 4/16]"
        )
    return tuple(given)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(
            f"{path}: cannot be read ({error}); give the path of a catalogue file"
        ) from error
    except yaml.YAMLError as error:
        raise CatalogueError(f"{path}: is not YAML ({error}); correct it there") from error
    entry = _mapping(content, f"{path}")
    for key in entry:
        if key not in KEYS:
            raise CatalogueError(f"{path}: field {key!r} is unknown; use only {', '.join(KEYS)}")
    return entry


def decode_model(entry: Mapping[str, Any], where: str) -> Model:
    """Return the model that an entry of a file or of a control record describes.

    Args:
        entry: The entry as plain values.
        where: The file or record it came from, for the message.

    Raises:
        CatalogueError: naming where, the model, the field and the fix.
    """
    return _convert(_served(entry), Model, f"{where}, model {entry.get('name')!r}")


def decode_verifier(entry: Mapping[str, Any], where: str) -> Verifier:
    """Return the verifier that an entry describes, as `decode_model` does a model."""
    return _convert(_served(entry), Verifier, f"{where}, verifier {entry.get('name')!r}")


def _served(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the bytes of weights and cache from the dtype served, where an entry does not type them."""
    served, engine = dict(entry), entry.get("engine", {})
    dtype = engine.get("dtype", EngineSettings().dtype) if isinstance(engine, dict) else None
    if isinstance(served.get("architecture"), dict) and isinstance(dtype, str) and dtype in DTYPE_BYTES:
        width = DTYPE_BYTES[dtype]
        served["architecture"] = {"weight_bytes": width, "kv_bytes": width, **served["architecture"]}
    return served


def _convert(entry: dict[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        found = _AT.match(str(error))
        what, field = (found["what"], found["field"] or "") if found else (str(error), "")
        if isinstance(cause := error.__cause__, InvalidField):
            what, field = cause.why, ".".join(part for part in (field, cause.field) if part)
        place = f"{where}, field {field}" if field else where
        raise CatalogueError(f"{place}: {what[0].lower()}{what[1:]}; correct it there") from error


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CatalogueError(
            f"{where}: expected a mapping of names to values, got {type(value).__name__}; write one"
        )
    return dict(value)


def _entries(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise CatalogueError(
            f"{where}: expected a list, got {type(value).__name__}; begin each entry with a dash"
        )
    return [_mapping(each, f"{where}, entry {at}") for at, each in enumerate(value, 1)]


def _over(entry: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return an entry laid over a base: its values win, and mappings are laid one level deep."""
    merged = {**base, **entry}
    for key, below in base.items():
        own = entry.get(key)
        if isinstance(below, dict) and isinstance(own, dict):
            merged[key] = {**below, **own}
    return merged


def _joined(family: list[dict[str, Any]], typed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lay what a catalogue says of a family's model over what its checkpoint says; others follow."""
    said = {each.get("name"): each for each in typed}
    known = {each["name"] for each in family}
    laid = [_over(said.get(each["name"], {}), each) for each in family]
    return laid + [each for each in typed if each.get("name") not in known]


def _locate(path: Path, field: str, wanted: Any) -> Path:
    if not isinstance(wanted, str) or not wanted:
        raise CatalogueError(f"{path}, field {field}: expected a path, got {wanted!r}; give that of a file")
    starts = path.resolve().parents
    for start in starts:
        if (start / wanted).is_file():
            return start / wanted
    raise CatalogueError(
        f"{path}, field {field}: no file {wanted!r} in {starts[0]} or above it; "
        f"{_MADE[field]} or correct the path"
    )
