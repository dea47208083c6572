"""Record types. Every record on the wire is typed, frozen, versioned, and validated once at the edge.

The life of one query, as records:

    Query          a client sends a question                          query.py
    Context        the embedder adds the unit vector                  query.py
    Decision       the decider chooses a = (M, QP, CP, BS)            decision.py
    SearchStep     the executor drafts one step                       search.py
    Verification   the verifier scores it; the two repeat             search.py
    AnswerChunk    the executor sends parts as they are generated     chunk.py
    Answer         the executor ends it, or the aggregator on expiry  answer.py
    Feedback       a client grades it, possibly hours later           reward.py
    Due            a deadline has passed                              reward.py
    Reward         the aggregator sends it; the decider learns        reward.py
    Cancel         the client no longer waits                         control.py

In addition, CatalogueEntry, PriceFactorEntry, ObjectiveEntry, CostBoundsEntry and KeyEntry configure the processes, and
a Heartbeat reports that an executor is alive (all in control.py). An AttemptFailed lets the decider try another model
(attempt.py), and a DeadLetter keeps a record that could not be handled (dead_letter.py).

This package imports only msgspec, orjson, zstandard and the standard library.
"""

from schemas.action import Action
from schemas.answer import Answer
from schemas.control import Heartbeat
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.forest import Draft, Forest, Limits
from schemas.objective import Weights
from schemas.query import Budget, Message, Query, QueryContext
from schemas.record import decode, encode
from schemas.reward import Due, Feedback, Reward
from schemas.search import Scored, SearchStep, Verification

__all__ = [
    "Query",
    "Message",
    "Weights",
    "Budget",
    "QueryContext",
    "Decision",
    "Action",
    "SearchStep",
    "Verification",
    "Scored",
    "Draft",
    "Forest",
    "Limits",
    "Answer",
    "Feedback",
    "Due",
    "Reward",
    "Heartbeat",
    "DeadLetter",
    "UniscaleError",
    "encode",
    "decode",
]
