"""How large this repository is, measured in one way: `python -m tests.size [--json FILE] [--walk]`.

Code lines are those that are left after ruff's formatter at 100 columns, fmt comments ignored, without blank lines,
comments and docstrings. So neither packing lines nor dropping docstrings makes a number better.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
PRODUCT = ("schemas", "agents", "streams")
AREAS = (*PRODUCT, "experiments", "bench", "examples", "tests")
PACKAGES = (*PRODUCT, "experiments", "bench")
JAVASCRIPT = "static JavaScript"
FMT = re.compile(r"#\s*fmt:\s*(?:skip|off|on)\b.*")
DIRECTIVE = re.compile(r"#\s*(?:fmt|noqa|type|mypy|pragma|ruff)\b|#!")
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


@dataclass
class Lines:
    """Lines of one file or area; `comments` are those with a comment, at their end or alone."""

    files: int = 0
    physical: int = 0
    code: int = 0
    docstrings: int = 0
    comments: int = 0

    def __iadd__(self, other: Lines) -> Lines:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def tracked(root: Path) -> list[Path]:
    """Return the files git tracks, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (root / (path := Path(name))).is_file()]


def formatted(root: Path, files: Sequence[Path]) -> dict[Path, str]:
    """Return each Python file as ruff writes it at 100 columns where no comment forbids it."""
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            (copy := Path(folder) / file).parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(FMT.sub("", (root / file).read_text()))
        ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--no-cache", "--quiet"]
        subprocess.run(
            [*ruff, "--line-length", "100", "--target-version", "py311", folder], check=True, cwd=folder
        )
        return {file: (Path(folder) / file).read_text() for file in files}


def python_lines(source: str) -> Lines:
    """Count the lines of formatted source; a string that stands alone is a docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    commented: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            commented.add(token.start[0])
        if token.type not in SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    text = source.splitlines()
    full = {number for number, line in enumerate(text, 1) if line.strip()}
    return Lines(1, len(text), len(code & full - documented), len(documented & full), len(commented))


def javascript_lines(source: str) -> Lines:
    """Count the lines of a script, as it is written."""
    plain = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    code = [line for line in plain.splitlines() if line.strip() and not line.strip().startswith("//")]
    return Lines(1, len(source.splitlines()), len(code))


def by_area(root: Path, files: Iterable[Path]) -> dict[str, Lines]:
    """Return the lines of every area that has files."""
    known = [file for file in files if file.parts[0] in AREAS]
    found: dict[str, Lines] = {}
    for file, source in formatted(root, [file for file in known if file.suffix == ".py"]).items():
        counted = python_lines(source)
        counted.physical = len((root / file).read_text().splitlines())
        found.setdefault(file.parts[0], Lines()).__iadd__(counted)
    for file in known:
        if file.suffix in (".js", ".mjs") and "static" in file.parts:
            found.setdefault(JAVASCRIPT, Lines()).__iadd__(javascript_lines((root / file).read_text()))
    return {area: found[area] for area in (*AREAS, JAVASCRIPT) if area in found}


def name_of(file: Path) -> str:
    """Return the dotted name under which a file is imported.

    >>> name_of(Path("agents/space/__init__.py")), name_of(Path("agents/space/models.py"))
    ('agents.space', 'agents.space.models')
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
    importers: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    skips = 0
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


def leaves(command: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Return the commands of a click group that do something, by their words."""
    below = getattr(command, "commands", None)
    if below is None:
        return [" ".join(path)]
    return [leaf for name, each in sorted(below.items()) for leaf in leaves(each, (*path, name))]


def walked(root: Path) -> list[str]:
    """Return the modules with a function executed between a query's arrival and its closing reward, in memory.

    The policy is the default one; three queries went before, so that nothing is counted that happens once a process.
    """
    from agents.serving.recording import write_paths
    from schemas.base import decode, encode
    from schemas.query import Query
    from schemas.reward import Reward
    from streams.rooms import ROOMS
    from streams.runtime.memory import Cluster, run
    from streams.settings import Settings
    from tests.recorded import CATALOGUE, question, recorded_paths

    seen: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:
            seen.add(frame.f_code.co_filename)

    async def queries(cluster: Cluster, count: int) -> None:
        def closed() -> set[str]:
            rewards = (decode(r.value, Reward) for r in cluster.broker.records(cluster.topics.reward))
            return {reward.query_id for reward in rewards if reward.closes}

        await cluster.up()
        for number in range(count):
            text, answer = question(number)
            record = encode(Query(query_id=f"q{number}", text=text, reference=answer))
            cluster.produce(cluster.topics.query, f"q{number}".encode(), record)
            if number == count - 1:
                sys.setprofile(profile)
            await cluster.until(lambda number=number: f"q{number}" in closed())
            sys.setprofile(None)
        await cluster.close()

    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "catalogue.yaml").write_text(CATALOGUE)
        write_paths(at / "recording.jsonl", recorded_paths(4, samples=3, steps=(1, 3)))
        settings = Settings().replace(
            prefix="m.", catalogue=str(at / "catalogue.yaml"), recorded=str(at / "recording.jsonl"),
            state_dir=str(at / "state"), encoder="hashed", encoder_dimension=8, warm_up=0, snapshot_every=0,
        )  # fmt: skip
        run(queries(Cluster(settings, ROOMS), 4))
    inside = {Path(name).relative_to(root) for name in seen if Path(name).is_relative_to(root)}
    return sorted(name_of(file) for file in inside if file.parts[0] in PACKAGES)


def table(found: Mapping[str, Any]) -> str:
    """Return the measures as Markdown."""
    lines = [
        "| area | files | code lines | physical | docstrings per 100 | comments per 100 |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for area, each in found["areas"].items():
        per = [100 * each[kind] / max(1, each["code"]) for kind in ("docstrings", "comments")]
        lines.append(
            f"| {area} | {each['files']:,} | {each['code']:,} | {each['physical']:,} | {per[0]:.0f} | {per[1]:.1f} |"
        )
    lines += ["", "| measure | value |", "|---|--:|"]
    of = found["shape"]
    rows = {
        "modules that are not `__init__`": of["modules"],
        "modules imported by exactly one other": len(of["one_importer"]),
        "class names defined twice or more": len(of["classes_twice"]),
        "depth below the top folders": of["depth"],
        "`# fmt: skip` and `off`": of["fmt_skips"],
        "leaf commands of `python -m streams`": len(found["commands"]),
    }
    if "walk" in found:
        rows["modules a query runs through"] = len(found["walk"])
    return "\n".join([*lines, *(f"| {what} | {value:,} |" for what, value in rows.items())])


def main() -> None:
    """Measure this checkout."""
    parser = argparse.ArgumentParser(prog="python -m tests.size", description=__doc__)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all measures, with names, to FILE"
    )
    parser.add_argument(
        "--walk", action="store_true", help="also count the modules that one query runs through"
    )
    chosen = parser.parse_args()
    from streams.__main__ import cli

    files = tracked(ROOT)
    areas = by_area(ROOT, files)
    for sum_of, parts in (("schemas + agents + streams", PRODUCT), ("all", tuple(areas))):
        total = Lines()
        for part in parts:
            total += areas[part]
        areas[sum_of] = total
    found: dict[str, Any] = {"areas": {area: vars(each) for area, each in areas.items()}}
    found |= {"shape": shape(ROOT, files), "commands": leaves(cli)}
    if chosen.walk:
        found["walk"] = walked(ROOT)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
