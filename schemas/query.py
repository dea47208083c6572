"""A query as clients send it, and with its embedding as the decider reads it."""

import math
import sys
from array import array
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
import orjson
from msgspec import Struct, field

from schemas.action import Action
from schemas.chat import ChatOptions, Requirement, check_passed
from schemas.errors import InvalidField
from schemas.grader import Grader, NamedGrader, grader_of
from schemas.objective import Weights, check_targets
from schemas.record import MAX_NAME, Millis, Record, check_finite, check_id, check_json, check_name
from schemas.spent import Spent

# A query as clients send it.

MAX_TEXT = 1024 * 1024
"""Maximum size of a question as JSON, with all its messages, in bytes. Every record of its search carries it."""

MAX_METADATA = 16 * 1024
"""Maximum size of `metadata` as JSON, in bytes. The Context and the Decision carry it with the rest of the Query."""

MAX_REFERENCE = 256 * 1024
"""Maximum size of `reference` as JSON, in bytes. The join keeps it until the Answer is graded."""

MAX_TESTS = 256
"""Maximum number of tests in a reference. Each is run against the answer."""

MAX_EXACT = 2.0**53
"""Below this limit, integers are exact as floats. JSON readers turn integers above 64 bits into floats."""

MAX_MESSAGES = 1000
"""Maximum number of messages in a conversation."""

MAX_MODELS = 1000
"""Maximum number of names in `allowed_models`."""

MAX_TIMEOUT_S = 6 * 3600.0
"""Maximum timeout of a query, in seconds. An unanswered query holds its admission slot until it expires."""

MAX_WAIT_S = 30 * 24 * 3600.0
"""Maximum wait for feedback, in seconds: the retention of the joined topics."""

MAX_BUDGET_TOKENS = 10**9
MAX_BUDGET_EFLOPS = 1e24
MAX_BUDGET_USD = 1e6
"""Far above the cost of any possible search, so a larger number is a client's mistake."""


MAX_STOPS = 4
"""Maximum number of stop texts per query, as in OpenAI's API."""

MAX_STOP = 200
"""Maximum number of characters in a stop text. Every record of the search carries all its stop texts."""

MAX_CLIENT_SEED = 2**63 - 1
"""Maximum client-supplied seed: seeds are signed 64-bit integers, as in OpenAI's API."""

GATEWAY = "gateway"
"""Key in a Query's metadata under which a gateway keeps its own data: digests of the API key and of the body."""

MAX_ANSWERS = 64
"""Maximum number of answers to one query: the number of paths in Table 1's widest search."""

MAX_ACCEPTED = 256
"""Maximum number of accepted answers if the reference is a list."""

Reference: TypeAlias = str | int | float | dict[str, Any] | list[Any]
"""The correct answer to grade against. If it is a list, any of its elements is accepted."""


_REQUIREMENTS: Final[tuple[Requirement, ...]] = get_args(Requirement)

NO_TEXT = "(no text)"
"""Text that is embedded as the question if a conversation consists of images or audio alone."""


class ToolCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call requested by a model.

    Attributes:
        id: Id of the call; the message with the result refers to it.
        name: Name of the tool.
        arguments: The arguments as the model wrote them: normally JSON, but any text for a custom tool.
        type: Kind of the tool.
    """

    id: str
    name: str
    arguments: str
    type: Literal["function", "custom"] = "function"

    @classmethod
    def of(cls, found: object) -> "ToolCall | None":
        """Return a call as chat completions write it; None if that is no call."""
        match found:
            case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
                return cls(id=call_id, name=name, arguments=arguments)
            case {"id": str(call_id), "custom": {"name": str(name), "input": str(said)}}:
                return cls(id=call_id, name=name, arguments=said, type="custom")
        return None


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation, in the form that chat templates expect.

    Attributes:
        role: `system`, `user`, `assistant`, `tool`, or any other role in the model's template.
        content: The text; may be null only if there are `tool_calls`.
        tool_calls: The tool calls that an assistant requested.
        tool_call_id: For role `tool`, the id of the call whose result this is.
        parts: The content as the client sent it, if it contains more than text: images or audio. `content` is then the
            text in it. Chat endpoints get the parts, other models the text.
    """

    role: str
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    parts: tuple[dict[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """Return the content, or an empty string if it is null."""
        return self.content or ""

    @property
    def of_tools(self) -> bool:
        """Return whether only a model that supports tools can read this message."""
        return bool(self.tool_calls) or self.role == "tool"

    @property
    def images(self) -> int:
        """Return the number of images, which only a model with vision can read."""
        return sum(1 for part in self.parts if part.get("type") == "image_url")

    @property
    def audio(self) -> tuple[int, ...]:
        """Return the length of each recording in base64, in characters; only a model that hears can read them."""
        return tuple(_audio_length(part) for part in self.parts if part.get("type") == "input_audio")


def _audio_length(part: dict[str, Any]) -> int:
    match part:
        case {"input_audio": {"data": str(data)}}:
            return len(data)
    return 0


class Budget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits on a search's spending. When one is reached, the best completed path is the answer.

    Attributes:
        tokens: Maximum number of tokens generated across all drafts.
        eflops: Maximum number of equivalent FLOPs (App. D.3).
        usd: Maximum cost in US dollars. It is never exceeded: until the number of prompt tokens is known, the prompt
            counts as one token per byte.
    """

    tokens: int | None = None
    eflops: float | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        """Reject a budget that allows nothing, or that exceeds the cost of any search."""
        check_finite("Budget", eflops=self.eflops, usd=self.usd)
        bounds = (("tokens", MAX_BUDGET_TOKENS), ("eflops", MAX_BUDGET_EFLOPS), ("usd", MAX_BUDGET_USD))
        for name, most in bounds:
            if (limit := getattr(self, name)) is not None and not 0 < limit <= most:
                why = f"is {limit}; give a positive number up to {most:g}, or leave it out"
                raise InvalidField("Budget", name, why)


class Origin(Struct, frozen=True, kw_only=True):
    """Position of a record: topic, partition and offset."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """Return topic/partition/offset."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class Query(Record, frozen=True, kw_only=True, tag="query.v1"):
    """A client's request. Key: query_id.

    Attributes:
        query_id: 1 to 200 printable ASCII characters without spaces; unique forever.
        text: The question.
        messages: The conversation, rendered by the model's chat template. Exactly one of text and messages is present.
        objective: Name of an objective in `control`.
        weights: Weights for this query alone.
        mean_cost: Target for the mean cost per query, in the deployment's unit; accuracy is maximised within it.
        accuracy: Share of the accuracy within reach to maintain at the lowest cost. At most one of objective, weights,
            mean_cost and accuracy is present; none means the deployment's default.
        reference: The correct answer, if known; the aggregator grades against it. No model ever sees it. It is a
            string, a number, a list of at most 256 accepted answers, or, for a program, {"tests": [[input, output], …]}
            with at most 256 tests.
        grader: Grader for comparing an answer with the reference, by name or with options. None means the grader from
            the model's catalogue entry, or else the catalogue's default, or else `boxed-only`.
        pin_action: The action `model/qp/cp/bs` to use, bypassing the policy.
        allowed_models: Models that may be used; None allows all.
        budget: Limits on the search's spending.
        max_tokens: Maximum number of tokens in each answer, that is, in a path after the prompt. A path that reaches
            the limit before it ends is cut off, and returned only if no path was completed.
        stop: Texts that end a path wherever one of them first occurs. The answer contains neither that text nor
            anything after it.
        seed: Seed for the drafts. The same seed and configuration give the same answer, whatever the query id. If None,
            the seed is derived from the id.
        timeout_s: Seconds from the broker's append time until the query expires, at most six hours; None means the
            default.
        feedback_wait_s: Seconds after the Answer to wait for feedback; None means the default.
        n: Number of completed paths wanted as answers. Configurations with QP·CP below this number are not chosen.
        stream: Whether a client reads the answer as it is generated (`schemas.chunk`).
        session: The conversation the query belongs to: any name of 1 to 200 characters that the account chooses. Each
            turn keeps the previous one's configuration (`UNISCALE_SESSION_S`). None if there is no session.
        options: The chat completion's options apart from its text, and the client's sampling parameters; None if there
            are none.
        learn: Whether the learner may learn from this query. False for measurements alongside the traffic, such as a
            baseline pinned to one action, and for queries sent with an API key without the `teach` scope.
        tenant: The tenant the query belongs to, for accounting.
        metadata: Anything the client wants returned; at most 16 KiB of JSON.
    """

    query_id: str
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    objective: str | None = None
    weights: Weights | None = None
    mean_cost: float | None = None
    accuracy: float | None = None
    reference: Reference | None = None
    grader: NamedGrader | None = None
    pin_action: str | None = None
    allowed_models: tuple[str, ...] | None = None
    budget: Budget | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    timeout_s: float | None = None
    feedback_wait_s: float | None = None
    n: int = 1
    stream: bool = False
    session: str | None = None
    options: ChatOptions | None = None
    learn: bool = True
    tenant: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject a query that cannot be answered, naming the field."""
        check_id("Query", self.query_id)
        self._check_question()
        self._check_objective()
        if not 1 <= self.n <= MAX_ANSWERS:
            why = f"is {self.n}; give a whole number from 1 to {MAX_ANSWERS}"
            raise InvalidField("Query", "n", why)
        self._check_bounds()
        for name in ("objective", "tenant", "session"):
            if (value := getattr(self, name)) is not None:
                check_name("Query", name, value)
        if self.reference is not None:
            self._check_reference(self.reference)
        if self.grader is not None:
            self._check_grader(self.graded_with)
        self._check_models()
        self._check_waits()
        if self.metadata:
            check_json("Query", "metadata", self.metadata, MAX_METADATA)

    def _check_question(self) -> None:
        if self.text is None and self.messages is None:
            raise InvalidField("Query", "text", "is missing, and so is messages; give one of the two")
        if self.text is not None and self.messages is not None:
            raise InvalidField("Query", "text", "cannot be combined with messages; give one of the two")
        if self.text is not None:
            _check_text("text", self.text, self.text)
        if self.messages is not None:
            if not 1 <= len(self.messages) <= MAX_MESSAGES:
                why = f"holds {len(self.messages)}; give at least one message and at most {MAX_MESSAGES}"
                raise InvalidField("Query", "messages", why)
            for index, message in enumerate(self.messages):
                _check_message(f"messages[{index}]", message)
            said = "\n".join(m.text for m in self.messages)
            if any(m.images or m.audio for m in self.messages):
                said = said.strip() or NO_TEXT
            _check_text("messages", said, msgspec.to_builtins(self.messages))

    def _check_reference(self, reference: Reference) -> None:
        check_json("Query", "reference", reference, MAX_REFERENCE)
        if isinstance(reference, float) and abs(reference) >= MAX_EXACT:
            why = f"is {reference:g}: numbers of that size lose digits; give it as text"
            raise InvalidField("Query", "reference", why)
        tests = reference.get("tests") if isinstance(reference, dict) else None
        if isinstance(tests, list | tuple) and len(tests) > MAX_TESTS:
            why = f"holds {len(tests)} tests; give at most {MAX_TESTS}"
            raise InvalidField("Query", "reference.tests", why)
        if isinstance(reference, list) and not 1 <= len(reference) <= MAX_ACCEPTED:
            why = f"holds {len(reference)} accepted answers; give at least one and at most {MAX_ACCEPTED}"
            raise InvalidField("Query", "reference", why)

    def _check_grader(self, grader: Grader | None) -> None:
        if grader is None or self.reference is not None:
            return
        if grader.needs_reference:
            why = f"is missing, and grader {grader.name} compares with it; give the right answer, or leave grader out"
            raise InvalidField("Query", "reference", why)
        if grader.fields:
            why = "is missing, and grader.fields are compared with its own; give it, or leave fields out"
            raise InvalidField("Query", "reference", why)

    def _check_bounds(self) -> None:
        if self.max_tokens is not None and not 1 <= self.max_tokens <= MAX_BUDGET_TOKENS:
            why = (
                f"is {self.max_tokens}; give a whole number from 1 to {MAX_BUDGET_TOKENS:g}, or leave it out"
            )
            raise InvalidField("Query", "max_tokens", why)
        if self.seed is not None and not -MAX_CLIENT_SEED - 1 <= self.seed <= MAX_CLIENT_SEED:
            raise InvalidField("Query", "seed", f"is {self.seed}; give a signed integer of 64 bits")
        if len(self.stop) > MAX_STOPS:
            raise InvalidField("Query", "stop", f"holds {len(self.stop)} texts; give at most {MAX_STOPS}")
        for index, text in enumerate(self.stop):
            if not 1 <= len(text) <= MAX_STOP:
                why = f"has {len(text)} characters; give 1 to {MAX_STOP}"
                raise InvalidField("Query", f"stop[{index}]", why)
            check_json("Query", f"stop[{index}]", text, 8 * MAX_STOP)

    def _check_models(self) -> None:
        if self.pin_action is not None:
            try:
                Action.parse(self.pin_action)
            except InvalidField as error:
                raise InvalidField("Query", "pin_action", error.why) from None
        if self.allowed_models is not None:
            if not 1 <= len(self.allowed_models) <= MAX_MODELS:
                why = f"names {len(self.allowed_models)}; name at least one and at most {MAX_MODELS}, or leave it out"
                raise InvalidField("Query", "allowed_models", why)
            for index, name in enumerate(self.allowed_models):
                if not 1 <= len(name) <= MAX_NAME:
                    why = f"[{index}] has {len(name)} characters; name at least one model, by 1 to {MAX_NAME}"
                    raise InvalidField("Query", "allowed_models", why)

    def _check_waits(self) -> None:
        check_finite("Query", timeout_s=self.timeout_s, feedback_wait_s=self.feedback_wait_s)
        if self.timeout_s is not None and not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            what = "in the past" if self.timeout_s <= 0 else "out of reach"
            why = f"is {self.timeout_s}, a deadline {what}; give seconds above 0, at most {MAX_TIMEOUT_S:.0f}"
            raise InvalidField("Query", "timeout_s", why)
        if self.feedback_wait_s is not None and not 0 <= self.feedback_wait_s <= MAX_WAIT_S:
            raise InvalidField(
                "Query", "feedback_wait_s", f"is {self.feedback_wait_s}; give 0 to {MAX_WAIT_S:.0f} seconds"
            )

    def _check_objective(self) -> None:
        names = ("objective", "weights", "mean_cost", "accuracy")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            why = f"cannot be combined with {given[0]}; give one of {', '.join(names)}"
            raise InvalidField("Query", given[1], why)
        check_targets("Query", mean_cost=self.mean_cost, accuracy=self.accuracy)

    @property
    def kept(self) -> Mapping[str, Any]:
        """Return the data that a gateway keeps in the metadata; empty for other producers."""
        kept = self.metadata.get(GATEWAY)
        return kept if isinstance(kept, dict) else {}

    @property
    def api_key(self) -> str:
        """Return the digest of the API key used to send the query through a gateway; "" if there is none."""
        key = self.kept.get("key")
        return key if isinstance(key, str) else ""

    @property
    def account(self) -> str:
        """Return the account charged for the query: its tenant, or else its API key; "" if it has neither."""
        return account_of(self.tenant, self.kept.get("key"))

    @property
    def question(self) -> str:
        """Return the text that is embedded and verified: `text`, or the contents of all messages in order."""
        if self.text is not None:
            return self.text
        said = "\n\n".join(message.text for message in self.messages or ())
        return said if said.strip() else NO_TEXT

    @property
    def required(self) -> tuple[Requirement, ...]:
        """Return the query's requirements on a configuration.

        Greedy sampling requires nothing if `n` or `pin_action` determines the number of samples.
        """
        turns = self.messages or ()
        needs = set(() if self.options is None else self.options.required)
        needs |= {"tools"} if any(turn.of_tools for turn in turns) else set()
        needs |= {"images"} if any(turn.images for turn in turns) else set()
        needs |= {"audio"} if any(turn.audio for turn in turns) else set()
        if self.n > 1 or self.pin_action is not None:
            needs.discard("greedy")
        return tuple(each for each in _REQUIREMENTS if each in needs)

    @property
    def chat(self) -> tuple[Message, ...]:
        """Return the conversation for a chat template: `messages`, or `text` as one user message."""
        return self.messages or (Message(role="user", content=self.text or ""),)

    @property
    def graded_with(self) -> Grader | None:
        """Return the grader named in the query itself.

        Raises:
            InvalidField: There is no grader with that name.
        """
        try:
            return grader_of(self.grader)
        except InvalidField as error:
            raise InvalidField("Query", "grader", error.why) from None

    @property
    def pinned(self) -> Action | None:
        """Return the action in `pin_action`."""
        return None if self.pin_action is None else Action.parse(self.pin_action)


def account_of(tenant: str | None, key: object) -> str:
    """Return a client's account: its tenant, or else its API key's digest; "" if it has neither.

    >>> account_of("shop", "0f"), account_of(None, "0f"), account_of(None, "")
    ('shop', 'key:0f', '')
    """
    return tenant or (f"key:{key}" if key else "")


def _check_message(place: str, message: Message) -> None:
    """Reject a message without content, or with fields that do not belong to its role."""
    if not (message.role.strip() and len(message.role) <= MAX_NAME):
        raise InvalidField(
            "Query", f"{place}.role", "is empty or too long; write user, assistant, system or tool"
        )
    if message.content is None and not message.tool_calls:
        raise InvalidField("Query", f"{place}.content", "is null; give a text, or the assistant's tool_calls")
    if message.tool_calls and message.role != "assistant":
        why = f"is in a message of role {message.role!r}; only an assistant calls tools"
        raise InvalidField("Query", f"{place}.tool_calls", why)
    if (message.role == "tool") != (message.tool_call_id is not None):
        why = "names the call whose result a message of role tool is; give it with that role, and only there"
        raise InvalidField("Query", f"{place}.tool_call_id", why)
    if message.parts:
        check_passed("Query", f"{place}.parts", message.parts, MAX_TEXT)
    names = {f"tool_calls[{at}].id": call.id for at, call in enumerate(message.tool_calls)}
    names |= {f"tool_calls[{at}].name": call.name for at, call in enumerate(message.tool_calls)}
    if message.tool_call_id is not None:
        names["tool_call_id"] = message.tool_call_id
    for part, name in names.items():
        if not 1 <= len(name) <= MAX_NAME:
            why = f"has {len(name)} characters; give 1 to {MAX_NAME}"
            raise InvalidField("Query", f"{place}.{part}", why)


def _check_text(name: str, text: str, sent: object) -> None:
    """Reject a question that is blank, not valid Unicode, or too large."""
    if not text.strip():
        raise InvalidField("Query", name, "is empty; ask something")
    try:
        size = len(orjson.dumps(sent))
    except TypeError:
        raise InvalidField("Query", name, "is not valid Unicode (a lone surrogate); send UTF-8") from None
    if size > MAX_TEXT + 2:  # the quotation marks around a string
        raise InvalidField("Query", name, f"takes {size} bytes of {MAX_TEXT} as JSON; shorten the question")


# A query with its embedding.


class QueryContext(Record, frozen=True, kw_only=True, tag="context.v1"):
    """A query with its embedding. Key: policy shard.

    Attributes:
        query: The whole Query.
        embedding: The unit vector s_q in little-endian float32; base64 on the wire.
        encoder: Name of the encoder. Vectors from different encoders must not be mixed.
        origin: Position of the Query. The same query_id from a different origin is a duplicate.
        appended_ms: Append time of the Query on the broker, ms since the epoch. Deadlines count from this time.
        spent: Where the query's time has gone so far.
    """

    query: Query
    embedding: bytes
    origin: Origin
    encoder: str = ""
    appended_ms: Millis = 0
    spent: Spent = field(default_factory=Spent)

    def __post_init__(self) -> None:
        """Reject an embedding that must not enter the learner's matrix A."""
        if not self.embedding or len(self.embedding) % 4:
            raise InvalidField(
                "QueryContext", "embedding", f"has {len(self.embedding)} bytes; send 4 a dimension (float32)"
            )
        # A double-precision sum of float32 values is finite exactly when every value is.
        if not math.isfinite(sum(self.vector())):
            raise InvalidField("QueryContext", "embedding", "holds NaN or infinity; correct the encoder")

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.query.query_id

    def vector(self) -> "array[float]":
        """Return the embedding as a float32 array of shape (d,)."""
        return unpack(self.embedding)


def pack(vector: "array[float]") -> bytes:
    """Return a float32 array as little-endian bytes."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return vector.tobytes()


def unpack(embedding: bytes) -> "array[float]":
    """Return little-endian bytes as a float32 array."""
    vector = array("f")
    vector.frombytes(embedding)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
