"""Builds catalogue entries for a family of checkpoints by reading the checkpoints' own files.

`family.json` names the models and gives what a checkpoint does not contain (sampling, step tag, anchors). The
architecture comes from each folder's `config.json`, and the parameter count from the headers of its safetensors files.

Convention for P: every stored tensor counts once. Embeddings tied to the output head are stored once, so they count
once. (Table 11 counts them twice for the two smallest Qwen3 models.)
"""

import json
import math
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agents.catalogue.models import CatalogueError
from schemas.record import invalid_field

T = TypeVar("T")

# The safetensors dtypes that store one number per parameter (packed int4, for instance, does not).
STORED_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
MAX_HEADER_BYTES = 100_000_000  # limit of the safetensors format


class _Member(msgspec.Struct):
    name: str
    anchors: dict[str, float] = {}


class _Family(msgspec.Struct):
    """The fields read from family.json."""

    context_tokens: int
    sampling: dict[str, Any]
    delimiter: str
    step_tag: str
    step_tag_id: int
    good_label: int
    generators: list[_Member]
    verifiers: list[_Member]


class _Config(msgspec.Struct):
    """The fields read from a checkpoint's config.json."""

    num_attention_heads: int
    num_hidden_layers: int
    hidden_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None


def read_family(path: Path, folder: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the generators and the verifiers of a family as catalogue entries, in the order of family.json.

    Args:
        path: The family.json. The folder next to it with a model's name is that model's checkpoint.
        folder: The family's folder as written in the catalogue; it is prefixed to every checkpoint path.

    Raises:
        CatalogueError: A file is invalid. The message names the file, the field and the fix.
    """
    family = _read_json(path, _Family)
    tags = {"tag": family.step_tag, "tag_id": family.step_tag_id, "good_label": family.good_label}
    generators, verifiers = [], []
    for entry in family.generators:
        model = _checkpoint(path, entry.name, folder, family.context_tokens)
        model["sampling"] = {**family.sampling, "delimiter": family.delimiter}
        model["anchors"] = [
            {"label": label, "score": score, "source": f"{path.name}, validation questions"}
            for label, score in entry.anchors.items()
        ]
        generators.append(model)
    for entry in family.verifiers:
        verifier = _checkpoint(path, entry.name, folder, family.context_tokens)
        verifiers.append({**verifier, "family": "step-tags", "step_tags": tags})
    return generators, verifiers


def read_architecture(checkpoint: Path) -> dict[str, int]:
    """Return the fields of `Architecture` that can be read from a checkpoint.

    `weight_bytes` and `kv_bytes` are not among them: they depend on the dtype that is served, not on the stored one.

    Args:
        checkpoint: A Hugging Face folder with config.json and safetensors.

    Raises:
        CatalogueError: A file or a field is missing or invalid.
    """
    config = _read_json(checkpoint / "config.json", _Config)
    heads = config.num_attention_heads
    return {
        "parameters": _stored(checkpoint),
        "layers": config.num_hidden_layers,
        "query_heads": heads,
        "kv_heads": heads if config.num_key_value_heads is None else config.num_key_value_heads,
        "head_dim": config.head_dim or config.hidden_size // heads,
    }


def _checkpoint(path: Path, name: str, folder: str, context_tokens: int) -> dict[str, Any]:
    return {
        "name": name,
        "checkpoint": f"{folder}/{name}",
        "architecture": read_architecture(path.parent / name),
        "engine": {"context_tokens": context_tokens},
    }


def _stored(checkpoint: Path) -> int:
    """Count the stored parameters from the headers of the files, without reading any weights."""
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
        raise CatalogueError(f"{checkpoint}: its safetensors contain no parameters; save the model again")
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
        raise CatalogueError(f"{file}: is not a complete safetensors file; save the model again")
    return header


def _read_json(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.ValidationError as error:
        found = invalid_field(kind.__name__, error)
        raise CatalogueError(f"{path}, field {found.field}: {found.why}") from error
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise CatalogueError(f"{path}: cannot be read ({error}); save the model there again") from error
