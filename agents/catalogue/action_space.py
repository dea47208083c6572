"""The unified inference scaling space (Table 1): every available joint configuration a = (M, QP, CP, BS).

QP and CP are powers of two with QP·CP ≤ 64, which gives 28 pairs, and CP determines BS. Six models that can run every
pair therefore have 168 actions. Actions are sorted by model (in catalogue order), then by QP, then by CP, so appending
a model to the catalogue does not change the index of any existing action.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from agents.catalogue.models import ActionError, Catalogue
from schemas.action import Action

MAX_DRAFTS = 64  # QP·CP ≤ 2⁶
WIDTHS = tuple(2**n for n in range(7))


def beam_size(cp: int) -> int:
    """Return the BS that belongs to a CP (Table 1): 1 up to CP 2, 2 up to CP 8, and 4 up to CP 64.

    Raises:
        ActionError: CP is outside 1…64.
    """
    if not 1 <= cp <= MAX_DRAFTS:
        raise ActionError(f"cp is {cp}: choose 1 to {MAX_DRAFTS}")
    return 1 if cp <= 2 else 2 if cp <= 8 else 4


PAIRS = tuple((qp, cp) for qp in WIDTHS for cp in WIDTHS if qp * cp <= MAX_DRAFTS)
"""Every (QP, CP) of Table 1."""


def parse_pairs(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Parse pairs such as `4/16`; return them in the order of Table 1. An empty list or just `all` means every pair.

    >>> parse_pairs(["4/16", "1/1"])
    ((1, 1), (4, 16))

    Raises:
        ActionError: A text is not a pair of Table 1.
    """
    if list(texts) == ["all"]:
        return PAIRS
    named = {f"{qp}/{cp}": (qp, cp) for qp, cp in PAIRS}
    if unknown := [text for text in texts if text not in named]:
        raise ActionError(
            f"{unknown[0]!r} is not a QP/CP pair in the action space: use powers of two with QP·CP up to "
            f"{MAX_DRAFTS}, such as 4/16"
        )
    wanted = {named[text] for text in texts}
    return tuple(pair for pair in PAIRS if pair in wanted) or PAIRS


@dataclass(frozen=True)
class ActionSpace:
    """Actions in a stable order, each identified by its index."""

    actions: tuple[Action, ...]
    _index: dict[Action, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Reject an empty space, or one with duplicates."""
        if not self.actions:
            raise ActionError("there is no action: allow at least one model of the catalogue")
        index = {action: at for at, action in enumerate(self.actions)}
        if len(index) < len(self.actions):
            twice = next(action for at, action in enumerate(self.actions) if index[action] != at)
            raise ActionError(f"{twice} appears twice among the actions: remove one")
        object.__setattr__(self, "_index", index)

    def __len__(self) -> int:
        """Return the number of actions."""
        return len(self.actions)

    def __iter__(self) -> Iterator[Action]:
        """Iterate over the actions in order."""
        return iter(self.actions)

    def __getitem__(self, index: int) -> Action:
        """Return the action at an index."""
        return self.actions[index]

    def __contains__(self, action: object) -> bool:
        """Return whether an action is in the space."""
        return action in self._index

    @property
    def models(self) -> tuple[str, ...]:
        """Return the distinct models, in order."""
        return tuple(dict.fromkeys(action.model for action in self.actions))

    def index(self, action: Action) -> int:
        """Return the index of an action.

        Raises:
            ActionError: The space does not contain it.
        """
        try:
            return self._index[action]
        except KeyError:
            raise ActionError(self._why_not(action)) from None

    def restrict(self, models: Collection[str]) -> "ActionSpace":
        """Return the space with only the actions of the given models, in the same order.

        Raises:
            ActionError: A model has no action here, or no action is left.
        """
        if unknown := sorted(set(models) - set(self.models)):
            raise ActionError(
                f"model {unknown[0]!r} is not in the space; choose one of {', '.join(self.models)}"
            )
        return ActionSpace(tuple(action for action in self.actions if action.model in models))

    def choices(
        self,
        *,
        pinned: Action | None = None,
        allowed_models: Collection[str] | None = None,
        available_models: Collection[str] | None = None,
        answers: int = 1,
        one_sample: bool = False,
    ) -> tuple[int, ...]:
        """Return the indices a query may choose from.

        Args:
            pinned: The action that the query is pinned to, if any.
            allowed_models: Models that the query accepts; None accepts all.
            available_models: Models with a live executor; None means all.
            answers: Number of answers that the query asks for; QP·CP must be at least this large.
            one_sample: Whether QP·CP must be 1.

        Raises:
            ActionError: No action is left. The message names the field that ruled out the last ones.
        """
        if allowed_models is not None and (unknown := sorted(set(allowed_models) - set(self.models))):
            raise ActionError(f"allowed_models holds {unknown[0]!r}; choose one of {', '.join(self.models)}")
        at = range(len(self)) if pinned is None else (self._pinned(pinned),)
        accepted = [i for i in at if allowed_models is None or self.actions[i].model in allowed_models]
        if not accepted:
            asked = f"pin_action's model {pinned.model!r} is not in it" if pinned else "it is empty"
            raise ActionError(f"allowed_models leaves no action: {asked}; allow a model of the space")
        accepted = [i for i in accepted if self.actions[i].samples >= answers]
        if not accepted:
            asked = (
                f"pin_action {pinned} drafts fewer paths"
                if pinned
                else "no configuration drafts that many paths"
            )
            raise ActionError(f"n is {answers}, but {asked}; ask for fewer answers")
        if one_sample and not (accepted := [i for i in accepted if self.actions[i].samples == 1]):
            raise ActionError("one sample is required, and no configuration draws one; allow another model")
        left = tuple(
            i for i in accepted if available_models is None or self.actions[i].model in available_models
        )
        if not left:
            wanted = ", ".join(dict.fromkeys(self.actions[i].model for i in accepted))
            raise ActionError(f"no executor is running for {wanted}: start one, or allow another model")
        return left

    def _pinned(self, action: Action) -> int:
        try:
            return self.index(action)
        except ActionError as error:
            raise ActionError(f"pin_action: {error}") from None

    def _why_not(self, action: Action) -> str:
        if action.model not in self.models:
            return f"model {action.model!r} is not in the space; choose one of {', '.join(self.models)}"
        here = [a for a in self.actions if (a.model, a.qp, a.cp) == (action.model, action.qp, action.cp)]
        if here:
            return f"bs is {action.bs} for cp {action.cp}; this space has {here[0].bs}"
        asked = f"qp {action.qp} with cp {action.cp}"
        if (action.qp, action.cp) in PAIRS:
            pairs = dict.fromkeys(f"{a.qp}/{a.cp}" for a in self.actions if a.model == action.model)
            return f"{asked} is not on offer; choose qp/cp from {', '.join(pairs)}"
        return f"{asked} is not in the space: use powers of two with qp·cp up to {MAX_DRAFTS}"


def uis_space(catalogue: Catalogue, pairs: Sequence[tuple[int, int]] = PAIRS) -> ActionSpace:
    """Return the action space of a catalogue (Table 1): 28 actions for each model that can run every pair.

    Args:
        catalogue: The models.
        pairs: The available pairs (QP, CP).
    """
    return ActionSpace(
        tuple(
            Action(model=m, qp=qp, cp=cp, bs=beam_size(cp))
            for m in catalogue.model_names
            for qp, cp in pairs_of(catalogue, m, pairs)
        )
    )


def pairs_of(catalogue: Catalogue, model: str, pairs: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return the available pairs (QP, CP) that a model can run.

    Without a verifier, candidates cannot be ranked, so CP is 1; if no such pair is available, the result is (1, 1).
    A chat endpoint ignores `pairs`: CP is 1, and the endpoint's `n` lists its values of QP.
    """
    endpoint = catalogue.model(model).endpoint
    if endpoint.kind == "chat":
        return tuple((n, 1) for n in endpoint.n)
    if catalogue.verifier_of(model) is not None:
        return pairs
    return tuple(pair for pair in pairs if pair[1] == 1) or ((1, 1),)
