"""Values of any msgspec type, drawn from what the type says: its fields, bounds and alternatives.

What no type says stands in `NAMED` (a field's name) and `_agree` (fields of one struct that belong together). Strings
and numbers come from the edges of their ranges and from the few values that let records meet: ids, models, groups.
"""

import functools
import random
import struct
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

from schemas.control import CatalogueEntry
from schemas.forest import Draft, Forest
from schemas.grader import GRADERS
from schemas.query import Message, ToolCall
from schemas.reward import Reward, reward_id
from schemas.search import Scored, Verification

_TEXTS = ("", "a", "two words", "é\u2028\u0000", "x" * 300, r"so \boxed{5}", "{}", "0", "\U0001f600" * 9)
_WHOLE = (0, 1, 2, 3, 7, 64, 1000, 2**31, 2**53, 2**63 - 1, -1, -(2**40))
_REAL = (0.0, 1.0, 0.5, 1e-9, 3.0, 1e9, 1e300, -1.0, 5e-324)

Draw = Callable[[random.Random], Any]

MODEL: dict[str, Any] = {
    "architecture": {"parameters": 300_000, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16},
    "group": "mini",
    "checkpoint": "none",
    "sampling": {"temperature": 1.0, "step_tokens": 64, "depth_limit": 8},
}

NAMED: dict[str, Draw] = {
    "query_id": lambda rng: f"q{rng.randrange(12)}",
    "group": lambda rng: rng.choice(("mini", "mini", "mini", "gone")),
    "model": lambda rng: rng.choice(("small", "large", "large", "nobody")),
    "pin_action": lambda rng: rng.choice((None, None, "small/1/1/1", "large/4/2/2", "nobody/1/1/1")),
    "allowed_models": lambda rng: rng.choice((None, None, ("small",), ("nobody", "large"))),
    "embedding": lambda rng: struct.pack("<8f", *(rng.gauss(0, 1) for _ in range(8))),
    "encoder": lambda rng: rng.choice(("hashed-words@1/8", "hashed-words@1/8", "", "other")),
    **dict.fromkeys(("qp", "cp", "bs"), lambda rng: rng.choice((1, 2, 4, 64, 1024))),
    "seq": lambda rng: rng.choice((0, 1, 2, 5, 2**40)),
    "tenant": lambda rng: rng.choice((None, "acme", "globex")),
    "n": lambda rng: rng.choice((1, 1, 1, 2, 64)),
    "timeout_s": lambda rng: rng.choice((None, None, 0.001, 30.0, 21_600.0)),
    "feedback_wait_s": lambda rng: rng.choice((None, None, 0.0, 5.0)),
    "sha256": lambda rng: f"{rng.getrandbits(256):064x}",
    "Grader.name": lambda rng: rng.choice(GRADERS),
    "CatalogueEntry.name": lambda rng: rng.choice(("mid", "other")),
    "every_s": lambda rng: rng.choice((1.0, 3.0, 60.0)),
}


def value(kind: Any, rng: random.Random) -> Any:
    """Return a value of a type; one that its class refuses is drawn again, and an object that refuses all is a fault.

    Args:
        kind: A struct, or any type that msgspec reads.
        rng: What is drawn from.
    """
    return _of(_info(kind), rng)


_info = functools.cache(inspect.type_info)


def _of(kind: inspect.Type, rng: random.Random) -> Any:
    match kind:
        case inspect.Metadata():
            return _of(kind.type, rng)
        case inspect.StructType():
            return _struct(kind, rng)
        case inspect.UnionType():
            return _of(rng.choice(kind.types), rng)
        case inspect.LiteralType():
            return rng.choice(kind.values)
        case inspect.IntType() | inspect.FloatType():
            return _number(kind, rng)
        case inspect.StrType():
            texts = [t for t in _TEXTS if (kind.min_length or 0) <= len(t) <= (kind.max_length or 1 << 30)]
            return rng.choice(texts)
        case inspect.BytesType():
            return rng.randbytes(rng.choice((0, 4, 32)))
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.NoneType():
            return None
        case inspect.ListType() | inspect.VarTupleType():
            least, most = kind.min_length or 0, kind.max_length or 4
            made = [_of(kind.item_type, rng) for _ in range(rng.randint(least, max(least, min(4, most))))]
            return made if isinstance(kind, inspect.ListType) else tuple(made)
        case inspect.TupleType():
            return tuple(_of(item, rng) for item in kind.item_types)
        case inspect.DictType():
            return {_of(kind.key_type, rng): _of(kind.value_type, rng) for _ in range(rng.randrange(3))}
        case inspect.AnyType():
            return rng.choice((None, 1, "a", [1, [2]], {"a": {"b": 0.5}}, True))
        case _:
            raise NotImplementedError(f"{kind}: say how to draw it")


def _number(kind: inspect.IntType | inspect.FloatType, rng: random.Random) -> float:
    some: list[float] = [*(_WHOLE if isinstance(kind, inspect.IntType) else _REAL)]
    some += [x for x in (kind.ge, kind.le) if x is not None]
    least = -1e308 if kind.ge is None else kind.ge
    most = 1e308 if kind.le is None else kind.le
    fit = [x for x in some if least <= x <= most]
    fit = [x for x in fit if (kind.gt is None or x > kind.gt) and (kind.lt is None or x < kind.lt)]
    return rng.choice(fit)


def _struct(kind: inspect.StructType, rng: random.Random) -> Any:
    for _ in range(200):
        fields = {}
        for each in kind.fields:
            if not each.required and rng.random() < 0.5:
                continue
            draw = NAMED.get(f"{kind.cls.__name__}.{each.name}", NAMED.get(each.name))
            fields[each.name] = draw(rng) if draw else _of(each.type, rng)
        _agree(kind.cls, fields, rng)
        try:
            return kind.cls(**fields)
        except (ValueError, TypeError, ArithmeticError) as error:
            refused = error
    raise AssertionError(f"no {kind.cls.__name__} can be drawn; the last: {refused}")


def _speak(fields: dict[str, Any], rng: random.Random) -> None:
    """Make a message's parts belong to its role."""
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    says: dict[str, Any] = {"content": rng.choice(_TEXTS), "tool_calls": (), "tool_call_id": None}
    audio = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
    says["parts"] = rng.choice(((), (), (image,), (audio,)))
    call = ToolCall(id="call", name="add", arguments=rng.choice(_TEXTS))
    calls = {"role": "assistant", "content": None, "tool_calls": (call,)}
    fields |= rng.choice((says, says, says, says | calls, says | {"role": "tool", "tool_call_id": "call"}))
    if fields["role"] == "tool" and fields["tool_call_id"] is None:
        fields["role"] = "user"


def _agree(kind: type, fields: dict[str, Any], rng: random.Random) -> None:
    """Make fields agree that must, where drawing again would take too long."""
    if kind is Reward:
        fields["reward_id"] = reward_id(fields["query_id"], fields["kind"])
        known = fields["kind"] in ("final", "correction")
        fields["correct"] = rng.choice((0.0, 1.0, 0.5)) if known else None
        fields.pop("bounded", None)
        if fields["price"] is not None:
            unit = fields["objective"].cost_range.unit
            fields["price"] = msgspec.structs.replace(fields["price"], unit=unit)
        fields["unscored"] = fields["score"] is None and rng.random() < 0.5
    if kind is Message:
        _speak(fields, rng)
    if kind is CatalogueEntry:
        fields["model"] = {**MODEL, "name": fields["name"]} if fields["op"] == "add" else None
    if kind is Forest:
        _grow(fields, rng)
    if kind is Verification:
        drafts = len(fields["search"].forest.pending)
        fields["scores"] = tuple(value(Scored, rng) for _ in range(drafts))
    if fields.get("trace"):
        fields["trace"] = tuple(
            msgspec.structs.replace(draft, parent=rng.randrange(-1, at))
            for at, draft in enumerate(fields["trace"])
        )
    if "path" in fields:
        fields["path"] = tuple(range(rng.randint(0, len(fields.get("trace", ())))))
    if {"text", "messages"} <= fields.keys():
        del fields[rng.choice(("text", "messages"))]
    aims = [
        name for name in ("objective", "weights", "mean_cost", "accuracy") if fields.get(name) is not None
    ]
    if "query_id" in fields and len(aims) > 1:
        for name in aims[1:]:
            del fields[name]


def _grow(fields: dict[str, Any], rng: random.Random) -> None:
    """Make a search of one to three steps, the last of which waits for its scores."""
    drafts: list[Draft] = []
    above = [-1]
    steps = rng.randint(1, 3)
    for depth in range(1, steps + 1):
        first = len(drafts)
        for _ in range(rng.randint(1, 4)):
            drawn = value(Draft, rng)
            scored = (
                {"score": rng.random(), "fate": drawn.fate}
                if depth < steps
                else {"score": None, "fate": "open"}
            )
            drafts.append(msgspec.structs.replace(drawn, parent=rng.choice(above), depth=depth, **scored))
        above = list(range(first, len(drafts)))
    fields |= {
        "drafts": tuple(drafts),
        "step": steps,
        "scored": steps - 1,
        "prompt_tokens": rng.choice((1, 40, 2**31)),
    }
    fields["best"] = rng.randrange(-1, above[0])


def broken(whole: bytes, rng: random.Random) -> bytes | None:
    """Return bytes that are no longer what they were: cut, changed, or gone."""
    at = rng.randrange(len(whole) or 1)
    return rng.choice(
        (None, whole[:at], whole[:at] + b"\xff" + whole[at + 1 :], whole[:at] + b'"' + whole[at:], b"{}")
    )
