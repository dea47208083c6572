"""Each known fault again: the fix taken out of one function. The simulator must then fail on the seeds named here.

What changes how a history is drawn, or how it runs, changes which seeds find what:
`python -m tests.simulate.without --seeds 1-400` prints the first for each fix.
"""

from __future__ import annotations

import inspect
import logging
import sys
import textwrap
from typing import Any, NamedTuple

import click
import pytest

from agents.bandit import contextual
from agents.bandit.pacing import Pacer
from agents.decider import decider, decisions
from agents.decider.failed_attempts import PreviousAttempts
from agents.decider.shares import TeachingShares
from agents.encoders import HttpEncoder
from agents.grading.pool import GradingPool
from agents.serving.health_checks import Prober
from streams.runtime.clock import BrokerClock
from streams.runtime.handler_guard import HandlerGuard
from streams.services import aggregator, executor
from streams.services.admission import Admission
from streams.services.decider import ShardLearner
from streams.services.embedder import EmbedderService
from streams.services.learner_log import LearnerLog
from streams.simulate import life
from streams.simulate.run import lived, seeds_of


class Fix(NamedTuple):
    """A fix, as the text that it consists of.

    Attributes:
        owner: The class or module with the function.
        name: The function.
        changes: What of its source is replaced, and by what.
        seeds: Seeds that fail without it.
        beside: Another part of it; either alone is enough.
    """

    owner: Any
    name: str
    changes: dict[str, str]
    seeds: tuple[int, ...]
    beside: Fix | None = None

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
        if self.beside is not None:
            self.beside.take_out(patch)


FIXES = {
    "nothing was right yet": Fix(
        Pacer,
        "shortfall",
        {
            "    if best <= 0.0:\n"
            "        return None  # no answer was right yet: the feasible share is unknown\n": ""
        },
        (198,),
    ),
    "categories are chosen once a refit has its directions": Fix(
        contextual.Estimates,
        "replace",
        {
            "        d.choose_categories(history.outcomes_by_category())\n": "",
            "    d = self.features\n": "    d = self.features\n"
            "    d.choose_categories(history.outcomes_by_category())\n",
        },
        (4000499,),
    ),
    "one question": Fix(
        contextual,  # where it is called from
        "fit_directions",
        {
            "    if len(queries) < FEW:\n"
            "        return np.array([features.transform.of(query) for query in queries])\n": "",
            "np.maximum(spread, SMALL)": "spread.copy()",
            "max(float(np.sqrt(np.mean(spread[:embedded] ** 2))), SMALL)": "np.sqrt(np.mean(spread[:embedded] ** 2))",
        },
        (157,),
    ),
    "a learner ahead of its log ends": Fix(
        ShardLearner,
        "changing",
        {
            "        self.decider = None\n": "",
            '            raise PartialWrite("the learner may be ahead of its log") from error\n': "            raise\n",
        },
        (303,),
    ),
    "a query without a vector gets its Answer": Fix(
        EmbedderService,
        "answers_for",
        {"in (None, origin)": "is None"},
        (26,),
    ),
    "tenants share the places": Fix(
        Admission, "_kind", {"return served, place.tenant": 'return True, ""'}, (87,)
    ),
    "a tenant that teaches more than the others is thinned": Fix(
        TeachingShares,
        "weight",
        {"return int(self._weight[own] <= others or self._since[own] >= THINNED - 1)": "return 1"},
        (2,),
    ),
    "rows leave the question out": Fix(
        decisions,  # where it is called from
        "without_question",
        {"text=LEFT_OUT,": ""},
        (2,),
    ),
    "a row written late undoes nothing": Fix(
        aggregator, "newer", {"return before is None or (": "return True or ("}, (68,)
    ),
    "nothing is written that follows from another reading": Fix(
        LearnerLog, "_require_current", {"if not self._reading or ": "if False and "}, (117,)
    ),
    "deadlines go by the broker's clock": Fix(
        BrokerClock,
        "now_ms",
        {"return self._wall_ms() if ahead_ms == -math.inf else": "return self._wall_ms() if True else"},
        (228,),
    ),
    "a server that embeds no text": Fix(
        HttpEncoder,
        "encode",
        {"        self._blame(error)\n": ""},
        (6,),
    ),
    "a grader that does not say": Fix(
        GradingPool,
        "_reply",
        {
            "raise GraderFailed(\n"
            '            f"{kind}: no result in {self._timeout_s:g} s" if hung else f"{kind}: its process died"\n'
            "        )": "return {'correct': False}"
        },
        (13,),
    ),
    "what a model fails to answer is learned": Fix(
        executor,  # where it is called from
        "blamed",
        {"if answer.text is not None:": "if True:"},
        (190,),
        Fix(Prober, "_probe", {"self._failed >= MOST_FAILED": "False"}, ()),
    ),
    "a question that ends processes is found": Fix(
        HandlerGuard, "_count", {"if not self._stopping:": "if False:"}, (8, 27)
    ),
    "queries for a model that is not ready are refused beyond their places": Fix(
        Admission, "_refuse", {"if turn.done() or now": "if True or now"}, (100,)
    ),
    "open rewards are bounded": Fix(
        aggregator.AggregatorService, "_crowd", {"in rewards.beyond():": "in ():"}, (15, 35)
    ),
    "what was estimated of another history is estimated again": Fix(
        life,  # where it is called from
        "repaired",
        {"refits = [key for key in log if key.startswith(REFIT_KEY)]": "refits = []"},
        (47, 128),
        Fix(contextual.Contextual, "_read_refit", {'meta["history"] != history.digest': "False"}, ()),
    ),
    "a repair does not give a number again, nor write a prior": Fix(
        life, "repaired", {"decider.seq = max(": "max("}, (1105301, 1114579)
    ),
    "a model that failed is not asked again": Fix(
        PreviousAttempts,
        "excluded_models",
        {"return failed | siblings if set(usable) - failed - siblings else failed": "return frozenset()"},
        (2, 3),
    ),
    "what a failed attempt cost counts": Fix(
        PreviousAttempts, "of", {"cost=failure.cost or 0.0": "cost=0.0"}, (10, 43)
    ),
    "a further attempt keeps the cohort": Fix(
        decisions,  # where it is called from
        "build_decision",
        {"choice.cohort if previous is None else previous.decision.cohort": "choice.cohort"},
        (9, 10),
    ),
    "a further attempt is not drawn into the control group": Fix(
        decisions, "policy_context", {"drawn=attempt == 1": "drawn=True"}, (9, 77)
    ),
    "a failed attempt that is read again ends its query": Fix(
        decider.Decider,
        "_handle_failure",
        {"if row.failure_offset == failure.offset:": "if False:"},
        (310, 441),
    ),
    "a failed attempt's row stays until what follows it has been sent": Fix(
        LearnerLog,
        "_write",
        {"unsent = decider.failure_offset > self.retried_offset": "unsent = False"},
        (7101017,),
    ),
}


@click.command()
@click.option("--seeds", default="1-400", help="Among which seeds to look.")
@click.option("--most", default=2, help="How many of them to find for each fix.")
@click.argument("names", nargs=-1)
def main(seeds: str, most: int, names: tuple[str, ...]) -> None:
    """Print the first seeds that fail without each fix, or without those named."""
    first, last = seeds_of(seeds)
    logging.disable(logging.CRITICAL)
    for name in names or FIXES:
        found: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            FIXES[name].take_out(patch)
            for seed in range(first, last + 1):
                if lived(seed).failures:
                    found.append(seed)
                if len(found) == most:
                    break
        click.echo(f"{name}: {found}")


if __name__ == "__main__":
    main()
