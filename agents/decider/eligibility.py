"""Which configurations a query may get, given its requirements, the running executors and any earlier failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agents.catalogue.action_space import ActionSpace
from agents.catalogue.control_state import ControlState
from agents.catalogue.models import ActionError
from agents.decider.categories import NO_KEYS, ContextKeys
from agents.decider.sessions import Sessions, session_of
from schemas.chat import FIELDS, ONE_SAMPLE, Requirement, nobody_has
from schemas.query import Query, QueryContext

_TOKEN_BYTES: Final = 3
"""Question bytes allowed per token of context. Prose has four or five bytes per token, code and most other scripts have
three; the difference leaves room for an answer."""


@dataclass(frozen=True, slots=True)
class DecisionEnvironment:
    """Everything a decision depends on besides the query and the policy.

    Attributes:
        control: The current catalogue and objectives.
        space: The available actions in that catalogue.
        living: Models with a recent executor heartbeat; None assumes that all are running.
        waiting: Models in that catalogue that are not available yet because no server has embedded their actions.
        excluded: Models left out because an earlier attempt at the query failed there.
        context_keys: The metadata keys that the policy learns from.
        session_s: How long a session keeps its configuration after a turn, in seconds; 0 to never keep it.
    """

    control: ControlState
    space: ActionSpace
    living: frozenset[str] | None = None
    waiting: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    context_keys: ContextKeys = NO_KEYS
    session_s: float = 0.0

    def choices(self, query: Query) -> tuple[int, ...]:
        """Return the indices of the actions available to a query.

        Raises:
            ActionError: The query's pin, allowed models and requirements, and the running executors, leave no action.
        """
        pinned, allowed = query.pinned, query.allowed_models
        asked = {pinned.model} if pinned is not None else set(allowed or ())
        if asked and asked <= self.waiting:
            field = "pin_action" if pinned is not None else "allowed_models"
            raise ActionError(
                f"{field}: {', '.join(sorted(asked))}: not on offer yet, because its descriptions are not embedded "
                "(the decider's log says why); try again later, or allow another model"
            )
        unable = frozenset(self.unable_models(query))
        if unable and unable >= (asked or set(self.space.models)):
            lacking = self.control.catalogue.lacking(query.required, asked or None) or query.required[0]
            raise ActionError(f"{FIELDS[lacking][0]} {nobody_has(lacking)}")
        if unable:
            allowed = tuple(model for model in allowed or self.space.models if model not in unable)
        living, left_out = self.living, self.short_models(query) | self.excluded
        if left_out:
            living = (frozenset(self.space.models) if living is None else living) - left_out
        return self.space.choices(
            pinned=pinned,
            allowed_models=None if allowed is None else [m for m in allowed if m not in self.waiting],
            available_models=living,
            answers=query.n,
            one_sample=not ONE_SAMPLE.isdisjoint(self.required(query)),
        )

    def session_action(self, record: QueryContext, sessions: Sessions) -> str:
        """Return the configuration that a query keeps from its session's last turn; "" if the choice is free."""
        last = sessions.last(session_of(record.query))
        if last is None or record.query.pinned is not None:
            return ""
        if record.appended_ms - last.at_ms > 1000 * self.session_s:
            return ""
        return last.action if last.action in {self.space[i].id for i in self.choices(record.query)} else ""

    def required(self, query: Query) -> tuple[Requirement, ...]:
        """Return a query's requirements, without greedy sampling if no available action draws a single sample."""
        needs = query.required
        if "greedy" not in needs:
            return needs
        allowed = query.allowed_models or self.space.models
        able = set(allowed).difference(self.unable_models(query))
        single = any(action.samples == 1 for action in self.space if action.model in able)
        return needs if single else tuple(each for each in needs if each != "greedy")

    def unable_models(self, query: Query) -> tuple[str, ...]:
        """Return the models that lack something the query requires."""
        if not (needs := query.required):
            return ()
        catalogue = self.control.catalogue
        return tuple(name for name in self.space.models if not catalogue.model(name).honours(needs))

    def masked_models(self) -> tuple[str, ...]:
        """Return the models excluded because no executor serves them."""
        return () if self.living is None else tuple(m for m in self.space.models if m not in self.living)

    def short_models(self, query: Query) -> frozenset[str]:
        """Return the models whose context may be too short for a question and its answer; empty if no other is left."""
        if query.pinned is not None:
            return frozenset()
        size, catalogue = len(query.question.encode()), self.control.catalogue
        short = frozenset(
            name
            for name in self.space.models
            if size > catalogue.model(name).engine.context_tokens * _TOKEN_BYTES
        )
        able = set(self.space.models).difference(self.excluded, self.unable_models(query))
        if self.living is not None:
            able &= self.living
        if query.allowed_models is not None:
            able &= set(query.allowed_models)
        return short if able - short else frozenset()

    def serves(self, query: Query) -> bool:
        """Return whether any action is available to a query."""
        try:
            return bool(self.choices(query))
        except ActionError:
            return False
