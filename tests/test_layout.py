"""The guards of the layout: our packages are ours, tests are no packages, functions are short, paths are relative."""

import ast
import importlib
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("schemas", "agents", "streams", "experiments", "bench")
MOST_LINES = 130
LONGEST_TEST_NAME = 60


def tracked() -> list[Path]:
    """Return every file git tracks; without git, every file that is not ignored by name."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [
            path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()
        ]
    skipped = {".venv", "out", "__pycache__", ".git"}
    return [
        path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.relative_to(ROOT).parts)
    ]


def sources() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


@pytest.mark.parametrize("name", PACKAGES)
def test_package_is_ours(name: str) -> None:
    """No installed distribution may shadow a package of this repository: `agents` is also that of others."""
    module = importlib.import_module(name)
    assert module.__file__ is not None, f"{name} has no __init__.py"
    assert Path(module.__file__).parent == ROOT / name, (
        f"{name!r} was imported from {module.__file__}: uninstall what brought it, or start from the repository root"
    )
    owners = set(metadata.packages_distributions().get(name, ()))
    assert owners <= {"uniscale-streams"}, f"{name!r} is also installed by {owners}: uninstall it"


def test_tests_are_no_packages() -> None:
    """With an __init__.py in tests/agents, pytest would import that folder as `agents`."""
    assert [path for path in (ROOT / "tests").rglob("__init__.py")] == []


def test_no_function_is_too_long() -> None:
    """A file is as long as its idea; a function is read at one look."""
    long = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                said = ast.get_docstring(node)
                lines = node.end_lineno - node.lineno + 1 - (said.count("\n") + 1 if said else 0)
                if lines > MOST_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert long == {}, f"divide what has more than {MOST_LINES} lines"


def test_no_test_name_is_too_long() -> None:
    """A name gives the subject and the case; the file gives the context."""
    long = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in sources()
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        if len(name) > LONGEST_TEST_NAME
    ]
    assert long == [], f"shorten the names of more than {LONGEST_TEST_NAME} characters"


# A service returns what a record causes, and the runtime applies it (streams/runtime/effects.py). These are no effects
# of a record; nothing else in a service sends or writes.
NO_EFFECTS = {
    "streams/services/aggregator.py": {
        "_send_due": "the timer: what is overdue takes the ordered way as a Due record"
    },
    "streams/services/answer_chunks.py": {"_send": "text for gateways, which may be lost"},
    "streams/services/heartbeat.py": {"send_regularly": "a heartbeat", "send_last": "the last heartbeat"},
    "streams/services/learner_log.py": {
        "write": "the rows of a batch, the catalogue on offer; rows that two snapshots hold leave the log",
        "_write_snapshots": "a snapshot, or the prior of an empty log",
    },
    "streams/gateway/access.py": {"feedback": "a client's request"},
    "streams/gateway/searches.py": {"send": "a client's request", "_cancel": "a client that hung up"},
    "streams/gateway/routes.py": {"retry": "an operator's request", "set_objective": "an operator's request"},
}
_ACTS = {"send", "append_again", "put", "put_all", "post"}


def test_services_act_outside_effects_only_where_listed() -> None:
    found: dict[str, set[str]] = {}
    for folder in ("streams/services", "streams/gateway"):
        for path in (ROOT / folder).glob("*.py"):
            for function in ast.walk(ast.parse(path.read_text())):
                if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                    if isinstance(call.func, ast.Attribute) and call.func.attr in _ACTS:
                        owner = ast.unparse(call.func.value).rpartition(".")[2].lstrip("_")
                        if owner in ("runtime", "table", "log"):
                            found.setdefault(str(path.relative_to(ROOT)), set()).add(function.name)
    assert found == {path: set(listed) for path, listed in NO_EFFECTS.items()}


def test_no_module_is_named_for_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc"}
    assert [
        path for path in sources() if path.stem in vague or vague & set(path.relative_to(ROOT).parts)
    ] == []


def test_no_tracked_file_names_a_place_on_one_machine() -> None:
    # Split, so that this file does not find itself.
    machine = re.compile(
        "|".join(
            ["/wo" + r"rk/(?:main|shared|\.)", r"/ho" + r"me/\w+/", r"/Us" + r"ers/\w+/", r"/ro" + r"ot/\.py"]
        )
    )
    found = {}
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data[:4096] and (hit := machine.search(data.decode("utf-8", "replace"))):
            found[str(path.relative_to(ROOT))] = hit.group()
    assert found == {}


def pinned(file: Path) -> dict[str, str]:
    """Return the version of each package of a lock file; every one has a hash."""
    found = {}
    for line in file.read_text().replace("\\\n", "").splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!-]+)\s+--hash=sha256:[0-9a-f]{64}", line)
            assert match, f"{file.name}: {line!r} is no exact version with its hash"
            assert canonical(match[1]) not in found, f"{match[1]} is locked twice"
            found[canonical(match[1])] = match[2]
    return found


def test_the_lock_pins_every_dependency_exactly_and_by_hash() -> None:
    """Every requirement of pyproject.toml is locked, and whatever installs a lock demands its hashes."""
    import tomllib

    folder = ROOT / "requirements"
    locked = pinned(folder / "torch.txt") | pinned(folder / "lock.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    assert {canonical(re.match(r"[A-Za-z0-9._-]+", each)[0]) for each in wanted} <= set(locked)
    for file in folder.glob("*.txt"):
        assert pinned(file), file
    for path in ("Makefile", "requirements/environment.sh", "infra/docker/Dockerfile", "bench/peers.py"):
        for called in re.findall(
            r"(?:pip|\"pip\",) ?\"?install\b.*?[^\\]\n", (ROOT / path).read_text(), re.DOTALL
        ):
            assert "--require-hashes" in called or "--no-index" in called, f"{path}: {called}"


def test_the_bill_of_materials_lists_everything_with_a_hash() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sbom"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    for each in bill["components"]:
        assert re.fullmatch("[0-9a-f]{64}", each["hashes"][0]["content"]), each
    named = {each["name"]: each["version"] for each in bill["components"]}
    locked = pinned(ROOT / "requirements" / "torch.txt") | pinned(ROOT / "requirements" / "lock.txt")
    assert locked.items() <= {canonical(name): version for name, version in named.items()}.items()
    assert {"tansu", "models/mini-4m/model.safetensors", "infra/prior/mini.bin"} <= set(named)


def canonical(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
