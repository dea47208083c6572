"""Token prices of a self-hosted server: its price per hour, divided among the tokens that it processes under load."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from agents.catalogue.models import Sampling
from agents.serving.engine import Engine, Prefix
from agents.serving.http import all_of
from schemas.errors import UniscaleError
from schemas.prices import MILLION, Prices
from schemas.query import Message

ANSWER_TOKENS: Final = 256
"""Maximum tokens of an answer while generation is measured."""

_WORDS: Final = 200
"""Number of random numbers in a long prompt."""

_HOUR_S: Final = 3600.0


class CalibrationFailed(UniscaleError):
    """No prices can be derived from the tokens that a server processed. The message says what to change."""


class Processed(Struct, frozen=True, kw_only=True):
    """What a server processed under a constant load.

    Attributes:
        prompt_tokens: Number of prompt tokens.
        tokens: Number of generated tokens.
        seconds: Duration of the load.
    """

    prompt_tokens: int
    tokens: int
    seconds: float


async def load(
    engine: Engine,
    sampling: Sampling,
    questions: Callable[[random.Random], str],
    *,
    answer_tokens: int,
    at_once: int,
    seconds: float,
    clock: Callable[[], float],
    ended: Callable[[float], None] = lambda seconds: None,
) -> Processed:
    """Keep a constant number of requests in flight, and return the tokens processed by the time the last one ended.

    Args:
        engine: The server's engine.
        sampling: Sampling parameters, as in searches; the delimiter ends an answer.
        questions: Returns a new prompt.
        answer_tokens: Maximum tokens of an answer.
        at_once: Number of requests in flight.
        seconds: How long to send new requests.
        clock: Seconds, monotonic.
        ended: Called after each request with the seconds since the first one began.

    Raises:
        ServingError: A request failed.
    """
    began_s, counts = clock(), [0, 0]

    async def client(number: int) -> None:
        rng = random.Random(f"{began_s} {number}")  # prompts of earlier runs may be cached
        while clock() - began_s < seconds:
            message = Message(role="user", content=questions(rng))
            prefix = Prefix(messages=(message,), max_tokens=answer_tokens)
            [draft] = await engine.generate("calibration", [prefix], 1, [rng.getrandbits(31)], sampling)
            counts[0] += draft.prompt_tokens
            counts[1] += draft.tokens
            ended(clock() - began_s)

    await all_of([client(number) for number in range(at_once)])
    return Processed(prompt_tokens=counts[0], tokens=counts[1], seconds=clock() - began_s)


def long_prompt(rng: random.Random) -> str:
    """Return a long prompt of random numbers, so that no prefix of it can be cached."""
    return " ".join(str(rng.randrange(1000)) for _ in range(_WORDS))


def question(rng: random.Random) -> str:
    """Return a short question that needs a long answer."""
    a, b, c = (rng.randrange(10**4, 10**7) for _ in range(3))
    return f"{a}: explain step by step how much {a} plus {b} minus {c} is."


def prices(usd_per_hour: float, reading: Processed, writing: Processed) -> Prices:
    """Return token prices at which the tokens that a server processes in an hour cost its price per hour.

    Each load gives one linear equation: its tokens, at these prices, cost as much as the server does for its duration.
    Two different loads determine both prices.

    Args:
        usd_per_hour: The server's price per hour, in USD.
        reading: A load of long prompts with answers of one token.
        writing: A load of short prompts with long answers.

    Raises:
        CalibrationFailed: The loads are too similar, or too short, to determine both prices.

    >>> reading = Processed(prompt_tokens=1000, tokens=0, seconds=1)
    >>> prices(3.6, reading, Processed(prompt_tokens=0, tokens=100, seconds=1))
    Prices(input=1.0, output=10.0, cached_input=None)
    """
    usd = [each.seconds * usd_per_hour / _HOUR_S for each in (reading, writing)]
    determinant = reading.prompt_tokens * writing.tokens - writing.prompt_tokens * reading.tokens
    if determinant <= 0:
        raise CalibrationFailed("the server generated too little; give more --seconds, or check its answers")
    read = (usd[0] * writing.tokens - usd[1] * reading.tokens) / determinant
    written = (usd[1] * reading.prompt_tokens - usd[0] * writing.prompt_tokens) / determinant
    if min(read, written) <= 0:
        raise CalibrationFailed(
            f"a million tokens would cost ${read * MILLION:.3g} to read and ${written * MILLION:.3g} to generate: the "
            "server was busy with something else meanwhile; measure again, or give more --seconds"
        )
    return Prices(input=_rounded(read), output=_rounded(written))


def _rounded(usd: float) -> float:
    return float(f"{usd * MILLION:.4g}")


async def calibrated(
    engine: Engine,
    sampling: Sampling,
    usd_per_hour: float,
    *,
    at_once: int,
    seconds: float,
    clock: Callable[[], float],
    ended: Callable[[float], None] = lambda seconds: None,
) -> tuple[Prices, Sequence[Processed]]:
    """Return the token prices of a server under a load, and what it processed in each half of the load.

    Args:
        engine: The server's engine.
        sampling: Sampling parameters, as in searches.
        usd_per_hour: The server's price per hour, in USD.
        at_once: Number of requests in flight.
        seconds: Total duration of the load.
        clock: Seconds, monotonic.
        ended: Called after each request with the seconds since the first one began.

    Raises:
        ServingError: A request failed.
        CalibrationFailed: No prices can be derived from the load.
    """
    half = partial(load, engine, sampling, at_once=at_once, seconds=seconds / 2, clock=clock)
    reading = await half(long_prompt, answer_tokens=1, ended=ended)
    writing = await half(question, answer_tokens=ANSWER_TOKENS, ended=lambda now: ended(seconds / 2 + now))
    return prices(usd_per_hour, reading, writing), (reading, writing)
