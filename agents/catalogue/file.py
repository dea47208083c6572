"""Reads catalogues and their entries from YAML. Every error names the file, the model, the field and the fix.

A file may refer to a family of checkpoints (`family: models/family.json`) instead of repeating their numbers (see
`checkpoint.py`). A catalogue may also be written inline under `catalogue` in a deployment's configuration file.
"""

import functools
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml
from msgspec import Struct

from agents.catalogue.checkpoint import read_family
from agents.catalogue.cost_range import derived, unit_of
from agents.catalogue.endpoints import by_effort, chat_entry
from agents.catalogue.list_prices import SOURCE, list_price
from agents.catalogue.models import (
    DTYPE_BYTES,
    Catalogue,
    CatalogueError,
    EngineSettings,
    Hardware,
    Model,
    VerifierModel,
)
from schemas.control import ObjectiveEntry
from schemas.errors import InvalidField, closest
from schemas.objective import CostRange, CostUnit, Weights
from schemas.record import invalid_field

T = TypeVar("T")
_MADE = {"family": "train the family", "prior": "make it with `python -m experiments prior`"}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's is 10 times faster
    """YAML loader that rejects duplicate keys; PyYAML's own lets the last one win."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Return a mapping; reject duplicate keys."""
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        keys = Counter(key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, times in keys.items() if times > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"{twice[0]!r} appears twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


class CatalogueExtras(NamedTuple):
    """Settings in a catalogue file that are not part of the `Catalogue` itself.

    Attributes:
        prior: File with the prior from which a learner starts; None to start without one.
        parallelism: The available pairs of Table 1, written QP/CP; empty means all.
        fetched: Name of the model that `up` and `demo` fetch and serve themselves; None for none.
    """

    prior: Path | None
    parallelism: tuple[str, ...]
    fetched: str | None = None


KEYS = (
    "name",
    "hardware",
    "verifier",
    "cost_range",
    "grader",
    "family",
    *CatalogueExtras._fields,
    "defaults",
    "models",
    "verifiers",
)


def load_catalogue(path: Path, version: int = -1) -> Catalogue:
    """Read a catalogue file.

    Args:
        path: The YAML file. A relative path in it refers to the file's own folder, or else to the nearest folder
            above it in which the path exists (so `models/family.json` is found from `infra/catalogue/`).
        version: The version of the returned catalogue.

    Raises:
        CatalogueError: The catalogue is invalid. The message names the file, the model, the field and the fix.
    """
    entry, where = _read(path)
    for beside in CatalogueExtras._fields:
        entry.pop(beside, None)
    models = _entries(entry.pop("models", []), f"{where}, field models")
    verifiers = _entries(entry.pop("verifiers", []), f"{where}, field verifiers")
    if (family := entry.pop("family", None)) is not None:
        found_models, found_verifiers = read_family(
            _locate(path, "family", family), folder=str(Path(family).parent)
        )
        models, verifiers = _joined(found_models, models), _joined(found_verifiers, verifiers)
    defaults = _mapping(entry.pop("defaults", {}), f"{where}, field defaults")
    for_models = _mapping(defaults.pop("models", {}), f"{where}, field defaults.models")
    for_verifiers = _mapping(defaults.pop("verifiers", {}), f"{where}, field defaults.verifiers")
    if defaults:
        raise CatalogueError(
            f"{where}, field defaults.{next(iter(defaults))}: is unknown; use models and verifiers"
        )
    found = [
        decode_model(one, where) for each in models for one in _by_effort(_laid(each, for_models), where)
    ]
    entry |= _cost_range(entry, found, where)
    content = {
        **entry,
        "models": found,
        "verifiers": [decode_verifier(_over(each, for_verifiers), where) for each in verifiers],
        "version": version,
    }
    return _convert(content, Catalogue, where)


def _by_effort(entry: dict[str, Any], where: str) -> list[dict[str, Any]]:
    try:
        return by_effort(entry)
    except InvalidField as error:
        place = f"{where}, model {entry.get('name')!r}, field {error.field}"
        raise CatalogueError(f"{place}: {error.why}") from None


def beside_catalogue(path: Path) -> CatalogueExtras:
    """Return the settings in a catalogue file that are not part of the `Catalogue` itself.

    Args:
        path: The YAML file.

    Raises:
        CatalogueError: A setting is invalid. The message names the file and the field.
    """
    content, where = _read(path)
    parallelism = content.get("parallelism", [])
    if not isinstance(parallelism, list) or not all(isinstance(each, str) for each in parallelism):
        raise CatalogueError(
            f"{where}, field parallelism: expected a list of QP/CP, got {parallelism!r}; write it like [1/1, 4/16]"
        )
    fetched, named = content.get("fetched"), content.get("models", [])
    if fetched is not None and fetched not in [
        each.get("name") for each in _entries(named, f"{where}, field models")
    ]:
        raise CatalogueError(
            f"{where}, field fetched: is {fetched!r}, which models does not hold; name one of them"
        )
    prior = content.get("prior")
    return CatalogueExtras(
        None if prior is None else _locate(path, "prior", prior), tuple(parallelism), fetched
    )


def states_cost_range(path: Path) -> bool:
    """Return whether a catalogue file states the bounds of its costs. If it does not, they are derived.

    Raises:
        CatalogueError: The file cannot be read.
    """
    given = _read(path)[0].get("cost_range")
    return given is not None and not _unit_alone(given)


def _unit_alone(cost_range: Any) -> bool:
    return isinstance(cost_range, dict) and list(cost_range) == ["unit"]


def _cost_range(entry: dict[str, Any], models: list[Model], where: str) -> dict[str, Any]:
    """Return the field `cost_range`, derived from the models; empty if the catalogue states its bounds."""
    given = entry.get("cost_range")
    if given is not None and not _unit_alone(given):
        return {}
    try:
        unit = unit_of(models) if given is None else _convert(given, _Unit, f"{where}, field cost_range").unit
    except CatalogueError as error:
        raise CatalogueError(f"{where}, {error}") from None
    hardware = entry.get("hardware")
    known = None if hardware is None else _convert(hardware, Hardware, f"{where}, field hardware")
    if (found := derived(models, known, unit)) is not None:
        return {"cost_range": found}
    # A model lacks something that its cost needs. `Catalogue` rejects that with a clear message, but only if it gets as
    # far as having a cost range, so it gets placeholder bounds.
    return {"cost_range": CostRange(low=1.0, high=2.0, unit=unit)}


class _Unit(Struct, forbid_unknown_fields=True):
    unit: CostUnit


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Return a catalogue's content and location, read from its own file or from a configuration file."""
    content, where = read_yaml(path, "a catalogue file"), f"{path}"
    if "catalogue" in content:
        where = f"{path}, catalogue"
        content = _mapping(content["catalogue"], where)
    for key in content:
        if key not in KEYS:
            raise CatalogueError(f"{where}: field {key!r} is unknown; {closest(key, KEYS)}")
    return content, where


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Return the mapping in a YAML file; empty for an empty file.

    Args:
        path: The file.
        what: What kind of file is expected, for the message.

    Raises:
        CatalogueError: The file cannot be read, is not YAML, or is not a mapping of names to values.
    """
    try:
        content = deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path}: cannot be read ({error}); give the path of {what}") from error
    except yaml.YAMLError as error:
        raise CatalogueError(f"{path}: is not YAML ({error}); correct it there") from error
    except RecursionError:
        raise CatalogueError(f"{path}: is nested too deeply for {what}; correct it there") from None
    return {} if content is None else _mapping(content, f"{path}")


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> Any:
    """Return parsed YAML, cached: a process reads its catalogue file several times, and parsing is slow."""
    return yaml.load(text, Loader=_Loader)


def decode_objective(name: str, asked: Any) -> ObjectiveEntry:
    """Parse an objective from a deployment's settings.

    Raises:
        CatalogueError: The objective is invalid. The message names the objective, the field and the fix.
    """
    known = ("weights", "mean_cost", "accuracy")
    weights = asked.get("weights") if isinstance(asked, dict) else None
    for where, given, fields in (
        (name, asked, known),
        (f"{name}.weights", weights or {}, Weights.__struct_fields__),
    ):
        for field in _mapping(given, where):
            if field not in fields:  # a record may have fields of a later release; a file may not
                raise CatalogueError(f"{where}.{field}: is unknown; {closest(field, fields)}")
    return _convert({"name": name, "op": "set", **asked}, ObjectiveEntry, name)


def decode_model(entry: Mapping[str, Any], where: str) -> Model:
    """Return the model described by an entry of a file or of a control record.

    Args:
        entry: The entry, as built-in types.
        where: The file or record that contains the entry, for the message.

    Raises:
        CatalogueError: The entry is invalid. The message names `where`, the model, the field and the fix.
    """
    place = f"{where}, model {entry.get('name')!r}"
    served, endpoint = _served(entry), entry.get("endpoint")
    try:
        if isinstance(endpoint, dict) and endpoint.get("kind") == "chat":
            served = chat_entry(served, endpoint)
        served = with_list_price(served)
    except InvalidField as error:
        raise CatalogueError(f"{place}, field {error.field}: {error.why}") from None
    return _convert(served, Model, place)


def with_list_price(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with `price: auto` replaced by the model's list price.

    Raises:
        InvalidField: The model's price is not known, or it is not a hosted model.
    """
    if entry.get("price") != "auto":
        return entry
    endpoint = entry.get("endpoint")
    if not isinstance(endpoint, dict) or endpoint.get("kind") != "chat":
        raise InvalidField(
            "Model",
            "price",
            "is auto, which works only for hosted models (endpoint.kind: chat): give USD per million tokens",
        )
    url = endpoint.get("url") or next(iter(endpoint.get("urls") or ()), None)
    price = list_price(str(url), str(endpoint.get("model")))
    return {**entry, "price": {**msgspec.structs.asdict(price), "source": SOURCE}}


def entry_of(model: Model) -> str:
    """Return a model as a YAML entry with every field written out, so that decoding it does not depend on defaults."""
    return str(yaml.safe_dump(msgspec.to_builtins(model), sort_keys=False, allow_unicode=True))


def decode_verifier(entry: Mapping[str, Any], where: str) -> VerifierModel:
    """Return the verifier described by an entry; see `decode_model`."""
    return _convert(_served(entry), VerifierModel, f"{where}, verifier {entry.get('name')!r}")


def _served(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in `weight_bytes` and `kv_bytes` from the dtype that is served, unless the entry states them."""
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
        found = invalid_field(kind.__name__, error)
        place = f"{where}, field {found.field}" if found.field else where
        raise CatalogueError(f"{place}: {found.why}") from error


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


def _laid(entry: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Merge an entry over the defaults. The default `sampling` does not apply to chat endpoints."""
    endpoint = _over(entry, defaults).get("endpoint")
    chats = isinstance(endpoint, dict) and endpoint.get("kind") == "chat"
    return _over(entry, {name: each for name, each in defaults.items() if not (chats and name == "sampling")})


def _over(entry: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Merge an entry over a base. The entry's values win, and mappings are merged one level deep."""
    merged = {**base, **entry}
    for key, below in base.items():
        own = entry.get(key)
        if isinstance(below, dict) and isinstance(own, dict):
            merged[key] = {**below, **own}
    return merged


def _joined(family: list[dict[str, Any]], typed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the catalogue's entries over those read from the family's checkpoints; append entries of other models."""
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
