"""References and graders that could never grade an answer are refused before anything is chosen.

Patterns and schemas are compiled in a grading process, because some take minutes to compile. What has passed is
remembered, because clients send the same ones again and again.
"""

import hashlib
import logging
from functools import partial
from typing import Final

import orjson

from agents.grading import graders
from agents.grading.pool import GraderFailed, GradingPool, GradingPoolError
from schemas.errors import InvalidField
from schemas.query import Query
from streams.recent_ids import RecentIds
from streams.runtime.runtime import Runtime
from streams.services.turns import Turns

log = logging.getLogger("streams.grader-checks")

_TIMEOUT_S: Final = 2.0
_REMEMBERED: Final = 4096


class GraderChecks:
    """Checks what queries are to be graded by, each tenant in its turn."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pool = GradingPool(workers=1, timeout_s=_TIMEOUT_S)
        self._turns = Turns(1, runtime.monotonic)
        self._passed = RecentIds(_REMEMBERED)

    async def check(self, query: Query) -> None:
        """Refuse a query whose answer could not be graded, whichever model gives it.

        A plain reference without a grader is not looked at: as ever, its Reward says what is wrong with it.

        Raises:
            InvalidField: naming the field and the fix.
        """
        for grader in self._runtime.control.graders(query):
            if grader is None and not isinstance(query.reference, list):
                continue
            if query.reference is None and (grader is None or grader.needs_reference):
                continue
            request = graders.check(grader, query.reference)
            if request is not None:
                await self._compile(request, query.account)

    async def _compile(self, request: dict[str, object], account: str) -> None:
        field = "reference" if "patterns" in request else "grader.schema"
        digest = hashlib.sha256(orjson.dumps(request)).hexdigest()
        if digest in self._passed:
            return
        async with self._turns.turn(account):
            try:
                why = await self._runtime.in_thread(partial(self._pool.refusal, request))
            except GraderFailed as error:
                why = f"cannot be used ({error}); make it simpler"
            except GradingPoolError as error:
                log.warning("not checked before it is used: %s", error)
                return
        if why:
            raise InvalidField("Query", field, why)
        self._passed.add(digest)
