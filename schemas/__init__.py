"""The record types: every record on the wire, typed, frozen, versioned and validated once at the edge.

The life of one query, as records:

    Query          a client asks                                      query.py
    Context        the embedder adds the unit vector                  query.py
    Decision       the decider chooses a = (M, QP, CP, BS)            decision.py
    SearchStep     the executor drafts one step                       search.py
    Verification   the verifier scores it; the two repeat             search.py
    AnswerChunk    the executor sends text as it is generated         chunk.py
    Answer         the executor, or the aggregator on expiry          answer.py
    Feedback       a client grades it, possibly hours later           reward.py
    Due            a deadline has passed                              reward.py
    Reward         the aggregator closes it; the decider learns       reward.py
    Cancel         the client no longer waits                         control.py

In addition, CatalogueEntry, PriceEntry, ObjectiveEntry, CostBoundsEntry and KeyEntry configure the processes, a
Heartbeat reports that an executor is alive (all in control.py), and a DeadLetter keeps a record that could not be
handled (dead_letter.py).

Imports msgspec, orjson, zstandard and the standard library only.
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
