"""Records that configure every process, cancel a query, or report that an executor is alive."""

import math
import re
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from schemas.errors import InvalidField, UnknownSchema, shown
from schemas.forest import Count
from schemas.objective import CostRange, Weights, check_targets
from schemas.prices import Prices, Rate
from schemas.record import Record, check_finite, check_id, check_json, decode, load
from schemas.search import Served

# Records that configure every process: catalogue, objectives, cost bounds and API keys. For each name, the latest wins.

MAX_ENTRY = 64 * 1024
"""Maximum size, in bytes, of the model in a catalogue entry as JSON."""

Scope: TypeAlias = Literal["ask", "feedback", "read", "teach", "admin"]
"""An API key's permissions, in order: send queries; send feedback; read its tenant's queries; have the learner learn
from its queries and feedback; read every tenant's queries and set objectives."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class CatalogueEntry(Record, frozen=True, kw_only=True, tag="catalogue-entry.v1"):
    """Adds or removes a model. Key: `model/<name>`.

    Attributes:
        name: The model's name.
        op: `add` or `remove`.
        model: The entry as in a catalogue file; validated by `agents.catalogue`. Absent with `remove`.
    """

    name: str
    op: Literal["add", "remove"]
    model: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Reject an `add` without an entry, a `remove` with one, or an entry whose name differs from `name`."""
        _check_name("CatalogueEntry", self.name)
        if (self.op == "add") != (self.model is not None):
            raise InvalidField(
                "CatalogueEntry", "model", f"does not fit op {self.op!r}; give it with add only"
            )
        if self.model is not None and self.model.get("name") != self.name:
            why = f"is {shown(self.model.get('name'))} in an entry for {self.name!r}; write the same name"
            raise InvalidField("CatalogueEntry", "model.name", why)
        if self.model is not None:
            check_json("CatalogueEntry", "model", self.model, MAX_ENTRY)

    @property
    def key(self) -> str:
        """Return the record's key, used for topic compaction."""
        return f"model/{self.name}"


class PriceFactorEntry(Record, frozen=True, kw_only=True, tag="price-entry.v1"):
    """Sets the price of a catalogue model from now on. Key: `price/<name>`.

    A later CatalogueEntry for the model overrides this price.

    Attributes:
        name: The model's name.
        factor: Multiplier for the eFLOPs of a query on this model, if costs are in eFLOPs.
        prices: The model's token prices, if costs are in USD. Exactly one of factor and prices is set.
    """

    name: str
    factor: float | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        """Reject an entry unless exactly one of factor and prices is set and any factor is finite and above 0."""
        _check_name("PriceFactorEntry", self.name)
        if (self.factor is None) == (self.prices is None):
            why = f"is {self.factor} with prices {self.prices}; give one of the two, in the deployment's unit"
            raise InvalidField("PriceFactorEntry", "factor", why)
        if self.factor is not None and not 0.0 < self.factor < math.inf:
            raise InvalidField(
                "PriceFactorEntry", "factor", f"is {self.factor}; give a finite number above 0"
            )

    @property
    def rate(self) -> Rate:
        """Return the price factor, or the prices."""
        return self.prices if self.factor is None else self.factor  # type: ignore[return-value]  # one is there

    @property
    def key(self) -> str:
        """Return the record's key, used for topic compaction."""
        return f"price/{self.name}"


class ObjectiveEntry(Record, frozen=True, kw_only=True, tag="objective-entry.v1"):
    """Sets or removes a named objective. Key: `objective/<name>`.

    Attributes:
        name: The name that queries use.
        op: `set` or `remove`.
        weights: w₁, w₂ and w₃.
        mean_cost: Target for the mean cost per query, in the deployment's unit.
        accuracy: Target for accuracy, as a share of the accuracy within reach. Exactly one of weights, mean_cost and
            accuracy is present with `set`, and none with `remove`.
    """

    name: str
    op: Literal["set", "remove"]
    weights: Weights | None = None
    mean_cost: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        """Reject a `set` without exactly one kind of objective, and a `remove` with one."""
        _check_name("ObjectiveEntry", self.name)
        names = ("weights", "mean_cost", "accuracy")
        given = [name for name in names if getattr(self, name) is not None]
        if self.op == "remove" and given:
            raise InvalidField("ObjectiveEntry", given[0], "does not fit op 'remove'; give it with set only")
        if self.op == "set" and len(given) != 1:
            what = f"comes with {', '.join(given)}" if given else "is missing with op 'set'"
            why = f"{what}; give exactly one of {', '.join(names)}"
            raise InvalidField("ObjectiveEntry", given[-1] if given else "weights", why)
        check_targets("ObjectiveEntry", mean_cost=self.mean_cost, accuracy=self.accuracy)

    @property
    def key(self) -> str:
        """Return the record's key, used for topic compaction."""
        return f"objective/{self.name}"


class CostBoundsEntry(Record, frozen=True, kw_only=True, tag="cost-bounds-entry.v1"):
    """The bounds that normalise log C, for all objectives. Key: `cost-bounds`."""

    cost_range: CostRange

    @property
    def key(self) -> str:
        """Return the record's key, used for topic compaction."""
        return "cost-bounds"


class KeyEntry(Record, frozen=True, kw_only=True, tag="key-entry.v1"):
    """Adds or revokes a named API key of the gateway. Key: `key/<name>`. The API key itself is never stored.

    Attributes:
        name: The name that operators use.
        op: `add` or `revoke`.
        sha256: SHA-256 of the API key, in hex. Absent with `revoke`.
        tenant: The tenant that the API key's queries belong to.
        scopes: Permissions: ask, give feedback, read queries, teach the learner, administer.
        allowed_models: Model names that may be requested, including virtual ones; None allows all.
        allowed_objectives: Objectives that may be requested; None allows all.
        per_minute: Maximum number of requests per minute.
        in_flight: Maximum number of concurrent requests.
        eflops_per_day: Maximum cost of the answers within 24 hours, in eFLOPs.
        usd_per_day: The same limit in USD, if costs are in USD.
    """

    name: str
    op: Literal["add", "revoke"]
    sha256: str | None = None
    tenant: str | None = None
    scopes: tuple[Scope, ...] = ("ask", "feedback", "read")
    allowed_models: tuple[str, ...] | None = None
    allowed_objectives: tuple[str, ...] | None = None
    per_minute: int | None = None
    in_flight: int | None = None
    eflops_per_day: float | None = None
    usd_per_day: float | None = None

    def __post_init__(self) -> None:
        """Reject an `add` without a digest, a `revoke` with one, and limits that allow nothing."""
        _check_name("KeyEntry", self.name)
        if (self.op == "add") != (self.sha256 is not None):
            raise InvalidField("KeyEntry", "sha256", f"does not fit op {self.op!r}; give it with add only")
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise InvalidField("KeyEntry", "sha256", "is not a SHA-256 digest; give 64 hexadecimal digits")
        if not self.scopes:
            raise InvalidField(
                "KeyEntry", "scopes", "is empty; give at least one of ask, feedback, read, teach, admin"
            )
        check_finite("KeyEntry", eflops_per_day=self.eflops_per_day, usd_per_day=self.usd_per_day)
        for name in ("per_minute", "in_flight", "eflops_per_day", "usd_per_day"):
            if (most := getattr(self, name)) is not None and not most > 0:
                raise InvalidField("KeyEntry", name, f"is {most}; give a number above 0, or leave it out")

    @property
    def limits_spending(self) -> bool:
        """Return whether there is a limit on the cost of the API key's answers."""
        return self.eflops_per_day is not None or self.usd_per_day is not None

    @property
    def key(self) -> str:
        """Return the record's key, used for topic compaction."""
        return f"key/{self.name}"


ControlRecord = CatalogueEntry | PriceFactorEntry | ObjectiveEntry | CostBoundsEntry | KeyEntry

_KINDS: dict[str, type[ControlRecord]] = {
    kind.schema(): kind
    for kind in (CatalogueEntry, PriceFactorEntry, ObjectiveEntry, CostBoundsEntry, KeyEntry)
}


def decode_control(value: bytes | None) -> ControlRecord:
    """Return the control record in a value.

    Raises:
        RecordError: The value cannot be read, or is not a control record (see `decode`).
    """
    schema = load(value, "control record", framed=False).get("schema")
    kind = _KINDS.get(schema) if isinstance(schema, str) else None
    if kind is None:
        raise UnknownSchema(
            "control record", "schema", f"is {shown(schema)}; write one of {', '.join(_KINDS)}"
        )
    return decode(value, kind)


def _check_name(kind: str, name: str) -> None:
    if not 1 <= len(name) <= 200 or not name.isprintable() or name != name.strip():
        raise InvalidField(kind, "name", f"is {name[:40]!r}; give 1 to 200 printable characters")


# Cancel: the client no longer waits for the answer, so the executor drops the search at its next step.

MAX_CANCEL_REASON = 500
"""Maximum number of characters in the reason, which the Answer's error repeats."""


class Cancel(Record, frozen=True, kw_only=True, tag="cancel.v1"):
    """Ends one query's search. Key: query_id. Sent to the executor group running it.

    A query that already has its Answer is unaffected.

    Attributes:
        query_id: The query's id.
        by: Name of the cancelling service, for instance `gateway`.
        reason: Reason for cancelling, for instance `client disconnected`.
    """

    query_id: str
    by: str
    reason: str = ""

    def __post_init__(self) -> None:
        """Reject an id that cannot be a key, a missing sender, and a reason that is too long."""
        check_id("Cancel", self.query_id)
        if not 1 <= len(self.by) <= 200:
            raise InvalidField("Cancel", "by", "must have 1 to 200 characters; say who cancels")
        if len(self.reason) > MAX_CANCEL_REASON:
            why = f"has {len(self.reason)} characters; shorten it to {MAX_CANCEL_REASON}"
            raise InvalidField("Cancel", "reason", why)


# Heartbeat: an executor reports that it is alive. The decider masks the models of executors that stop reporting.


class ModelHealth(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one model in an executor.

    Attributes:
        model: The model's name in the catalogue.
        state: ready: the model serves requests. loading: it does not serve requests yet. suspended: its endpoint failed
            several times in a row, or the model failed the operator's probe, so it receives no requests for a while.
            failed: it could not be loaded.
        why: The problem; empty if there is none.
        servers_down: If it has several servers, how many of them get no requests.
    """

    model: str
    state: Literal["ready", "loading", "suspended", "failed"]
    why: str = ""
    servers_down: Count = 0


class Heartbeat(Record, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """Reports that an executor is alive. Key: group/instance. Its age is measured from the broker's append time.

    Attributes:
        group: The executor group.
        instance: The executor process within the group.
        models: The models that are ready.
        every_s: Seconds until the next heartbeat.
        in_flight: Number of searches in flight.
        stopping: Whether this is the executor's last heartbeat, after which its models are masked at once.
        engine: The engine that generates text.
        health: The state of each model in the group, including those the executor cannot serve.
    """

    group: Annotated[str, Meta(min_length=1)]
    instance: Annotated[str, Meta(min_length=1)]
    models: tuple[str, ...]
    every_s: Annotated[float, Meta(gt=0.0)]
    in_flight: Count = 0
    stopping: bool = False
    engine: Served | None = None
    health: tuple[ModelHealth, ...] = ()

    @property
    def key(self) -> str:
        """Return the record's key."""
        return f"{self.group}/{self.instance}"
