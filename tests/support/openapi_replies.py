"""The bodies of the gateway's own API, as schemas for docs/openapi.json.

A field that a reply picks from a record has its type and its description from there. The rest is written here;
tests/streams/gateway/test_openapi.py holds real requests and replies against all of it.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from agents.decider.preview import Configuration, Preview
from schemas.answer import Answer, Status
from schemas.chat import Requirement
from schemas.control import ObjectiveEntry
from schemas.dead_letter import DeadLetter
from schemas.decision import Cohort, Decision, ScoredAction
from schemas.failure import EarlierAttempt
from schemas.forest import Count, Draft, Unit
from schemas.objective import CostUnit, ObjectiveInForce, ObjectiveKind
from schemas.reward import Feedback, Reward
from schemas.spent import Seconds, Spent
from streams.gateway.index import Listed
from tests.support.json_schemas import described

Schema = dict[str, Any]

REF: Final = "#/components/schemas/"
RECORDS: Final[dict[str, Schema]] = {}
"""The structs that picked fields refer to."""


def parts(kind: Any, prefix: str = "") -> dict[str, Schema]:
    """Return the schemas of a struct and of those in it, by name."""
    _, found = msgspec.json.schema_components([kind], ref_template=f"{REF}{prefix}{{name}}")
    return {f"{prefix}{name}": described(part) for name, part in found.items()}


def ref(name: str) -> Schema:
    """Return a reference to a schema."""
    return {"$ref": REF + name}


def each(name: str, text: str = "") -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": ref(name)} | ({"description": text} if text else {})


def null_or(schema: Schema) -> Schema:
    """Return a schema that null meets as well."""
    kinds = schema.get("anyOf", [schema])
    null = {"type": "null"}
    return schema if null in kinds or schema.get("enum") == [None] else {"anyOf": [*kinds, null]}


def picked(kind: type, names: str) -> dict[str, Schema]:
    """Return some fields of a struct."""
    found = parts(kind)
    fields = found.pop(kind.__name__)["properties"]
    RECORDS.update(found)
    return {
        name: {key: held for key, held in fields[name].items() if key != "default"} for name in names.split()
    }


def shape(
    text: str, *picks: Mapping[str, Schema], may_lack: str = "", closed: bool | None = None, **own: Any
) -> Schema:
    """Return the schema of an object.

    Args:
        text: What it is.
        picks: Fields that are picked from records.
        may_lack: Names of fields that may be absent.
        closed: Whether other fields are refused (True) or may be there (False); None for a reply, whose fields are all
            here, but to which a later release may add.
        own: Other fields: a schema, a type, or a type and what it is.
    """
    fields = {name: field for pick in picks for name, field in pick.items()} | {
        name: _field(field) for name, field in own.items()
    }
    optional = may_lack.split()
    return {
        "type": "object",
        "description": text,
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        **({} if closed is None else {"additionalProperties": not closed}),
    }


def _field(given: Any) -> Schema:
    if isinstance(given, dict):
        return given
    kind, text = given if isinstance(given, tuple) else (given, "")
    return msgspec.json.schema(kind) | ({"description": text} if text else {})


def listing(text: str, name: str, **own: Any) -> Schema:
    """Return the schema of a reply that is a list."""
    return shape(text, object=Literal["list"], data=each(name), **own)


State = Literal[Status, "pending"]
_STATE: Final = State, "How it ended; `pending` until then."
_RESTRICTED: Final = list[Requirement], "What the request requires of a configuration."
_ACTION: Final = "The configuration, `model/qp/cp/bs`."
_AT: Final = "In seconds since the epoch."
_IN_UNIT: Final = "The cost, in a deployment in {}."
_TIMES: Final = " ".join(Spent.__struct_fields__)
_QUERIES: Final = Count, "Number of queries."
_ID: Final = str, "The query's id, for POST /v1/feedback and GET /v1/queries/{id}."
_RAN: Final = str, "The model that runs or ran, never the name in the request."
_USAGE: Final = dict[str, Any], "The tokens and, in a deployment in USD, `cost`."
_IGNORED: Final = list[str], "Fields of the request that have no effect."

_OBJECTIVE: Final[dict[str, Any]] = {
    **picked(ObjectiveInForce, "mean_cost accuracy price weights"),
    "name": (str | None, "Its name; null if the query set its own weights or target."),
    "aim": (ObjectiveKind, "Its kind."),
    "unit": (CostUnit, "Unit of costs."),
}
_DETAILS: Final[dict[str, Any]] = {
    "action": (str | None, _ACTION),
    "objective": null_or(ref("Objective")),
    "group": (Cohort | None, "The policy's choice, or the control group's."),
    "scores": (list[Unit | None], "The score of each answer, if several were asked for."),
    "restricted": _RESTRICTED,
    "attempts": (Count, "Number of the attempt that gave the answer."),
    "earlier": each("FailedAttempt", "The attempts before it."),
    "eflops": null_or(ref("Eflops")),
    "usd": (float | None, "The cost in USD; null if nothing ran, or in a deployment in eFLOPs."),
    "timings": ref("Timings"),
    "error": (str | None, "Why there is no text."),
}
_OF_ANSWER: Final = picked(Answer, "status complete score seq")

# Errors and probes; then what is ours in the bodies of OpenAI's and Anthropic's APIs.

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": shape(
        "An error in OpenAI's format.",
        error=shape(
            "What was wrong.",
            message=(str, "What was wrong, and what to do."),
            type=(str, "OpenAI's type of error, such as `invalid_request_error`."),
            param=(str | None, "The field at fault, if any."),
            code=(str | None, "A code for programs, if there is one."),
        ),
    ),
    "MessagesError": shape(
        "An error in Anthropic's format.",
        type=Literal["error"],
        error=shape(
            "What was wrong.",
            type=(str, "Anthropic's type of error, such as `not_found_error`."),
            message=(str, "What was wrong, with the field at fault, and what to do."),
        ),
        request_id=str,
    ),
    "Live": shape("The process responds.", status=Literal["live"]),
    "Ready": shape(
        "The gateway has read its topics.",
        status=Literal["ready"],
        queries=(Count, "Number of queries in the index."),
        waiting=(Count, "Number of requests that wait for an answer."),
        models=shape("How many models of the catalogue are served now.", ready=Count, of=Count),
    ),
    "Objective": shape("An objective in force.", **_OBJECTIVE),
    "Timings": shape(
        "Where a query's time went, in seconds.",
        picked(Spent, _TIMES),
        rest_s=(Seconds, "The part of `total_s` outside all components."),
        total_s=(
            Seconds,
            "The whole, to the answer: from the request, or in /v1/queries from the query's append.",
        ),
        may_lack="rest_s total_s",
    ),
    "Eflops": shape(
        "A cost in eFLOPs by its parts.", total=float, prefill=float, decoding=float, verifier=float
    ),
    "FailedAttempt": shape(
        "An attempt that failed before any text was sent.",
        picked(EarlierAttempt, "attempt cause cost"),
        action=(str, _ACTION),
        error=(str, "What went wrong, without details that are for the operator."),
    ),
    "AnswerDetails": shape(
        "The object `uniscale` of a response: what ran, what it cost and how long it took.",
        _OF_ANSWER,
        **_DETAILS,
        ignored=_IGNORED,
        may_lack="ignored",
    ),
    "ChatCompletion": shape(
        "A chat completion of OpenAI's API, with `uniscale`.",
        closed=False,
        id=_ID,
        object=Literal["chat.completion"],
        created=(int, _AT),
        model=_RAN,
        system_fingerprint=(str | None, "`action@seq`: what ran, and the state of the policy that chose it."),
        choices=list[dict[str, Any]],
        usage=_USAGE,
        uniscale=ref("AnswerDetails"),
    ),
    "ResponseObject": shape(
        "A response of OpenAI's Responses API, with `uniscale` once it has ended.",
        closed=False,
        id=_ID,
        object=Literal["response"],
        created_at=(int, _AT),
        status=Literal["in_progress", "completed", "incomplete", "failed", "cancelled"],
        error=dict[str, Any] | None,
        model=_RAN,
        output=list[dict[str, Any]],
        usage=null_or(_field(_USAGE)),
        uniscale=ref("AnswerDetails"),
        may_lack="uniscale",
    ),
    "MessageObject": shape(
        "A message of Anthropic's Messages API, with `uniscale`.",
        closed=False,
        id=_ID,
        type=Literal["message"],
        role=Literal["assistant"],
        model=_RAN,
        content=list[dict[str, Any]],
        stop_reason=str | None,
        stop_sequence=str | None,
        usage=_USAGE,
        uniscale=ref("AnswerDetails"),
    ),
    "TokenCount": shape(
        "A token count of Anthropic's Messages API, with `uniscale`.",
        input_tokens=(Count, "An estimate."),
        uniscale=shape("How it was made.", method=(str, "In words."), ignored=_IGNORED),
    ),
}

# Models, objectives, feedback and dead letters.

SCHEMAS.update(
    ModelEntry=shape(
        "A name that a request may ask for.",
        id=(str, "`auto`, `auto:OBJECTIVE`, a model, or a configuration `model/qp/cp/bs`."),
        object=Literal["model"],
        created=(int, _AT),
        owned_by=Literal["uniscale"],
        routing=(Literal["virtual", "concrete"], "`virtual` if the policy chooses the model."),
        context_length=(Count, "In tokens; the longest of all models for a virtual name."),
        pricing=(dict[str, str] | None, "USD per token, as text; null in eFLOPs, and for a virtual name."),
        supported_parameters=(list[str], "The fields of a chat completion request that have an effect."),
    ),
    ModelList=listing("The names that a request with this key may ask for.", "ModelEntry"),
    ObjectiveEntry=shape("An objective that queries may name.", object=Literal["objective"], **_OBJECTIVE),
    ObjectiveList=listing(
        "The objectives that queries may name.",
        "ObjectiveEntry",
        default=(str, "The name of the objective of a query that names none."),
    ),
    ObjectiveRequest=shape(
        "Exactly one of the three.",
        picked(ObjectiveEntry, "weights mean_cost accuracy"),
        may_lack="weights mean_cost accuracy",
        closed=True,
    ),
    ObjectiveAccepted=shape(
        "The change is on the topic `control`.",
        object=Literal["objective"],
        name=str,
        accepted=Literal[True],
    ),
    FeedbackRequest=shape(
        "A grade of an answer.",
        id=(str, "The id of the response."),
        value={
            "description": "true, false, or a grade from 0 to 1.",
            "anyOf": [{"type": "boolean"}, {"type": "number", "minimum": 0, "maximum": 1}],
        },
        comment={"type": "string", "maxLength": 4000},
        graded_by=picked(Feedback, "graded_by")["graded_by"] | {"default": "person"},
        may_lack="comment graded_by",
        closed=True,
    ),
    FeedbackAccepted=shape(
        "The feedback is on its topic.",
        id=(str, "The query's id."),
        object=Literal["feedback"],
        duplicate=(bool, "Whether this key has graded the answer before; the first grade counts."),
        late=(
            bool | None,
            "Whether the query's reward had already closed, so that the grade changes nothing; null if the query has "
            "left the index and only the aggregator knows.",
        ),
    ),
    DeadLetterEntry=shape(
        "A record that could not be handled.",
        picked(DeadLetter, "service error reason field query_id attempts"),
        object=Literal["dead-letter"],
        created=(int, _AT),
        origin=(str, "The record's position, topic/partition/offset."),
        retried=(bool, "Whether it has been sent again."),
    ),
    DeadLetterList=listing("Records that could not be handled.", "DeadLetterEntry"),
    RetryRequest=shape("Which record to send again.", closed=True, origin=(str, "Its `origin`.")),
    Retry=shape(
        "The record has been sent again.",
        object=Literal["dead-letter.retry"],
        origin=str,
        duplicate=(bool, "Whether it had been sent again before; it is sent once."),
    ),
)

# `/v1/decide` and `/v1/queries`.

_PREDICTED = (
    dict[str, float | None] | None,
    "The terms `correct`, `score` and `log_cost`, and as `eflops` or `usd` the typical cost, which `log_cost` stands "
    "for; null for a policy that models the reward alone.",
)

SCHEMAS.update(
    ConfigurationPreview=shape(
        "A configuration as the policy sees it for a query.",
        picked(Configuration, "action mean width score propensity"),
        predicted=_PREDICTED,
    ),
    DecisionPreview=shape(
        "What the policy would choose now, and why.",
        picked(Preview, "action group reason shortfall seq catalogue_version served policy masked_models"),
        picked(Preview, "short_models unable_models features prior"),
        object=Literal["decision.preview"],
        model=(str, "The model of `action`."),
        objective=ref("Objective"),
        candidates=(Count, "Number of configurations that the policy chooses from."),
        restricted=_RESTRICTED,
        choice=ref("ConfigurationPreview"),
        grounds=each("Contribution", "What the predicted accuracy of the choice consists of."),
        drifted={"type": "object", "additionalProperties": ref("Drift")},
        runner_up=null_or(ref("ConfigurationPreview")),
        configurations=each("ConfigurationPreview", "Every configuration, the best first."),
    ),
    QueryEntry=shape(
        "A query in a list; what is not known yet is null.",
        picked(Listed, "tenant question action objective cohort correct error"),
        id=str,
        object=Literal["query"],
        created=(int, _AT),
        status=_STATE,
        timings=null_or(ref("Timings")),
        eflops=(float | None, _IN_UNIT.format("eFLOPs")),
        usd=(float | None, _IN_UNIT.format("USD")),
        may_lack="eflops usd",
    ),
    QueryList=listing(
        "The latest queries, newest first.",
        "QueryEntry",
        unit=(CostUnit, "Unit of the costs."),
        values=(
            dict[str, list[str | None]],
            "What queries can be filtered by: `tenant`, `objective`, `model`.",
        ),
    ),
    RunnerUp=shape(
        "A configuration that was ranked below the chosen one.",
        picked(ScoredAction, "action mean width score"),
        predicted=_PREDICTED,
    ),
    QueryDecision=shape(
        "What was chosen for a query, and why.",
        picked(Decision, "cohort reason seq mean width candidates propensity price_factor prices policy"),
        picked(Decision, "features"),
        predicted=_PREDICTED,
        runners_up=each("RunnerUp", "The next best configurations."),
        question=str,
        action=(str, _ACTION),
        objective=ref("Objective"),
    ),
    QueryAnswer=shape(
        "How a query ended.",
        _OF_ANSWER,
        picked(Answer, "text extracted"),
        **_DETAILS,
        message=(dict[str, Any] | None, "The server's message, if the request was passed through whole."),
        usage=_USAGE,
    ),
    QueryDraft=shape(
        "A step of a path of the search.",
        picked(Draft, "parent tree depth tokens score fate bound text"),
        at=(Count, "Its index."),
        chosen=(bool, "Whether it is on the chosen path."),
    ),
    QueryReward=shape(
        "A stage of a query's reward.",
        picked(
            Reward, "kind correct score log_cost reward graded_by grader rule missing latency_s closed_early"
        ),
        closes=(bool, "Whether it is the last."),
    ),
    QueryObject=shape(
        "What is known about a query; what is not known yet is absent.",
        id=str,
        object=Literal["query"],
        status=_STATE,
        decision=ref("QueryDecision"),
        answer=ref("QueryAnswer"),
        search=each("QueryDraft", "Every draft, a parent before its children."),
        reward=ref("QueryReward"),
        may_lack="decision answer search reward",
    ),
    QueryStep=shape(
        "A step of a running search.", step=Count, search=each("QueryDraft", "Every draft so far.")
    ),
)
EVENTS: Final = {
    "decision": "QueryDecision",
    "step": "QueryStep",
    "answer": "QueryObject",
    "reward": "QueryReward",
}
"""The data of each event of GET /v1/queries/{id}/events."""

# `/v1/now`.

_GROUP: Final[dict[str, Any]] = {
    "queries": _QUERIES,
    "accuracy": null_or(ref("Mean")),
    "cost": null_or(ref("Mean")),
}
_GAINS: Final[dict[str, Any]] = {
    "accuracy_difference": null_or(ref("Bounds")),
    "cost_ratio": null_or(ref("Bounds")),
}


def _cohorts(held: Schema, text: str) -> Schema:
    return {"type": "object", "description": text, "additionalProperties": held}


SCHEMAS.update(
    Mean=shape("A mean with its 95 % interval.", mean=float, low=float, high=float, n=_QUERIES),
    Bounds=shape(
        "An estimate with an interval that stays valid however often it is read; null is infinite.",
        mean=float | None,
        low=float | None,
        high=float | None,
    ),
    CohortNow=shape("Queries; a failed one counts as wrong. Null where nothing is known.", **_GROUP),
    ChoiceNow=shape("The queries that ran a configuration.", action=(str | None, _ACTION), **_GROUP),
    KindNow=shape(
        "The queries of a kind.",
        of=(str | None, "The value of the metadata key, the session or the objective."),
        **_GROUP,
        choices={"type": "array", "items": shape("", action=str | None, queries=_QUERIES)},
    ),
    Point=shape(
        "Consecutive queries.",
        at=(float, _AT),
        queries=_QUERIES,
        accuracy=float | None,
        cost=float | None,
    ),
    Uplift=shape(
        "The policy compared with its control.",
        sentence=(str, "The comparison in words."),
        queries=(dict[str, Count], "Number of queries by group."),
        failed=(dict[str, Count], "Number of those without an answer."),
        feedback_rate=(dict[str, float], "Share of those of which it is known whether they are right."),
        **_GAINS,
        control=(str, "What the policy is compared with."),
        moves=(
            bool,
            "Whether older queries have left the index, so that the intervals hold for one look only.",
        ),
        over_time={"type": "array", "items": shape("The comparison so far.", at=(float, _AT), **_GAINS)},
    ),
    ModelNow=shape(
        "A model of the catalogue.",
        name=str,
        group=(str, "The executor group that serves it."),
        serving=(bool, "Whether an executor serves it now."),
        state=(str, "Its health; `silent` if no executor reports it."),
        why=str,
    ),
    ServiceNow=shape(
        "A service's consumer group, at most ten seconds ago; null if the broker did not say.",
        service=str,
        workers=int | None,
        waiting=(int | None, "Number of records that wait for it."),
    ),
    Mark=shape(
        "A change on the topic `control`.",
        at=(int, _AT),
        kind=Literal["catalogue", "objective", "costs"],
        what=str,
    ),
    Now=shape(
        "The state of the deployment; all statistics are of the same queries.",
        per_second=(float, "Queries per second in the last minute."),
        in_flight=(Count, "Number of queries without an answer."),
        unit=(CostUnit, "Unit of the costs."),
        queries=(Count, "Number of queries that the statistics cover."),
        pinned=(Count, "Number of those that pinned their configuration; they count as no choice."),
        statuses=(dict[str, Count], "Number of queries by how they ended."),
        cohorts=_cohorts(ref("CohortNow"), "The policy's queries (`policy`) and the control's (`control`)."),
        choices=each("ChoiceNow", "The configurations chosen, the most frequent first."),
        by=_cohorts(each("KindNow"), "The same by metadata key, `session` and `objective`."),
        series=_cohorts(each("Point"), "Accuracy and cost over time, oldest first, by group."),
        uplift=ref("Uplift"),
        models=each("ModelNow"),
        services=each("ServiceNow", "Empty for a key that sees one tenant only."),
        dead_letters=(Count | None, "Number of open dead letters; null for a key that sees one tenant only."),
        marks=each("Mark", "The latest changes, oldest first."),
    ),
)
