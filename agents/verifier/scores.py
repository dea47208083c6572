"""From what a process reward model answers to scores: pure, and strict about counts.

A reply with another number of rows than step tags is an error. Public code turns it into a score of zero,
which prunes a good path and tells nobody.
"""

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from agents.serving.errors import EngineReplyError, ServingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agents.verifier.formats import Rendered

ROUNDING = 1e-6  # a float32 softmax may leave [0, 1] by about this much


class ScoreCountError(ServingError):
    """A verifier answered with another number of scores than steps. Check its step tag and pooling type."""


class ScoreRangeError(ServingError):
    """A verifier answered with a score outside [0, 1] or not a number. Check its activation and weights."""


def last_score(rows: "NDArray[np.float32]", rendered: "Rendered", good_label: int, model: str) -> float:
    """Return the score of a path's last step.

    Args:
        rows: Class probabilities, one row a step tag (STEP pooling) or one a token (ALL pooling).
        rendered: The prompt they answer, with the positions of its step tags.
        good_label: Column of the class `right`.
        model: Named in errors.

    Raises:
        ScoreCountError: The rows fit neither the step tags nor the tokens, or have no such column.
        ScoreRangeError: The number is not a probability.
    """
    if len(rows) == len(rendered.positions):
        row = rows[-1]
    elif len(rows) == len(rendered.token_ids):
        row = rows[rendered.positions[-1]]
    else:
        raise ScoreCountError(
            f"{model}: {len(rows)} scores for {len(rendered.positions)} steps in "
            f"{len(rendered.token_ids)} tokens; check the verifier's step tag and pooling type"
        )
    if good_label >= len(row):
        raise ScoreCountError(
            f"{model}: {len(row)} classes, but good_label is {good_label}; correct good_label"
        )
    score = float(row[good_label])
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise ScoreRangeError(f"{model}: a score of {score} is no probability; check the pooler's activation")
    return min(1.0, max(0.0, score))


class PoolingItem(msgspec.Struct):
    """One prompt's part of a reply of `/pooling`."""

    index: int
    data: list[list[float] | float]


class PoolingReply(msgspec.Struct):
    """A reply of `/pooling`; servers send more."""

    data: list[PoolingItem]


def pooling_rows(reply: dict[str, Any], prompts: int) -> "list[NDArray[np.float32]]":
    """Return the rows of each prompt from a reply of `/pooling`, in the order of the prompts.

    Raises:
        EngineReplyError: The reply is not one row set for each prompt.
    """
    try:
        items = msgspec.convert(reply, PoolingReply).data
    except msgspec.ValidationError as error:
        raise EngineReplyError(f"/pooling: unexpected reply: {error}") from error
    if sorted(item.index for item in items) != list(range(prompts)):
        raise EngineReplyError(f"/pooling: {len(items)} results for {prompts} prompts")
    try:
        rows = [
            np.asarray(item.data, dtype=np.float32) for item in sorted(items, key=lambda item: item.index)
        ]
    except ValueError as error:
        raise EngineReplyError(f"/pooling: rows of unequal length: {error}") from error
    return [each[:, None] if each.ndim == 1 else each for each in rows]
