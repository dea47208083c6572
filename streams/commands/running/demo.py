"""`demo`: the whole system on this machine, in one command."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console
from rich.table import Table

from streams.client import Asked
from streams.commands.queries.sending import bars
from streams.demo.run import CONTROL, QUESTIONS, Demo, run
from streams.settings import Settings

_SHOWN = (
    "broker", "engine", "queries", "answers", "unanswered", "rewards", "dead_letters", "duplicates", "mode", "accuracy",
    "accuracy_last_third",
    "mean_reward_warmup", "mean_reward_policy", "mean_reward_first_third", "mean_reward_last_third",
    "mean_cost_eflops_first_third", "mean_cost_eflops_last_third", "distinct_actions", "adapted_after", "wall_s",
)  # fmt: skip


@click.command()
@click.option(
    "--questions",
    "count",
    type=click.IntRange(min=3),
    default=210,
    show_default=True,
    help="Number of questions.",
)
@click.option(
    "--questions-file",
    type=click.Path(path_type=Path),
    default=QUESTIONS,
    show_default=True,
    help="Question file in JSON lines, as for `produce`.",
)
@click.option("--seed", default=3, show_default=True, help="Seed of the shuffle and of every choice.")
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Queries in flight.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(min=0),
    help="Queries decided uniformly at random first, by a policy that begins from nothing. "
    "[none where a prior fits, else 50]",
)
@click.option(
    "--policy",
    default="contextual",
    show_default=True,
    help="Policy that chooses; docs/policies.md lists them.",
)
@click.option(
    "--accuracy",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.98,
    show_default=True,
    help="Share of the best configuration's accuracy to keep, as cheaply as possible.",
)
@click.option("--objective", help="Use a named objective instead, e.g. cost-sensitive or quality-priority.")
@click.option(
    "--control",
    default=CONTROL,
    show_default=True,
    help="Configuration that a twin of every question takes, for comparison; `none` asks each question once.",
)
@click.option(
    "--drift",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="Questions asked again once the model that was chosen most costs three times as much; 0 for none.",
)
@click.option("--broker", type=click.Choice(["embedded", "kafka", "auto"]), default="embedded", show_default=True,
              help="`kafka` needs KAFKA_HOME and Java.")  # fmt: skip
@click.option(
    "--recording", default="", help="Answer from a recording (JSON lines) instead of loading engines."
)
@click.option("--gateway", is_flag=True, help="Also serve the page, at UNISCALE_GATEWAY_PORT, while it runs.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="Folder for the summary and the report.",
)
@click.pass_obj
def demo(settings: Settings, count: int, questions_file: Path, seed: int, in_flight: int, warm_up: int | None,
         policy: str, accuracy: float, objective: str | None, control: str,
         drift: int, broker: Literal["auto", "kafka", "embedded"], recording: str, gateway: bool,
         out: Path) -> None:  # fmt: skip
    """Stream questions through the whole loop on this machine and see the choices improve.

    Starts a broker and all rooms with the six mini models and sends the questions with several in flight. The policy
    chooses for each question; its twin takes the control's configuration and is not learned from. Then the model chosen
    most costs three times as much, and some questions are asked again. Audits the log and stops everything it started.
    Prints what the policy is worth against the control, how it follows the price, and the figures, in this order;
    writes summary.json and report.html. Exits with 1 if a query has no Answer or the audit finds a discrepancy.
    """
    console = Console()
    if objective is not None:
        settings = settings.replace(objective=objective)
    weighted = objective is not None or policy != "contextual"
    what = Demo(
        out=out, questions=questions_file, count=count, seed=seed, in_flight=in_flight, warm_up=warm_up, broker=broker,
        recording=recording, policy=policy, accuracy=None if weighted else accuracy,
        control="" if control == "none" else control, gateway=gateway, drift=drift,
    )  # fmt: skip
    with bars(console) as bar:
        answered, rewarded = bar.add_task("answered", total=None), bar.add_task("rewarded", total=None)

        def progress(asked: Asked) -> None:
            bar.update(answered, completed=asked.answered, total=asked.total)
            bar.update(rewarded, completed=len(asked.rewarded), total=asked.total)

        summary = run(what, settings, console.print, progress)
    show(summary, console)
    console.print(f"{out / 'summary.json'}, {out / 'report.html'}")
    sys.exit(1 if summary["unanswered"] or summary["audit"]["wrong"] else 0)


def show(summary: Mapping[str, Any], console: Console) -> None:
    """Print what a run came to: first what choosing was worth, then how it followed the price, then figures."""
    if "sentence" in summary:
        console.print(summary["sentence"], style="bold")
    if "drift_sentence" in summary:
        console.print(summary["drift_sentence"])
    table = Table("", "", show_header=False)
    for name in _SHOWN:
        value = summary[name]
        shown = (
            f"{value:.4g}"
            if isinstance(value, float)
            else ", ".join(value)
            if isinstance(value, list)
            else str(value)
        )
        table.add_row(name, shown)
    console.print(table)


COMMANDS = [demo]
