"""Dead letters over HTTP: listed, and sent again once."""

import time
from collections.abc import Callable
from typing import Any

from schemas.dead_letter import DeadLetter
from schemas.query import Origin
from schemas.record import encode


def test_a_dead_letter_is_sent_again_once_and_only_while_its_topic_holds_it(
    house: Callable[..., Any],
) -> None:
    alive = house()
    topics = alive.cluster.topics
    alive.produce(topics.query, b"bad", b"no query at all")
    gone = DeadLetter.of(
        b"x", ValueError("no"), service="embedder", origin=Origin(topic=topics.query, partition=1, offset=99)
    )
    alive.produce(topics.dead_letter, gone.key.encode(), encode(gone))
    with alive.http() as client:

        def letters() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.get("/v1/dead-letters").json()["data"]
            return [each for each in found if each["origin"] != gone.key]

        def retry(origin: str) -> Any:
            return client.post("/v1/dead-letters/retry", json={"origin": origin})

        def wait_for(count: int) -> None:
            until = time.monotonic() + 120
            while len(letters()) < count:
                assert time.monotonic() < until
                time.sleep(0.02)

        wait_for(1)
        (letter,) = letters()
        assert (letter["service"], letter["retried"]) == ("embedder", False)
        assert retry(letter["origin"]).json()["duplicate"] is False
        assert retry(letter["origin"]).json()["duplicate"] is True
        assert [record.value for record in alive.records(topics.query)] == [b"no query at all"] * 2
        wait_for(2)  # its cause stands: it comes back as another one
        assert {each["origin"]: each["retried"] for each in letters()}[letter["origin"]] is True
        for _ in range(2):
            answer = retry(gone.key)
            assert (answer.status_code, answer.json()["error"]["code"]) == (410, "gone")
