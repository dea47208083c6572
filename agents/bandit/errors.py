"""Errors raised by the policies and the decider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.errors import UniscaleError


class DeciderError(UniscaleError):
    """Base class of all errors raised by the policies and the decider."""


class InvalidObjective(DeciderError):
    """An objective has invalid weights, cost bounds or price. Correct the field that the message names."""

    def __init__(self, name: str, value: object, fix: str) -> None:
        super().__init__(f"objective: {name} is {value!r}; {fix}")
        self.field = name


class PolicyRefused(DeciderError, ValueError):
    """A policy cannot be built from its settings. The message names the setting and the fix."""


class PriorRefused(DeciderError):
    """A prior does not fit this deployment. Make a new one from a history, using this encoder and catalogue."""

    def __init__(self, what: str, found: object, wanted: object) -> None:
        super().__init__(
            f"prior: {what} is {found!r}, this deployment has {wanted!r}; make it again with "
            "`python -m experiments prior`"
        )
        self.field = what


class UnservedObjective(DeciderError):
    """An objective sets a target for mean cost or accuracy, but this policy does not support targets."""

    def __init__(self, query_id: str, kind: str, policy: str) -> None:
        super().__init__(
            f"{query_id}: {kind}: policy {policy!r} cannot aim at it; ask for weights, or deploy the policy "
            "'contextual'"
        )
        self.field = kind


class InvalidObservation(DeciderError):
    """A value would corrupt A or B: it is not finite, out of range, or of the wrong dimension."""

    def __init__(self, observation_id: str, name: str, value: object, fix: str) -> None:
        super().__init__(f"{observation_id}: {name} is {value!r}; {fix}")
        self.field = name


class UnknownAction(DeciderError):
    """An action id is unknown. Add the action with its description first."""

    def __init__(self, subject: str, action_id: str) -> None:
        super().__init__(f"{subject}: action {action_id!r} was never added; add it to the catalogue first")
        self.action_id = action_id


class NoAction(DeciderError):
    """No action is both active and allowed. Widen allowed_models or add a model to the catalogue."""

    def __init__(self, query_id: str, allowed: Sequence[str] | None) -> None:
        among = "the catalogue is empty" if allowed is None else f"allowed: {', '.join(sorted(allowed)[:5])}"
        super().__init__(
            f"{query_id}: no action is left to choose from ({among}); allow more models, or add one"
        )


class DuplicateQuery(DeciderError):
    """A second Query has an id that is already in use. Send it again with a new id."""

    def __init__(self, query_id: str, first: object, second: object) -> None:
        super().__init__(
            f"{query_id}: this query_id belongs to the Query at {first}, and another came at {second}; send a new id"
        )


class CorruptState(DeciderError):
    """The bytes are not a complete, unaltered state. Use an earlier snapshot, or fold the log again."""

    def __init__(
        self, what: str, found: object, wanted: object, fix: str = "use an earlier state or fold the log"
    ) -> None:
        super().__init__(f"{what}: found {found!r}, wanted {wanted!r}; {fix}")
        self.what, self.found, self.wanted, self.fix = what, found, wanted, fix

    def within(self, whole: str) -> CorruptState:
        """Return the same error, also naming the object that contains the faulty part."""
        return CorruptState(f"{whole} {self.what}", self.found, self.wanted, self.fix)


FIX_LOG: Final = (
    "`python -m streams learner check` names every record that is refused, `learner repair` removes them"
)
"""Suggested fix for a log with missing rows, or with rows from a different log."""

FIX_PRIOR: Final = (
    "the learner began from this prior, which no row of the log holds: go back to the policy settings that wrote it, "
    "or start over with `python -m streams learner reset`"
)
"""Suggested fix for a prior in the log that is damaged or was written under different settings."""
