"""A family of checkpoints as catalogue entries: nothing that a checkpoint says is typed twice.

`family.json` names the models and says what cannot be read from a checkpoint (sampling, step tag, anchors);
the architecture comes from each folder's `config.json` and the parameter count from the header of its
safetensors.

Convention for P, one for all: every tensor that is stored counts once. Embeddings tied to the output head are
stored once and count once. (Table 11 counts them twice for the two smallest Qwen3.)
"""

import json
import math
from pathlib import Path
from typing import Any

from agents.catalogue.models import CatalogueError

# The names safetensors gives the dtypes that one stored number is one parameter in (packed int4 is not).
STORED_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
MAX_HEADER_BYTES = 100_000_000  # the format's own limit


def read_family(path: Path, folder: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the generators and the verifiers of a family as catalogue entries, smallest first as listed.

    Args:
        path: The family.json; each model's checkpoint is a folder beside it, named like the model.
        folder: What to write before a model's name as its checkpoint: the family's folder as the catalogue
            spells it.

    Raises:
        CatalogueError: naming the file, the model, the field and the fix.
    """
    family = _read_json(path)
    shared = {"context_tokens": _field(family, "context_tokens", int, path)}
    sampling = _field(family, "sampling", dict, path)
    delimiter = _field(family, "delimiter", str, path)
    tags = {
        "tag": _field(family, "step_tag", str, path),
        "tag_id": _field(family, "step_tag_id", int, path),
        "good_label": _field(family, "good_label", int, path),
    }
    generators, verifiers = [], []
    for entry in _named(family, "generators", path):
        model = _checkpoint(path, entry["name"], folder, shared)
        model["sampling"] = {**sampling, "delimiter": delimiter}
        model["anchors"] = [
            {"label": label, "score": score, "source": f"{path.name}, validation questions"}
            for label, score in _anchors(entry, path).items()
        ]
        generators.append(model)
    for entry in _named(family, "verifiers", path):
        verifier = _checkpoint(path, entry["name"], folder, shared)
        verifiers.append({**verifier, "family": "step-tags", "step_tags": tags})
    return generators, verifiers


def read_architecture(checkpoint: Path) -> dict[str, int]:
    """Return the numbers of `Architecture` that a checkpoint's own files hold.

    The bytes a number takes are not among them: they follow the dtype it is served in, not the one it is
    stored in.

    Args:
        checkpoint: A Hugging Face folder with config.json and safetensors.

    Raises:
        CatalogueError: when a file or a field is missing or no use.
    """
    path = checkpoint / "config.json"
    config = _read_json(path)
    heads = _field(config, "num_attention_heads", int, path)
    head_dim = config.get("head_dim") or _field(config, "hidden_size", int, path) // heads
    return {
        "parameters": _stored(checkpoint),
        "layers": _field(config, "num_hidden_layers", int, path),
        "query_heads": heads,
        "kv_heads": _field(config, "num_key_value_heads", int, path)
        if "num_key_value_heads" in config
        else heads,
        "head_dim": head_dim,
    }


def _checkpoint(path: Path, name: str, folder: str, engine: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "checkpoint": f"{folder}/{name}",
        "architecture": read_architecture(path.parent / name),
        "engine": dict(engine),
    }


def _stored(checkpoint: Path) -> int:
    """Return how many parameters are stored, by the headers alone: no weight is read."""
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise CatalogueError(
            f"{checkpoint}: holds no .safetensors; save the model there or drop it from the family"
        )
    parameters = 0
    for file in files:
        for name, tensor in _header(file).items():
            if name == "__metadata__":
                continue
            if (dtype := tensor["dtype"]) not in STORED_DTYPES:
                raise CatalogueError(
                    f"{file}, tensor {name}: dtype {dtype!r} cannot be counted; save it as one of "
                    + ", ".join(STORED_DTYPES)
                )
            parameters += math.prod(tensor["shape"])
    if not parameters:
        raise CatalogueError(f"{checkpoint}: its safetensors hold no parameters; save the model again")
    return parameters


def _header(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        raw = stream.read(size) if 0 < size <= MAX_HEADER_BYTES else b""
    try:
        header = json.loads(raw) if len(raw) == size else None
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise CatalogueError(f"{file}: is not a whole safetensors file; save the model again")
    return header


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CatalogueError(f"{path}: cannot be read ({error}); save the model there again") from error
    if not isinstance(content, dict):
        raise CatalogueError(f"{path}: expected an object, got {type(content).__name__}; save it again")
    return content


def _field(entry: dict[str, Any], name: str, kind: type, path: Path) -> Any:
    value = entry.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        got = "nothing" if name not in entry else repr(value)
        raise CatalogueError(f"{path}, field {name}: expected {kind.__name__}, got {got}; set it there")
    return value


def _named(family: dict[str, Any], role: str, path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = _field(family, role, list, path)
    for at, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise CatalogueError(f"{path}, field {role}, entry {at}: has no name; give that of its folder")
    return entries


def _anchors(entry: dict[str, Any], path: Path) -> dict[str, float]:
    anchors = entry.get("anchors", {})
    if not isinstance(anchors, dict):
        raise CatalogueError(
            f"{path}, model {entry['name']}, field anchors: expected labels to percentages; write them"
        )
    return anchors
