"""Random values of the types that the official clients declare for their requests."""

import random
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import is_typeddict

_WORDS = ("auto", "2 + 3?", "low", "a", "search", "")
_DEEPEST = 7


def sampled(hint: Any, rng: random.Random, depth: int = 0) -> Any:
    """Return a random value of a type, as JSON has it.

    Args:
        hint: A type, such as a TypedDict of a client's parameters.
        rng: The generator.
        depth: How deep it is in the request; the deepest values are null.
    """
    origin, args = get_origin(hint), get_args(hint)
    if depth > _DEEPEST:
        return None
    if origin in (Annotated, Required, NotRequired):
        return sampled(args[0], rng, depth)
    if origin in (Union, UnionType):
        return sampled(rng.choice(args), rng, depth)
    if origin is Literal:
        return rng.choice(args)
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        names = [name for name in hints if name in hint.__required_keys__ or rng.random() < 0.3]
        return {name: sampled(hints[name], rng, depth + 1) for name in names}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {rng.choice(_WORDS): sampled(args[1], rng, depth + 1) for _ in range(rng.randrange(2))}
    if origin is not None:  # some kind of list
        return [sampled(args[0], rng, depth + 1) for _ in range(rng.randrange(3))]
    return _scalar(hint, rng)


def _scalar(hint: Any, rng: random.Random) -> Any:
    if hint is bool:
        return rng.random() < 0.5
    if hint is int:
        return rng.choice([0, 1, 7, 2000])
    if hint is float:
        return rng.choice([0.0, 0.5, 1.0, 3.5])
    if hint is str:
        return rng.choice(_WORDS)
    if hint is NoneType or hint is None:
        return None
    if isinstance(hint, TypeVar) or hint in (object, Any):
        return rng.choice(["x", 5, {"a": [1]}])
    return "aGk="  # a file, as base64


def one_field(params: Any, base: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a request with one or two random fields beside, or in place of, those of a plain one."""
    hints = get_type_hints(params, include_extras=True)
    names = rng.sample(sorted(set(hints) - {"model"}), rng.choice([1, 1, 2]))
    return {**base, **{name: sampled(hints[name], rng) for name in names}}


def without(value: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield the path of every value in a JSON value, the value, and the whole without it."""
    places = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, inner in places:
        if isinstance(value, dict):
            rest: Any = {name: each for name, each in value.items() if name != place}
        else:
            rest = [each for at, each in enumerate(value) if at != place]
        yield (place,), inner, rest
        for path, leaf, less in without(inner):
            if isinstance(value, dict):
                yield (place, *path), leaf, {**value, place: less}
            else:
                yield (place, *path), leaf, [less if at == place else each for at, each in enumerate(value)]
