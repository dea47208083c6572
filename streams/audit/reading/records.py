"""What is kept of each record: one NamedTuple per kind, stored in a table of the ledger with the same columns.

`early` says that the record lies before the first capture of the ends (see `run`). Fields of type bytes, such as
`whole`, are digests unless their class says otherwise: equal for equal content.
"""

from typing import Any, Final, NamedTuple


class Query(NamedTuple):
    """A question. `query_id` is None if the record could not be read."""

    query_id: str | None
    part: int
    off: int
    early: bool
    ts: int
    asked: bytes | None = None
    timeout_ms: int | None = None
    wait_ms: int | None = None


class Context(NamedTuple):
    """A question with its embedding; `q_part` and `q_off` are partition and offset of its Query."""

    query_id: str
    part: int
    off: int
    early: bool
    ts: int
    q_part: int
    q_off: int
    vector: bytes


class Decision(NamedTuple):
    """An action chosen for a query. `reference` is JSON."""

    query_id: str
    part: int
    off: int
    early: bool
    ts: int
    whole: bytes
    seq: int
    action: str
    objective: bytes
    price: float
    version: int
    reason: str
    mean: float | None
    width: float | None
    q_part: int
    q_off: int
    asked: bytes
    reference: bytes
    appended_ms: int
    learn: bool
    timeout_ms: int | None
    wait_ms: int | None
    factor: float


class Answer(NamedTuple):
    """How a query ended.

    `said` is a digest without the measured seconds, which differ whenever a search is run; `timed` says whether there
    are any. `prices` is JSON. `factor` is the price factor that its search began with; None for one that never began.
    """

    query_id: str
    part: int
    off: int
    early: bool
    ts: int
    whole: bytes
    said: bytes
    status: str
    room: str
    why: str
    action: str | None
    seq: int | None
    text: bool
    extracted: str | None
    score: float | None
    path_score: float | None
    timed: bool
    prices: bytes
    factor: float | None


class Reward(NamedTuple):
    """The terms of a query's reward. `price` is JSON."""

    query_id: str
    part: int
    off: int
    early: bool
    ts: int
    whole: bytes
    kind: str
    seq: int
    action: str
    status: str
    correct: float | None
    score: float | None
    log_cost: float | None
    price: bytes
    objective: bytes
    reward: float | None
    scalar: float | None
    graded_by: str
    learn: bool
    bounded: bool


class Feedback(NamedTuple):
    """A client's grade of an Answer."""

    query_id: str
    part: int
    off: int
    early: bool
    ts: int
    grade: float


class Row(NamedTuple):
    """The newest row of a query in the learner's log; w_… are the coefficients of its objective for the four terms."""

    query_id: str
    part: int
    off: int
    early: bool
    ts: int
    seq: int
    clock: int
    action: str
    objective: bytes
    q_part: int
    q_off: int
    c_off: int
    appended_ms: int
    decision: bytes
    vector: bytes
    stage: str
    learned: int
    corrected: int
    ended: int
    kinds: str
    r_off: int
    entered: float | None
    correct: float | None
    score: float
    log_cost: float
    imputed: float
    w_correct: float
    w_score: float
    w_log_cost: float
    w_one: float
    factor: float


class JoinRow(NamedTuple):
    """The aggregator's row of a query."""

    query_id: str
    part: int
    off: int
    early: bool
    ts: int
    closed: str | None
    provisional: bool


class Letter(NamedTuple):
    """A record that was given up, by its topic, partition and offset."""

    topic: str
    part: int
    off: int
    early: bool
    query_id: str | None
    error: str


class Vector(NamedTuple):
    """The embedding of a query, float32."""

    query_id: str
    vector: bytes


class Chunk(NamedTuple):
    """A raw record of a snapshot of the policy."""

    key: bytes
    value: bytes


PER_QUERY: Final[tuple[type[Any], ...]] = (Query, Context, Decision, Answer, Reward, Feedback, Row, JoinRow)
"""The kinds that concern a single query."""
