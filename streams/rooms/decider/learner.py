"""The learner that the room decides with: recovered from its log, and with the catalogue in force on offer."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agents.decider.agent import Decider
from agents.decider.errors import CorruptState, PriorRefused
from agents.decider.log.ended import EndedIds
from agents.decider.policies.base import ActionVector
from agents.decider.policies.contextual.history.prior import digest
from agents.embedder.encoder import Encoder, encoder_id
from agents.space.action_space import ActionSpace
from agents.space.catalogue import Catalogue
from streams.rooms.decider.learner_log import LearnerLog
from streams.rooms.decider.pending import Pending
from streams.rooms.decider.policies import action_vectors, policy_of, prior_of, read_prior
from streams.runtime.base import Runtime
from streams.runtime.errors import Crash, SendFailed, Torn
from streams.runtime.records import key_of

log = logging.getLogger("streams.decider")


class Learner:
    """Keeps the learner of this shard ready, and writes its rows. Its caller holds the room's lock.

    Args:
        runtime: The room's runtime.
        encoder: Embeds the actions.
        pending: Told how many decisions the log leaves open.
        recovered: Awaited when the log's table has been read.

    Attributes:
        decider: The learner; None until it has recovered, and while another worker may be the learner.
        log: Its log on the broker.
        space: The actions on offer.
    """

    def __init__(
        self,
        runtime: Runtime,
        encoder: Encoder,
        pending: Pending,
        recovered: Callable[[], Awaitable[None]],
    ) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.encoder = encoder
        self.log = LearnerLog(runtime, recovered)
        self.decider: Decider | None = None
        self.space: ActionSpace = runtime.control.space(runtime.control.base)
        self._pending = pending
        self._catalogue_version: int | None = None

    async def ready(self) -> Decider:
        """Return the learner, with the catalogue of now on offer.

        Raises:
            CorruptState: It is not recovered yet, and its log is not whole.
        """
        decider = self.decider or await self.rebuild()
        if not self.offers(self.runtime.control.catalogue_version):
            await self._offer(decider)
        return decider

    async def rebuild(self) -> Decider:
        """Recover the learner from its log; where the log is empty, begin from the prior, if there is one.

        Raises:
            CorruptState: The log is not whole.
        """
        policy = policy_of(self.settings, self.encoder)
        decider = Decider(
            policy,
            seed=self.settings.policy.seed,
            encoder=encoder_id(self.encoder),
            limit=self.runtime.limit,
            ended=EndedIds(self.settings.policy.remembered_ids),
        )
        try:
            found = await self.log.recover(decider)
        except CorruptState as error:
            raise error.within(f"{self.log.changelog}, read with {self.log.topic}:") from error
        if (prior := prior_of(self.settings)) is not None:
            await self._begin(decider, prior)
        self._pending.recovered(found.folded.outstanding)
        self.runtime.metrics.policy_version.set(policy.version)
        self.decider, self._catalogue_version = decider, None
        return decider

    def offers(self, catalogue_version: int) -> bool:
        """Return whether the learner has taken over this catalogue."""
        return self._catalogue_version == catalogue_version

    def vectors(self, catalogue: Catalogue) -> Sequence[ActionVector]:
        """Return the actions of a catalogue as the policy sees them. Slow for actions that were never embedded."""
        cache = self.settings.state_path("actions")
        return action_vectors(catalogue, self.encoder, cache, pairs=self.runtime.control.pairs)

    def row(self, query_id: str) -> bytes | None:
        """Return the row of a query; None if there is none."""
        return self.log.table.get(key_of(query_id))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold what changes the learner and the write of its rows; if that fails, this learner is not used again.

        Raises:
            Torn: whatever failed in here, the learner may be ahead of its log.
        """
        try:
            yield
        except BaseException as error:
            self.decider = None
            if isinstance(error, Exception) and not isinstance(error, Crash):
                raise Torn("the learner may be ahead of its log") from error
            raise

    async def write(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write rows and wait until they are durable; end the room if the broker does not take them."""
        try:
            await self.log.table.put_all((*row, 0) for row in rows)
        except SendFailed as error:
            # The learner in memory is ahead of its log, which alone says what of this was written.
            self.runtime.crash("the learner's rows could not be written", error)

    async def _begin(self, decider: Decider, path: Path) -> None:
        """Begin from a prior, where the log is empty; else the log says what it began from."""
        asked = bool(self.settings.policy.prior)
        if decider.prior or decider.seq or decider.actions:
            if asked and decider.prior != digest(await self.runtime.in_thread(lambda: read_prior(path))):
                log.warning(
                    "the log began from %s; the prior %s counts for an empty log only",
                    f"prior {decider.prior}" if decider.prior else "nothing", path,
                )  # fmt: skip
            return
        prior = await self.runtime.in_thread(lambda: read_prior(path))
        catalogue = self.runtime.control.catalogue
        vectors = await self.runtime.in_thread(lambda: self.vectors(catalogue))
        try:
            records = decider.begin(prior, vectors, self.log.chunk_bytes, catalogue.pricing)
        except PriorRefused as error:
            if asked:
                raise
            # The catalogue's prior is an offer: it is for one policy, one encoder and the models of the file.
            log.info("the learner begins from nothing: %s", error)
            return
        try:
            await self.log.begin(records)
        except SendFailed as error:
            self.runtime.crash("the prior could not be written", error)
        log.info("the learner begins from prior %s", decider.prior)

    async def _offer(self, decider: Decider) -> None:
        control = self.runtime.control
        catalogue, version = control.catalogue, control.catalogue_version
        vectors = await self.runtime.in_thread(lambda: self.vectors(catalogue))
        with self.changing():
            await self.write(decider.offer(vectors, catalogue.price_factors))
        self.space, self._catalogue_version = control.space(catalogue), version
        log.info("on offer: %s", ", ".join(catalogue.model_names))
