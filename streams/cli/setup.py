"""`init` writes a configuration file for given servers, and `check` looks for mistakes in a configuration."""

import asyncio
import os
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from agents.catalogue.file import read_yaml
from agents.catalogue.list_prices import SOURCE, list_price
from agents.serving.errors import EndpointRefusedError, EngineUnreachableError, ServingError
from agents.serving.http import JsonServer, Keys, ServerSettings
from agents.serving.listing import Listed, listed, proxied
from schemas.errors import InvalidField, UniscaleError
from schemas.prices import rate_in_words
from streams.cli.control_records import control_state
from streams.settings import Settings
from streams.setup.starter import ASSUMED, FILL_IN, Kind, Source, starter, unfilled
from streams.words import counted

F = TypeVar("F", bound=Callable[..., Any])

# `init`: write one commented file for the servers given.

KEY_ENV: Final = {"openai": "OPENAI_API_KEY", "litellm": "LITELLM_API_KEY"}
"""The environment variable containing a server's API key if no variable is named and this one is set."""

MOST_MODELS: Final = 12
"""Maximum number of models to use from a server if none are named. Hosted APIs list dozens, most unable to chat."""

_PATIENCE_S: Final = 20.0


class SetupRefused(UniscaleError):
    """No file can be written with these options. The message names the option at fault and the fix."""


class _Asked(Struct, frozen=True):
    """A server as named on the command line: `URL[,KEY_ENV]`."""

    kind: Kind
    url: str
    key_env: str = ""

    @property
    def option(self) -> str:
        return f"--{self.kind} {self.url}"

    @classmethod
    def read(cls, kind: Kind, text: str) -> "_Asked":
        """Return the server named by an option's value.

        Raises:
            SetupRefused: the value is not an address, or names a variable that is not set.
        """
        url, _, named = (part.strip() for part in text.partition(","))
        if not url.startswith(("http://", "https://")):
            raise SetupRefused(f"--{kind} {url}: is not an address; give one such as http://127.0.0.1:8000")
        if kind == "vllm" and named:
            raise SetupRefused(
                f"--vllm {text}: a key of vLLM is given by UNISCALE_ENGINE_KEY; leave out the name after the comma"
            )
        if named and not os.environ.get(named):
            raise SetupRefused(
                f"--{kind} {text}: {named} is not set; export {named}=…, or leave out its name"
            )
        usual = KEY_ENV.get(kind, "")
        return cls(kind, url, named or (usual if os.environ.get(usual) else ""))


def _servers(kind: Kind, what: str) -> Callable[[F], F]:
    return click.option(f"--{kind}", kind, multiple=True, metavar="URL", help=f"{what}; repeatable.")


@click.command("init")
@_servers("vllm", "A server started by `vllm serve`: searches step by step")
@_servers("openai", "Any server of OpenAI's chat completions, as URL or URL,KEY_ENV: whole answers")
@_servers("litellm", "LiteLLM's proxy, as URL or URL,KEY_ENV: whole answers, contexts and prices from it")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="Only models whose name at the server is this, * matching anything; repeatable. [all]",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("uniscale.yaml"),
    help="The file to write.",
)
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.pass_obj
def init(
    settings: Settings, /, models: tuple[str, ...], output: Path, force: bool, **given: tuple[str, ...]
) -> None:
    """Write one commented configuration file that serves the models of your servers.

    Reads /v1/models on each server, and /model/info on LiteLLM's proxy. KEY_ENV names the environment variable
    containing the server's API key, by default OPENAI_API_KEY or LITELLM_API_KEY if it is set; a vLLM server's key is
    in UNISCALE_ENGINE_KEY. Values that no server states, such as some prices, are assumed, and their lines are marked
    FILL IN.
    """
    asked = [_Asked.read(kind, text) for kind in ("vllm", "openai", "litellm") for text in given[kind]]
    if not asked:
        raise click.UsageError("give at least one of --vllm URL, --openai URL, --litellm URL")
    if output.exists() and not force:
        raise SetupRefused(f"{output}: exists; give another --output, or --force to overwrite it")
    sources = [asyncio.run(_source(each, settings, models)) for each in asked]
    text = starter(sources)
    output.write_text(text, encoding="utf-8")
    names = [each["name"] for each in read_yaml(output, "a configuration file")["catalogue"]["models"]]
    click.echo(f"{output}: {counted(len(names), 'model')}: {', '.join(names)}")
    left = unfilled(text)
    if assumed := sum(line.startswith("price:") for _, line in left):
        click.echo(
            f"no price is known for {counted(assumed, 'model')}; assumed: {rate_in_words(ASSUMED)}; "
            f"change `price` in {output}; `calibrate` measures that of a machine of your own"
        )
    if left:
        click.echo(
            f"{counted(len(left), 'line')} marked {FILL_IN} in {output}: correct or keep each, then delete its mark"
        )
    elsewhere = "" if str(output) == Settings().config else f"--config {output} "
    click.echo(
        f"next: python -m streams {elsewhere}check; then python -m streams {elsewhere}up --broker auto --gateway"
    )


async def _source(asked: _Asked, settings: Settings, wanted: tuple[str, ...]) -> Source:
    """Ask a server for its models.

    Raises:
        SetupRefused: the server does not answer, or has no suitable model; the message names the option and the fix.
    """
    if asked.kind == "vllm":
        key, name = (
            Keys.read(settings.engine.keys, settings.engine.key, [asked.url]).of(asked.url),
            "UNISCALE_ENGINE_KEY",
        )
    else:
        key, name = os.environ.get(asked.key_env, ""), asked.key_env or KEY_ENV[asked.kind]
    server = JsonServer(ServerSettings(url=asked.url, api_key=key, read_timeout_s=_PATIENCE_S))
    try:
        found = await (proxied if asked.kind == "litellm" else listed)(server)
    except ServingError as error:
        raise SetupRefused(f"{asked.option}: {error}{_advice(asked, error, name, bool(key))}") from None
    finally:
        await server.close()
    chosen = _chosen(asked, found, wanted)
    if asked.kind == "openai":
        chosen = [_listed_price(each, asked.url) for each in chosen]
    return Source(kind=asked.kind, url=asked.url, key_env=asked.key_env, models=chosen)


def _listed_price(model: Listed, url: str) -> Listed:
    """Return a model with its list price, or unchanged if the price is unknown."""
    try:
        return msgspec.structs.replace(model, price=list_price(url, model.id), priced_by=SOURCE)
    except InvalidField:
        return model


def _advice(asked: _Asked, error: ServingError, name: str, sent: bool) -> str:
    if isinstance(error, EngineUnreachableError):
        return ""  # it says so itself
    if not isinstance(error, EndpointRefusedError):
        return f"; correct the address after --{asked.kind}"
    if "HTTP 401" in str(error) or "HTTP 403" in str(error):
        return f"; the key of {name} was sent: correct it" if sent else f"; no key was sent: export {name}=…"
    return f"; give the address up to and without /v1, and another option if it is not {asked.kind}"


def _chosen(asked: _Asked, found: list[Listed], wanted: tuple[str, ...]) -> list[Listed]:
    usable = [each for each in found if "*" not in each.id]
    names = ", ".join(each.id for each in usable)
    if not usable:
        raise SetupRefused(
            f"{asked.option}: lists no models; load or configure one there, and run init again"
        )
    if asked.kind == "vllm" and not any(each.root for each in usable):
        raise SetupRefused(
            f"{asked.option}: does not look like vLLM, whose models have a `root`; use --openai for this server"
        )
    if not wanted:
        if len(usable) > MOST_MODELS:
            raise SetupRefused(
                f"{asked.option}: lists {len(usable)} models; name yours with --model: {names}"
            )
        return usable
    chosen = [each for each in usable if any(fnmatchcase(each.id, pattern) for pattern in wanted)]
    if not chosen:
        raise SetupRefused(
            f"{asked.option}: none of its models is {' or '.join(wanted)}; --model takes: {names}"
        )
    return chosen


# `check`: print a table of findings about a configuration.


@click.command("check")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_context
def check(context: click.Context, file: Path | None) -> None:
    """Look for mistakes in FILE, a configuration (uniscale.yaml) or a catalogue, before `up` runs into them.

    Requests one token from every server with its entry's parameters, and checks contexts, prices, units, the prior and
    the topics. Prints what it found and what to do. Exits with 1 if anything would fail.
    """
    from streams.setup.checking import Finding, findings_of  # imports numpy and the services

    settings = _settings(context, file)
    findings = findings_of(settings, lambda line: click.echo(line, err=True))
    absent = any(
        each.about == "broker" or (each.about, each.state) == ("topics", "note") for each in findings
    )
    if not absent:
        control_state(settings, lambda said: findings.append(Finding("control", "note", said)))
    table = Table("looked at", "", "found", "what to do", title=settings.catalogue)
    for each in findings:
        table.add_row(each.about, each.state, each.what, each.fix)
    Console(markup=False, highlight=False).print(table)
    failing = sum(each.state == "fails" for each in findings)
    notes = sum(each.state == "note" for each in findings)
    click.echo(f"{failing} would fail, {notes} worth knowing")
    sys.exit(1 if failing else 0)


def _settings(context: click.Context, file: Path | None) -> Settings:
    """Return the settings with FILE as the configuration or catalogue, or the command line's settings without FILE."""
    assert context.parent is not None
    if file is None:
        settings: Settings = context.obj
        return settings
    catalogue = "models" in (content := read_yaml(file, "a configuration file")) or "family" in content
    flags = {**context.parent.params, "catalogue" if catalogue else "config": str(file)}
    return Settings.from_env(os.environ, **flags)


COMMANDS = [init, check]
