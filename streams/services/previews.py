"""Previews over HTTP: what a policy would choose for a query, and why. Nothing is learned, logged or sent."""

import asyncio
import hashlib
import logging
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agents.bandit.policy import ActionVector
from agents.catalogue.action_space import ActionSpace
from agents.decider.decider import Decider
from agents.decider.preview import Preview, anonymous, offering, preview
from agents.embedding import ArrivedQuery, EncoderUnavailable, embed, embedded_text, encoder_id
from schemas.errors import RecordError, UniscaleError
from schemas.prices import Rate
from schemas.query import Origin, Query, QueryContext
from schemas.record import MAX_VALUE, decode
from streams.http.server import server_of
from streams.log.base import Unavailable
from streams.services.decider import DeciderService, baseline_of

log = logging.getLogger("streams.decider")

_MOST_WAITING: Final = 16
"""Limit on concurrent previews. Questions are encoded one at a time, in about 10 ms each; more would wait too long."""

PATH: Final = "/decide"

_REBIND_S: Final = 5.0

_KEPT: Final = 256
"""Maximum number of cached vectors. Moving a slider requests many previews of one question."""

_NOWHERE: Final = Origin(topic="preview", partition=0, offset=0)


class NotNow(Unavailable):
    """This decider cannot answer at the moment; the message says why."""


class Changed(NamedTuple):
    """A catalogue's actions that the learner does not offer yet."""

    decider: Decider
    version: int
    space: ActionSpace
    vectors: Sequence[ActionVector]
    price_factors: Mapping[str, Rate]
    baseline: str
    mixed: bool


class Previews:
    """Computes what a service's learner would choose, and serves it.

    Args:
        service: The decider service.
    """

    def __init__(self, service: DeciderService) -> None:
        self.service = service
        self._waiting = 0
        self._encoding = asyncio.Lock()
        self._vectors: OrderedDict[bytes, bytes] = OrderedDict()  # by digest of the text, which may be long
        self._changed: Changed | None = None
        self._copy: tuple[Decider, int, int, ActionSpace, Decider] | None = None

    async def preview(self, query: Query) -> Preview:
        """Return the choice that would be made for a query now.

        Raises:
            NotNow: This worker does not own the learner, is recovering, or has too many previews in flight.
            UniscaleError: The query itself would be refused with this error.
        """
        if self._waiting >= _MOST_WAITING:
            raise NotNow(f"{_MOST_WAITING} previews are being answered; try again")
        self._waiting += 1
        try:
            context = await self._context(anonymous(query))
            async with self._encoding:
                changed = await self._actions()
            # Read between two batches, because a snapshot reads the learner in a thread and an offer is not atomic.
            async with self.service.lock:
                return await self._read(context, changed)
        finally:
            self._waiting -= 1

    async def _read(self, context: QueryContext, changed: Changed | None) -> Preview:
        service, control = self.service, self.service.runtime.control
        decider, learner = service.decider, service.learner
        if decider is None or not learner.log.assigned:
            raise NotNow("this decider does not hold the policy: another one does, or it is still recovering")
        if learner.offered is not None and learner.offers(control.catalogue_version):
            self._changed = self._copy = None
            space, version = learner.offered.space, learner.offered.version
        elif changed is not None and changed.decider is decider:
            decider, space, version = await self._offering(changed), changed.space, changed.version
        else:
            version = None
        if version != control.catalogue_version:
            raise NotNow("the catalogue has just changed; try again")
        living, others = service.environments(space)
        return preview(decider, context, living if living.serves(context.query) else others)

    async def _actions(self) -> Changed | None:
        """Return the actions that the learner will offer at its next decision; None if it already offers them.

        Raises:
            NotNow: None of the actions is embedded.
        """
        learner, control = self.service.learner, self.service.runtime.control
        decider, catalogue, version = learner.decider, control.catalogue, control.catalogue_version
        if decider is None or learner.offers(version):
            return None
        kept = self._changed
        if kept is not None and kept.decider is decider and kept.version == version:
            return kept
        try:
            space, vectors = await learner.vectors(decider, catalogue)
        except Unavailable as error:
            raise NotNow(str(error)) from error
        baseline = baseline_of(self.service.runtime.settings, catalogue, space)
        mixed = catalogue.verified != "all"
        found = Changed(decider, version, space, vectors, catalogue.price_factors, baseline, mixed)
        # If some actions wait for the encoder, try again later.
        self._changed = found if len(space) == len(control.space(catalogue)) else None
        return found

    async def _offering(self, changed: Changed) -> Decider:
        """Return a copy of the learner that offers a changed catalogue. An offer by the learner itself is logged."""
        decider, kept = changed.decider, self._copy
        # Compare the space too, because more actions of the same version may have been embedded by now, and the
        # version, because a model's price factor may change without changing the space.
        if (
            kept is not None
            and kept[0] is decider
            and kept[1:4] == (decider.seq, changed.version, changed.space)
        ):
            return kept[4]
        made = await self.service.runtime.in_thread(
            lambda: offering(
                decider, changed.vectors, changed.price_factors, changed.baseline, mixed=changed.mixed
            )
        )
        self._copy = (decider, decider.seq, changed.version, changed.space, made)
        return made

    async def _context(self, query: Query) -> QueryContext:
        text = hashlib.sha256(embedded_text(query).encode()).digest()
        arrival = ArrivedQuery(query, _NOWHERE, 0)
        async with self._encoding:
            if (vector := self._vectors.pop(text, None)) is None:
                encoder = self.service.encoder
                try:
                    (context,) = await self.service.runtime.in_thread(
                        lambda: embed([arrival], encoder=encoder)
                    )
                except EncoderUnavailable as error:
                    log.warning("a preview waits for the encoder: %s", error)
                    raise NotNow(error.for_client) from error
            else:
                context = QueryContext(
                    query=query,
                    embedding=vector,
                    origin=_NOWHERE,
                    encoder=encoder_id(self.service.encoder),
                    appended_ms=0,
                )
            self._vectors[text] = context.embedding
            if len(self._vectors) > _KEPT:
                self._vectors.popitem(last=False)
        return msgspec.structs.replace(context, appended_ms=self.service.runtime.clock.now_ms())

    # The endpoint: read-only, over HTTP.
    #
    #     POST /decide   a Query, as it travels on the topic  ->  200, a Preview (agents.decider.preview) as JSON
    #                                                             400, {"field", "message"}: the query would be refused
    #                                                             503, {"message"}: this decider cannot answer now
    #
    # It does not affect decisions: nothing is learned, logged or sent. Authentication is left to the gateway, so the
    # endpoint listens on this machine only unless `decider_host` says otherwise.

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(routes=[Route(PATH, self._decide, methods=["POST"])])

    async def _decide(self, request: Request) -> Response:
        # Refuse browsers: requests from their pages have an Origin header.
        if "origin" in request.headers:
            return _reply(403, {"message": "requests of web pages are not answered here; ask the gateway"})
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_VALUE:
                return _reply(400, {"field": "", "message": f"the query has more than {MAX_VALUE} bytes"})
        try:
            found = await self.preview(decode(bytes(body), Query))
        except Unavailable as error:
            return _reply(503, {"message": str(error)})
        except UniscaleError as error:
            field = error.field if isinstance(error, RecordError) else ""
            if error.instead:
                log.warning("a preview is refused: %s", error)
            why = error.why if isinstance(error, RecordError) else error.for_client
            return _reply(400, {"field": field, "message": why})
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def serve(self) -> None:
        """Serve the endpoint until the service stops. While the port is taken, this waits and decisions continue."""
        settings = self.service.runtime.settings.previews
        told = False
        while True:
            try:
                bound = socket.create_server((settings.host, settings.port))
                break
            except OSError as error:
                if not told:
                    where = f"{settings.host}:{settings.port}"
                    log.warning("no previews: decider_port %s cannot be opened (%s)", where, error)
                told = True
                await asyncio.sleep(_REBIND_S)
        with bound:
            await server_of(self.service.runtime, self.app()).serve(sockets=[bound])


def _reply(status: int, body: dict[str, str]) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
