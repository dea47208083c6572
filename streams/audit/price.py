"""The cost of a search, recomputed independently: in eFLOPs by App. D.3 (see docs/eflops.md), or in USD.

    eFLOPs = operations + I · bytes                                            Definition D.1

Every token costs 2P operations in the linear layers and 4·l·W in attention over a context of l tokens. The bytes are
those of the weights, P·prec_p, plus those of the cached keys and values, κ per position (Assumption D.5).
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

_WIDTH: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


class Numbers(NamedTuple):
    """An architecture, in Table 11's symbols: P, N_layer, N_q, N_kv, d_head, prec_p, prec_kv.

    P counts the parameters that one token uses; for a mixture of experts, these are the active parameters.
    """

    P: int
    layers: int
    q: int
    kv: int
    head: int
    prec_p: int = 2
    prec_kv: int = 2

    @property
    def W(self) -> int:
        """Return the total size of one token's attention queries across all layers."""
        return self.layers * self.q * self.head

    @property
    def kappa(self) -> int:
        """Return how many bytes the keys and values take per position."""
        return 2 * self.layers * self.kv * self.head * self.prec_kv

    @property
    def weights(self) -> int:
        """Return how many bytes all the weights take."""
        return self.P * self.prec_p


class PriceTerms(NamedTuple):
    """The terms of a Reward's `price`, in field order."""

    cost: float
    prefill_eflops: float
    decoding_eflops: float
    verifier_eflops: float
    compute_flops: float
    memory_bytes: float
    intensity: float
    factor: float = 1.0


def price(
    prompt: int,
    trace: Sequence[Mapping[str, Any]],
    generator: Numbers,
    verifier: Numbers,
    intensity: float,
    factor: float = 1.0,
) -> PriceTerms:
    """Return the cost of a search.

    Args:
        prompt: L_in, tokens of the prompt.
        trace: An Answer's drafts. Each draft's `parent`, `depth`, `tokens` and `score` are used.
        generator: Numbers of the model that generated the drafts.
        verifier: Numbers of the model that scored the drafts.
        intensity: I, FLOPs per byte.
        factor: The generator's price factor.
    """
    m, v = generator, verifier
    # Prop. D.13: one pass over the prompt, whose token i attends to i positions.
    prefill = (2 * m.P * prompt + 4 * m.W * _sum_to(prompt), m.weights + m.kappa * prompt)
    final: list[int] = []
    # By step j: tokens ΣΔ, positions N_j, contexts Σ_n b(n)·L̄(n); the tokens and contexts that the verifier read, and
    # whether it read any.
    steps: dict[int, list[int]] = {}
    for draft in trace:
        start = prompt if draft["parent"] < 0 else final[draft["parent"]]
        new = draft["tokens"]
        final.append(start + new)
        step = steps.setdefault(draft["depth"], [0, 0, 0, 0, 0, 0])
        step[0] += new
        step[1] = max(step[1], new)
        step[2] += _sum_to(start + new) - _sum_to(start)
        if draft.get("score") is not None:
            step[3] += start + new
            step[4] += _sum_to(start + new)
            step[5] = 1
    operations = moved = checked_operations = checked_bytes = 0
    for tokens, positions, contexts, read, read_contexts, verified in steps.values():
        # Prop. D.14: the weights are loaded once per position, and each branch reads its own context.
        operations += 2 * m.P * tokens + 4 * m.W * contexts
        moved += m.weights * positions + m.kappa * contexts
        # Prop. D.15: the whole path of every scored draft is read, and the weights are loaded once per step.
        checked_operations += 2 * v.P * read + 4 * v.W * read_contexts
        checked_bytes += v.weights * verified + v.kappa * read
    parts = (prefill, (operations, moved), (checked_operations, checked_bytes))
    first, second, third = (float(flops + intensity * volume) * factor for flops, volume in parts)
    compute, memory = (float(sum(part[at] for part in parts)) for at in (0, 1))
    whole = (compute + intensity * memory) * factor
    return PriceTerms(whole, first, second, third, compute, memory, intensity, factor)


class PriceList:
    """The numbers of every model and verifier.

    Attributes:
        models: The numbers of every version of each generator, by name.
        verifiers: The numbers of each verifier, by name.
        verifier: Name of the catalogue's default verifier, or `none`.
        own: Name of each model's own verifier; empty if the model has none.
        intensity: I of the hardware, FLOPs per byte.
    """

    def __init__(self, path: Path) -> None:
        # libyaml's loader, if available, is ten times as fast.
        content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if isinstance(written_out := content.get("catalogue"), dict):
            content = written_out  # a catalogue within a configuration file
        models, verifiers = list(content.get("models") or ()), list(content.get("verifiers") or ())
        defaults = content.get("defaults") or {}
        if content.get("family"):
            found = _family(path, content["family"])
            models, verifiers = _laid(models, found[0]), _laid(verifiers, found[1])
        self.models: dict[str, list[Numbers]] = {}
        self.own: dict[str, str] = {}
        for entry in models:
            model = _over(entry, defaults.get("models") or {})
            for effort in model.get("efforts") or ("",):
                self.add(model | {"name": f"{model['name']}.{effort}" if effort else model["name"]})
        below = defaults.get("verifiers") or {}
        laid = [_over(entry, below) for entry in verifiers]
        self.verifiers = {entry["name"]: numbers(entry) for entry in laid if entry.get("architecture")}
        self.verifier: str = content["verifier"]
        self.intensity = float((content.get("hardware") or {}).get("intensity", 0.0))

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add a model, or another version of a known one."""
        self.own[entry["name"]] = entry.get("verifier") or ""
        known = self.models.setdefault(entry["name"], [])
        if not entry.get("architecture"):
            return  # the model's costs are in USD
        if (found := numbers(entry)) not in known:
            known.append(found)

    def prices(self, answer: Mapping[str, Any]) -> list[PriceTerms]:
        """Return the possible costs of an Answer's search; empty if nothing ran or the model is unknown.

        There is one cost for each version of the model that has been in the catalogue. The price factor is the one that
        the search started with.
        """
        action, trace = answer.get("action"), answer.get("trace")
        if not action or not (trace or answer.get("billed")):
            return []
        if prices := (answer.get("limits") or {}).get("prices"):
            return [_billed(answer, prices)]
        prompt_tokens = answer.get("prompt_tokens", 0)
        if not trace:  # billed for a reply that could not be used: one sample
            counted = answer["billed"]
            if not any(counted.values()):
                return []
            prompt_tokens = max(counted.get("input", 0), 1)
            trace = [{"parent": -1, "depth": 1, "tokens": counted.get("output", 0)}]
        served = answer.get("verifier") or {}
        names = (served.get("model"), served.get("name"), self.own.get(action["model"]), self.verifier)
        verifier = next((self.verifiers[n] for n in names if n in self.verifiers), None)
        if verifier is None and any(draft.get("score") is not None for draft in trace):
            return []
        return [
            price(
                prompt_tokens,
                trace,
                each,
                verifier or each,  # a placeholder: without scores, no verification is counted
                self.intensity,
                factor_of(answer) or 1.0,
            )
            for each in self.models.get(action["model"], ())
        ]


def _billed(answer: Mapping[str, Any], prices: Mapping[str, float]) -> PriceTerms:
    """Return the cost in USD of a search's tokens, as counted by the upstream server or, failing that, in the trace."""
    counted = answer.get("billed") or {
        "input": answer["prompt_tokens"],
        "output": sum(draft["tokens"] for draft in answer["trace"]),
    }
    read, held = counted.get("input", 0), counted.get("cached_input", 0)
    fresh, written = read - min(held, read), counted.get("output", 0)
    of_cache = prices.get("cached_input", prices["input"])
    usd = (fresh * prices["input"] + min(held, read) * of_cache + written * prices["output"]) / 1_000_000
    return PriceTerms(usd, *[0.0] * 6)


def prices_of(record: Mapping[str, Any]) -> str:
    """Return the USD prices in a Decision, or in a search's limits, as JSON, so that they can be compared."""
    return json.dumps(record.get("prices") or "", sort_keys=True)


def factor_of(answer: Mapping[str, Any]) -> float | None:
    """Return the price factor that an Answer's search started with; None if it never started."""
    limits = answer.get("limits")
    return None if limits is None else float(limits.get("price_factor", 1.0))


def numbers(entry: Mapping[str, Any]) -> Numbers:
    """Return a catalogue entry's numbers. Missing byte sizes are derived from the dtype that the model is served in."""
    a = entry["architecture"]
    width = _WIDTH.get((entry.get("engine") or {}).get("dtype", "bfloat16"), 2)
    return Numbers(
        a.get("active_parameters", a["parameters"]),
        a["layers"],
        a["query_heads"],
        a["kv_heads"],
        a["head_dim"],
        a.get("weight_bytes", width),
        a.get("kv_bytes", width),
    )


def _family(path: Path, wanted: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    file = next((folder / wanted for folder in path.resolve().parents if (folder / wanted).is_file()), None)
    if file is None:
        raise FileNotFoundError(
            f"{path}, field family: no file {wanted!r} in its folder or above; correct the path"
        )
    family = json.loads(file.read_text(encoding="utf-8"))
    generators, verifiers = (
        [
            {"name": each["name"], "architecture": _checkpoint(file.parent / each["name"])}
            for each in family[role]
        ]
        for role in ("generators", "verifiers")
    )
    return generators, verifiers


def _checkpoint(folder: Path) -> dict[str, int]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    return {
        "parameters": sum(_stored(file) for file in sorted(folder.glob("*.safetensors"))),
        "layers": config["num_hidden_layers"],
        "query_heads": heads,
        "kv_heads": config.get("num_key_value_heads", heads),
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
    }


def _stored(file: Path) -> int:
    """Return how many numbers a safetensors file stores, according to its header."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _laid(typed: list[dict[str, Any]], family: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Complete the checkpoints' entries with the file's entries for the same models, and add those only in the file."""
    said = {each.get("name"): each for each in typed}
    names = {each["name"] for each in family}
    return [_over(each, said.get(each["name"], {})) for each in family] + [
        each for each in typed if each.get("name") not in names
    ]


def _over(entry: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **entry}
    for key, value in below.items():
        if isinstance(value, dict) and isinstance(entry.get(key), dict):
            merged[key] = {**value, **entry[key]}
    return merged


def _sum_to(n: int) -> int:
    return n * (n + 1) // 2
