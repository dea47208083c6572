"""Each known fault again: the fix taken out of one function. The simulator must then fail on the seeds named here."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any, NamedTuple

import pytest

from agents.answers import GradingPool
from agents.bandit import prior
from agents.bandit.pacing import RecentContexts
from agents.decider.shares import TeachingShares
from agents.embedding import HttpEncoder
from streams.runtime.clock import BrokerClock
from streams.services import aggregator
from streams.services.decider import ShardLearner
from streams.services.embedder import Admission, EmbedderService


class Fix(NamedTuple):
    """A fix, as the text that it consists of.

    Attributes:
        owner: The class or module with the function.
        name: The function.
        changes: What of its source is replaced, and by what.
        seeds: Seeds that fail without it.
    """

    owner: Any
    name: str
    changes: dict[str, str]
    seeds: tuple[int, ...]

    def take_out(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the function by one without the fix."""
        function = inspect.unwrap(getattr(self.owner, self.name))
        source = textwrap.dedent(inspect.getsource(function))
        for text, instead in self.changes.items():
            assert text in source, f"{self.name} does not hold this fix any more: {text!r}"
            source = source.replace(text, instead)
        scope = dict(vars(sys.modules[function.__module__]))
        exec("from __future__ import annotations\n" + source, scope)
        patch.setattr(self.owner, self.name, scope[self.name])


FIXES = {
    "nothing was right yet": Fix(
        RecentContexts,
        "shortfall",
        {
            "    if best <= 0.0:\n"
            "        return None  # nothing was right yet: what share can be had is not known\n": ""
        },
        (),
    ),
    "one question": Fix(
        prior,
        "fit_directions",
        {
            "    if len(queries) < FOLDS:\n        return np.array([features.short(query) for query in queries])\n": "",
            "np.maximum(spread, SMALL)": "spread.copy()",
            "max(float(np.sqrt(np.mean(spread[:embedded] ** 2))), SMALL)": "np.sqrt(np.mean(spread[:embedded] ** 2))",
        },
        (),
    ),
    "a learner ahead of its log ends": Fix(
        ShardLearner,
        "changing",
        {'            raise Torn("the learner may be ahead of its log") from error\n': "            raise\n"},
        (),
    ),
    "a query without a vector gets its Answer": Fix(
        EmbedderService,
        "answers_for",
        {"in (None, origin)": "is None"},
        (1600, 1000579),
    ),
    "tenants share the places": Fix(
        Admission, "_kind", {"return served, place.tenant": 'return True, ""'}, (5, 199)
    ),
    "no tenant teaches more than the others": Fix(
        TeachingShares, "weight", {"return int(self._weight[own] <= others)": "return 1"}, (3, 28)
    ),
    "a row written late undoes nothing": Fix(
        aggregator, "newer", {"return before is None or (": "return True or ("}, ()
    ),
    "deadlines go by the broker's clock": Fix(
        BrokerClock,
        "now_ms",
        {"return self._wall_ms() if ahead_ms == -math.inf else": "return self._wall_ms() if True else"},
        (131, 254),
    ),
    "a server that embeds no text": Fix(
        HttpEncoder,
        "encode",
        {"        self._blame(error)\n": ""},
        (2, 19),
    ),
    "a grader that does not say": Fix(
        GradingPool,
        "_verdict",
        {
            "raise GraderFailed(\n"
            '            f"{kind}: no result in {self._timeout_s:g} s" if hung else f"{kind}: its process died"\n'
            "        )": "return Verdict(correct=False, how=kind)"
        },
        (59, 106),
    ),
}
