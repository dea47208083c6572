"""How large this repository is and how much it has grown, measured in one way: `python -m tests.size`.

Code lines are those that are left after ruff's formatter at 100 columns, fmt comments ignored, without blank lines,
comments and docstrings. So neither packing lines nor dropping docstrings makes a number better. `--sample` prints
docstrings and comments drawn at random instead, for a reader to judge.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click

ROOT = Path(__file__).parent.parent
PRODUCT = ("schemas", "agents", "streams")
AREAS = (*PRODUCT, "experiments", "bench", "examples", "tests")
PACKAGES = (*PRODUCT, "experiments", "bench")
JAVASCRIPT, SQL = "static JavaScript", "SQL"
FMT = re.compile(r"#\s*fmt:\s*(?:skip|off|on)\b")
DIRECTIVE = re.compile(r"#\s*(?:fmt|noqa|type|mypy|pragma|ruff)\b|#!")
MEASURES = {
    "modules": "modules that are not `__init__`",
    "one_importer": "modules imported by exactly one other",
    "classes_twice": "class names defined twice or more",
    "depth": "depth below the top folders",
    "fmt_skips": "`# fmt: skip` and `off`",
    "commands": "leaf commands of `python -m streams`",
    "walk": "modules a query runs through",
}
SILENT = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}


Lines = Counter[str]
"""Of a file or area: `files`; lines that are `physical`, `code` or `docstrings`; lines with `comments`."""


def tracked(root: Path) -> list[Path]:
    """Return the files git tracks, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (root / (path := Path(name))).is_file()]


def last_release(root: Path) -> str | None:
    """Return the newest tag, or else the commit that wrote the changelog's newest version; None before both."""
    for asked in (
        "git describe --tags --abbrev=0",
        r"git log -1 --format=%h -G^##.[0-9]+\.[0-9]+\.[0-9]+ -- CHANGELOG.md",
    ):
        found = subprocess.run(asked.split(), cwd=root, capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip():
            return found.stdout.strip()
    return None


@contextmanager
def checked_out(root: Path, commit: str) -> Iterator[tuple[Path, list[Path]]]:
    """Yield a folder that holds the files of a commit, and their relative paths."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(["git", "archive", commit], cwd=root, capture_output=True)
        if packed.returncode:
            raise SystemExit(
                f"error: --since {commit}: {packed.stderr.decode().strip()}; give a commit or a tag"
            )
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
            yield Path(folder), [Path(each.name) for each in archive if each.isfile()]


def formatted(root: Path, files: Sequence[Path]) -> dict[Path, str]:
    """Return each Python file as ruff writes it at 100 columns where no comment forbids it."""
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            (copy := Path(folder) / file).parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(FMT.sub("", (root / file).read_text()))
        ruff = f"{sys.executable} -m ruff format --isolated --no-cache --quiet --target-version py311"
        subprocess.run([*ruff.split(), "--line-length", "100", folder], check=True)
        return {file: (Path(folder) / file).read_text() for file in files}


def docstrings(source: str) -> Iterator[tuple[range, str]]:
    """Yield the lines and the text of every string that stands alone, in any order."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield range(node.lineno, (node.end_lineno or node.lineno) + 1), inspect.cleandoc(text)


def comments(source: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the comments that no tool reads."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            yield token


def passages(source: str) -> list[tuple[int, str]]:
    """Return the first line and the text of each docstring and each comment; comments on adjacent lines are one."""
    found = [(lines[0], text) for lines, text in docstrings(source)]
    above = None
    for token in comments(source):
        line, column = token.start
        alone = not token.line[:column].strip()
        if alone and above == (line - 1, column):
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{token.string}")
        else:
            found.append((line, token.string))
        above = token.start if alone else None
    return sorted(found)


def python_lines(source: str) -> Lines:
    """Count the lines of formatted source; a string that stands alone is a docstring."""
    documented = {line for lines, _ in docstrings(source) for line in lines}
    commented = {token.start[0] for token in comments(source)}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] not in SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    full = {number for number, line in enumerate(source.splitlines(), 1) if line.strip()}
    return Lines(
        code=len(code & full - documented), docstrings=len(documented & full), comments=len(commented)
    )


def javascript_lines(source: str) -> Lines:
    """Count the lines of a script, as it is written."""
    plain = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    code = [line for line in plain.splitlines() if line.strip() and not line.strip().startswith("//")]
    return Lines(code=len(code))


def sql_lines(source: str) -> Lines:
    """Count the lines of an SQL file, as it is written."""
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith("--")]
    return Lines(code=len(code))


def by_area(root: Path, files: Iterable[Path]) -> dict[str, Lines]:
    """Return the lines of every area that has files."""
    known = [file for file in files if file.parts[0] in AREAS]
    own = [file for file in known if "vendor" not in file.parts]  # what others wrote is not ours to shorten
    scripts = [file for file in own if file.suffix in (".js", ".mjs") and "static" in file.parts]
    python = formatted(root, [file for file in known if file.suffix == ".py"])
    counted = [(file, file.parts[0], python_lines(source)) for file, source in python.items()]
    counted += [(file, JAVASCRIPT, javascript_lines((root / file).read_text())) for file in scripts]
    counted += [(file, SQL, sql_lines((root / file).read_text())) for file in own if file.suffix == ".sql"]
    found = {area: Lines() for area in (*AREAS, JAVASCRIPT, SQL)}
    for file, area, lines in counted:
        found[area] += lines + Lines(files=1, physical=len((root / file).read_text().splitlines()))
    return {area: lines for area, lines in found.items() if lines} | {
        "schemas + agents + streams": sum((found[name] for name in PRODUCT), Lines()),
        "all": sum(found.values(), Lines()),
    }


def sampled(root: Path, files: Iterable[Path], number: int, seed: int) -> list[str]:
    """Return docstrings and comments of the packages, drawn at random, each below its file and line."""
    found = [
        f"{file}:{line}\n{textwrap.indent(text, '    ')}"
        for file in sorted(files)
        if file.suffix == ".py" and file.parts[0] in PACKAGES
        for line, text in passages((root / file).read_text())
    ]
    return random.Random(seed).sample(found, min(number, len(found)))


def name_of(file: Path) -> str:
    """Return the dotted name under which a file is imported.

    >>> name_of(Path("agents/catalogue/__init__.py")), name_of(Path("agents/catalogue/models.py"))
    ('agents.catalogue', 'agents.catalogue.models')
    """
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.AST, package: str) -> set[str]:
    """Return every name that may be a module which a module of `package` imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def shape(root: Path, files: Iterable[Path]) -> dict[str, Any]:
    """Return what the packages' modules are: how many, how deep, imported by whom, with which class names."""
    modules = {name_of(file): file for file in files if file.suffix == ".py" and file.parts[0] in PACKAGES}
    importers, classes, skips = Counter[str](), Counter[str](), 0
    for name, file in modules.items():
        source = (root / file).read_text()
        tree = ast.parse(source)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        importers.update(imported(tree, package) & modules.keys() - {name})
        classes.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        skips += len(re.findall(r"#\s*fmt:\s*(?:skip|off)\b", source))
    plain = [name for name, file in modules.items() if file.name != "__init__.py"]
    return {
        "modules": len(plain),
        "one_importer": sorted(name for name in plain if importers[name] == 1),
        "classes_twice": {name: number for name, number in sorted(classes.items()) if number > 1},
        "depth": max((len(file.parts) - 1 for file in modules.values()), default=0),
        "fmt_skips": skips,
    }


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[str]:
    """Return the commands of a click group that do something, by their words."""
    if not isinstance(command, click.Group):
        return [" ".join(path)]
    context = click.Context(command)
    below = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return [leaf for name, each in below.items() if each for leaf in leaves(each, (*path, name))]


def walked(root: Path) -> list[str]:
    """Return the modules with a function executed between arrival and closing reward of a fourth query, in memory."""
    from schemas.query import Query
    from schemas.record import decode, encode
    from schemas.reward import Reward
    from streams.runtime.memory import run
    from streams.runtime.memory_cluster import Cluster
    from streams.services import SERVICES
    from streams.settings import Settings
    from tests.support.recorded import question, recorded_in_memory, recorded_paths

    seen: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            seen.add(frame.f_code.co_filename)

    async def ask(settings: Settings) -> None:
        cluster = Cluster(settings, SERVICES)

        def rewarded(queries: int) -> bool:
            return len(cluster.broker.records(cluster.topics.reward)) >= queries

        await cluster.up()
        for number in range(4):
            text, answer = question(number)
            query = Query(query_id=f"q{number}", text=text, reference=answer)
            sys.setprofile(profile if number == 3 else None)
            cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))
            await cluster.until(partial(rewarded, number + 1))
        sys.setprofile(None)
        assert decode(cluster.broker.records(cluster.topics.reward)[-1].value, Reward).closes
        await cluster.close()

    with tempfile.TemporaryDirectory() as folder:
        paths = recorded_paths(4, samples=3, steps=(1, 3))
        run(ask(recorded_in_memory(Path(folder), paths, warm_up=0)))
    inside = {Path(name).relative_to(root) for name in seen if Path(name).is_relative_to(root)}
    return sorted(name_of(file) for file in inside if file.parts[0] in PACKAGES)


def table(found: Mapping[str, Any]) -> str:
    """Return the measures as Markdown."""
    since, before = found.get("since") or ("", {})
    names = ["area", "files", "code lines", "physical", "docstrings per 100", "comments per 100"]
    rows = [[*names[:3], *[f"since {since}"] * bool(since), *names[3:]]]
    rows.append(["---"] + ["--:"] * (len(rows[0]) - 1))
    for area, each in found["areas"].items():
        growth = [f"{each['code'] - before.get(area, Lines())['code']:+,}"] * bool(since)
        per = [100 * each[kind] / max(1, each["code"]) for kind in ("docstrings", "comments")]
        counts = [f"{each[kind]:,}" for kind in ("files", "code", "physical")]
        rows.append([area, *counts[:2], *growth, counts[2], f"{per[0]:.0f}", f"{per[1]:.1f}"])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines += ["", "| measure | value |", "|---|--:|"]
    for name, what in MEASURES.items():
        if (value := found.get(name)) is not None:
            lines.append(f"| {what} | {value if isinstance(value, int) else len(value)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure this checkout."""
    parser = argparse.ArgumentParser(prog="python -m tests.size", description=__doc__)
    parser.add_argument(
        "--json",
        type=argparse.FileType("w"),
        metavar="FILE",
        help="also write all measures, with names, to FILE; to standard output, as -, instead",
    )
    parser.add_argument(
        "--walk", action="store_true", help="also count the modules that one query runs through"
    )
    parser.add_argument(
        "--since", metavar="COMMIT", help="what growth is counted from (default: the last release)"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="print N docstrings and comments instead")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which ones to draw (default: 0)")
    chosen = parser.parse_args()
    files = tracked(ROOT)
    if chosen.sample is not None:
        print("\n\n".join(sampled(ROOT, files, chosen.sample, chosen.seed)))
        return
    from streams.cli import main as commands

    found = {"areas": by_area(ROOT, files), **shape(ROOT, files), "commands": leaves(commands)}
    if (commit := chosen.since or last_release(ROOT)) is not None:
        with checked_out(ROOT, commit) as (root, then):
            found["since"] = (commit, by_area(root, then))
    if chosen.walk:
        found["walk"] = walked(ROOT)
    if chosen.json is not None:
        chosen.json.write(json.dumps(found, indent=2) + "\n")
    if chosen.json is not sys.stdout:
        print(table(found))


if __name__ == "__main__":
    main()
