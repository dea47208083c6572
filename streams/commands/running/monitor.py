"""`monitor`: the live view in the terminal."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click
import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from agents.decider.uplift import Uplift
from agents.space.catalogue_file import load_catalogue
from streams.client import Follower, Ledger
from streams.client.comparison import compared
from streams.rooms import ROOMS
from streams.runtime.kafka.clients import admin
from streams.settings import Settings
from streams.topics import Topics

_WINDOW = 100
_KEPT = 20 * _WINDOW
_LAG_EVERY_S = 5.0


@click.command()
@click.option("--refresh", default=1.0, show_default=True, help="Seconds between updates.")
@click.option("--for", "seconds", type=float, help="Stop after this many seconds. [until Ctrl-C]")
@click.option("--once", is_flag=True, help="Print the latest queries once and stop.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print one JSON object, for scripts.")
@click.pass_obj
def monitor(settings: Settings, refresh: float, seconds: float | None, once: bool, as_json: bool) -> None:
    """Watch throughput, lag, choices, accuracy, cost and reward of the latest queries.

    It reads alongside the rooms and commits nothing. It starts with the latest records of every topic. Where there is a
    control group, the policy is compared with it over everything seen since the start; the intervals stay valid
    however often you look.
    """
    if as_json and not once:
        raise click.UsageError("--json needs --once")
    topics = Topics(settings)
    groups = tuple(load_catalogue(Path(settings.catalogue)).groups)
    apps = [app for spec in ROOMS.values() for app in spec.apps(topics, groups)]
    seen = Seen()
    follower = Follower(
        settings, ["query", "decision", "answer", "reward", "dead-letter"], tail=_WINDOW,
        on_unreadable=lambda where, error: None,
    )  # fmt: skip
    began = last_lag = time.monotonic()
    try:
        for event in follower.catch_up():
            seen.ledger.take(event)
        now = seen.numbers(admin.lag(settings, apps))
        if as_json:
            click.echo(orjson.dumps(now, option=orjson.OPT_INDENT_2).decode())
            return
        if once:
            Console().print(picture(now))
            return
        console = Console()
        with contextlib.ExitStack() as stack:
            show: Callable[[Group], None] = console.print  # into a file or a pipe: one view after another
            if console.is_terminal:
                show = stack.enter_context(Live(console=console, refresh_per_second=4)).update
            show(picture(now))
            while seconds is None or time.monotonic() - began < seconds:
                for event in follower.poll(refresh):
                    seen.ledger.take(event)
                behind = now["lag"]
                if time.monotonic() - last_lag > _LAG_EVERY_S:
                    behind, last_lag = admin.lag(settings, apps), time.monotonic()
                now = seen.numbers(behind)
                show(picture(now))
    except KeyboardInterrupt:
        return  # the usual way to leave
    finally:
        follower.close()


class Seen:
    """What was read since the start: the latest queries whole, all earlier ones in the comparison of the cohorts."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.uplift = Uplift()
        self._compared: set[str] = set()

    def numbers(self, lag: dict[str, dict[str, int]]) -> dict[str, Any]:
        """Return what is shown now."""
        stories = self.ledger.stories
        ended = [s for s in stories.values() if s.closing and s.decision and s.query_id not in self._compared]
        compared(ended, self.uplift)
        self._compared.update(story.query_id for story in ended)
        for story in list(stories.values())[:-_KEPT]:
            if story.closing or not story.decision:
                del stories[story.query_id]
                self._compared.discard(story.query_id)
        told = min(group.queries for group in self.uplift.groups.values()) > 0
        return {**numbers(self.ledger, lag), "uplift": self.uplift.report() if told else None}


def numbers(ledger: Ledger, lag: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Return what is shown, over the latest queries in the order of decisions."""
    stories = sorted((s for s in ledger.stories.values() if s.decision), key=lambda s: s.seq)[-_WINDOW:]
    closed = [s.closing for s in stories if s.closing]
    times = sorted(s.at_ms["answer"] for s in stories if s.answer)
    span_s = (times[-1] - times[0]) / 1000 if len(times) > 1 else 0.0
    waits = [s.at_ms["answer"] - s.at_ms["query"] for s in stories if s.answer and "query" in s.at_ms]
    chosen = {}
    for action, count in Counter(s.decision.action.id for s in stories if s.decision).most_common(8):
        own = [s.closing.reward for s in stories if s.decision and s.decision.action.id == action
               and s.closing and s.closing.reward is not None]  # fmt: skip
        chosen[action] = {"times": count, "reward": _mean(own)}
    return {
        "queries": len(stories),
        "unanswered": sum(s.answer is None for s in stories),
        "answers_per_s": (len(times) - 1) / span_s if span_s else None,
        "query_to_answer_ms": float(median(waits)) if waits else None,
        "reward": _mean([r.reward for r in closed if r.reward is not None]),
        "accuracy": _mean([r.correct for r in closed if r.correct is not None]),
        "eflops": _mean([r.price.eflops for r in closed if r.price]),
        "statuses": dict(Counter(s.answer.status for s in stories if s.answer)),
        "dead_letters": len(ledger.dead_letters),
        "chosen": chosen,
        "lag": lag,
    }


def picture(now: Mapping[str, Any]) -> Group:
    """Return the current view."""
    head = Table(title=f"UniScale-Streams: the latest {now['queries']} queries", show_header=False)
    head.add_row("answers per second", _n(now["answers_per_s"]))
    waited = now["query_to_answer_ms"]
    head.add_row("query to answer", "–" if waited is None else f"{waited:,.0f} ms")
    head.add_row("mean reward", _n(now["reward"]))
    head.add_row("accuracy", _n(now["accuracy"]))
    head.add_row("mean cost", f"{_n(now['eflops'])} eFLOPs")
    statuses = [f"{status} {count}" for status, count in now["statuses"].items()]
    head.add_row("answers", ", ".join([*statuses, f"none yet {now['unanswered']}"]))
    head.add_row("recent dead letters", str(now["dead_letters"]))
    chosen = Table("configuration", "times", "mean reward", title="recently chosen")
    for action, of in now["chosen"].items():
        chosen.add_row(action, str(of["times"]), _n(of["reward"]))
    behind = Table("consumer group", "records", title="waiting")
    for app, by_topic in now["lag"].items():
        behind.add_row(app, str(sum(by_topic.values())))
    if not now["lag"]:
        behind.add_row("no room has committed anything yet", "–")
    compared: list[Table | str] = []
    if uplift := now.get("uplift"):
        groups = Table("cohort", "queries", "failed", "graded", title="policy and control group")
        for cohort, count in uplift["queries"].items():
            graded = f"{uplift['feedback_rate'][cohort]:.0%}"
            groups.add_row(cohort, str(count), str(uplift["failed"][cohort]), graded)
        compared = [uplift["sentence"], groups]
    return Group(head, *compared, chosen, behind)


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _n(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


COMMANDS = [monitor]
