"""The paper's a = (M, QP, CP, BS): model, question parallelism, candidate parallelism, beam size (§3.1)."""

from msgspec import Struct

from schemas.errors import InvalidField
from schemas.record import check_name

MAX_DRAFTS = 4096
"""Maximum number of drafts in one search step. Table 1 stops at 64."""


class Action(Struct, frozen=True, kw_only=True, order=True):
    """One joint configuration. `agents.catalogue` defines which configurations exist.

    Attributes:
        model: Name of the generator in the catalogue.
        qp: Question parallelism: the number of independent subtrees, at least 1.
        cp: Candidate parallelism: the number of drafts per subtree at the root; after that, CP/BS per kept path.
        bs: Beam size: the number of paths kept per subtree, from 1 to cp.
    """

    model: str
    qp: int
    cp: int
    bs: int

    def __post_init__(self) -> None:
        """Reject an action without a model or with a count out of range."""
        if not self.model:
            raise InvalidField("Action", "model", "is empty; name a model of the catalogue")
        check_name("Action", "model", self.model)
        for field in ("qp", "cp", "bs"):
            if not 1 <= getattr(self, field) <= 1024:
                raise InvalidField(
                    "Action", field, f"is {getattr(self, field)}; give a whole number from 1 to 1024"
                )
        if self.qp * self.cp > MAX_DRAFTS:
            why = f"is {self.qp} with cp {self.cp}; keep qp·cp, the drafts of a step, at most {MAX_DRAFTS}"
            raise InvalidField("Action", "qp", why)
        if self.bs > self.cp:
            raise InvalidField("Action", "bs", f"is {self.bs} with cp {self.cp}; keep at most cp paths")

    @property
    def samples(self) -> int:
        """Return QP·CP, the number of paths the search starts with."""
        return self.qp * self.cp

    @property
    def id(self) -> str:
        """Return `model/qp/cp/bs`, an id that never changes.

        >>> Action(model="qwen3-8b", qp=4, cp=16, bs=4).id
        'qwen3-8b/4/16/4'
        """
        return f"{self.model}/{self.qp}/{self.cp}/{self.bs}"

    def __str__(self) -> str:
        """Return the id."""
        return self.id

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Return the action with this id. The model name may contain slashes.

        >>> Action.parse("Qwen/Qwen3-8B/1/1/1").model
        'Qwen/Qwen3-8B'

        Raises:
            InvalidField: The text is not `model/qp/cp/bs`.
        """
        parts = text.rsplit("/", 3)
        if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts[1:]):
            raise InvalidField(
                "Action", "", f"is {text[:80]!r}; write model/qp/cp/bs, for instance mini-3/4/16/4"
            )
        # Truncate first: a count with many digits is out of range anyway, and int() would be slow on it.
        qp, cp, bs = (int(part[:8]) for part in parts[1:])
        return cls(model=parts[0], qp=qp, cp=cp, bs=bs)
