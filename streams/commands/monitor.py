"""`monitor`: the live view in the terminal."""

import time
from collections import Counter, deque
from pathlib import Path
from statistics import fmean

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table

from agents.space.catalogue import load_catalogue
from streams import admin
from streams.ledger import Story
from streams.settings import Settings
from streams.topics import Topics
from streams.watch import Watch

_WINDOW = 100
_LAG_EVERY_S = 5.0


@click.command()
@click.option("--refresh", default=1.0, show_default=True, help="Seconds between pictures.")
@click.option("--for", "seconds", type=float, help="Stop after so many seconds; default: until Ctrl-C.")
@click.pass_obj
def monitor(settings: Settings, refresh: float, seconds: float | None) -> None:
    """Watch throughput, lag, choices, accuracy, cost and reward as they happen, over the last 100 queries.

    Reads beside the rooms, commits nothing, and shows what comes from now on.
    """
    topics = Topics(settings)
    groups = list(load_catalogue(Path(settings.catalogue)).groups)
    apps = [topics.app_id(r) for r in ("embedder", "decider", "verifier", "aggregator")]
    apps += [topics.app_id("executor", g) for g in groups]
    watch = Watch(settings, [topics.decision, topics.answer, topics.reward, topics.dead_letter])
    times: deque[float] = deque(maxlen=_WINDOW)
    lag: dict[str, dict[str, int]] = {}
    began = last_lag = time.monotonic()
    answered = 0
    try:
        with Live(refresh_per_second=4) as live:
            while seconds is None or time.monotonic() - began < seconds:
                watch.poll(int(refresh * 1000))
                times.extend([time.monotonic()] * (len(watch.answered) - answered))
                answered = len(watch.answered)
                if time.monotonic() - last_lag > _LAG_EVERY_S or not lag:
                    lag, last_lag = admin.lag(settings, apps), time.monotonic()
                live.update(picture(watch, times, lag))
    finally:
        watch.close()


def picture(watch: Watch, times: deque[float], lag: dict[str, dict[str, int]]) -> Group:
    """Return the present picture."""
    stories = [s for s in watch.ledger.stories.values() if s.decision]
    stories = sorted(stories, key=lambda s: s.decision.seq if s.decision else 0)[-_WINDOW:]
    rate = (len(times) - 1) / max(1e-9, times[-1] - times[0]) if len(times) > 1 else 0.0
    head = Table(title="UniScale-Streams", show_header=False)
    rewards = [s.closing.reward for s in stories if s.closing and s.closing.reward is not None]
    correct = [s.closing.correct for s in stories if s.closing and s.closing.correct is not None]
    costs = [s.closing.price.eflops for s in stories if s.closing and s.closing.price]
    head.add_row(
        "decisions, answers, closed",
        f"{len(watch.ledger.stories)}, {len(watch.answered)}, {len(watch.closed)}",
    )
    head.add_row("answers a second", f"{rate:.1f}")
    head.add_row("reward, accuracy, eFLOPs", f"{_mean(rewards)}, {_mean(correct)}, {_mean(costs)}")
    head.add_row("statuses", ", ".join(f"{k} {v}" for k, v in _statuses(stories).items()) or "–")
    head.add_row("dead letters", str(len(watch.ledger.dead_letters)))
    chosen = Table("configuration", "times", "reward", title="chosen of late")
    for action, count in Counter(s.decision.action.id for s in stories if s.decision).most_common(8):
        own = [s.closing.reward for s in stories if s.decision and s.decision.action.id == action
               and s.closing and s.closing.reward is not None]  # fmt: skip
        chosen.add_row(action, str(count), _mean(own))
    behind = Table("consumer group", "lag", title="records waiting")
    for app, by_topic in lag.items():
        behind.add_row(app, str(sum(by_topic.values())))
    return Group(head, chosen, behind)


def _statuses(stories: list[Story]) -> Counter[str]:
    return Counter(s.answer.status for s in stories if s.answer)


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.4g}" if values else "–"


COMMANDS = [monitor]
