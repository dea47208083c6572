"""`python -m streams`, and the console script `uniscale`: the command line."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_FIRST_LINE: Final = '"""The algorithms. They are pure; `streams` connects them to topics.'


def main() -> None:
    """Run the command line, or exit with 1 if the package `agents` is another project's (see `find_agents`)."""
    if refused := find_agents():
        print(f"error: {refused}", file=sys.stderr)
        sys.exit(1)
    from streams.cli import main as commands

    commands()


def find_agents() -> str:
    """Return an error message if `import agents` would not import our package; empty if it would.

    openai-agents has a package with the same name. It may come first on the path or, in a shared environment, may have
    replaced our files.
    """
    spec, ours = find_spec("agents"), Path(__file__).parents[1] / "agents" / "__init__.py"
    found = Path(spec.origin) if spec and spec.origin else None
    if found and found.samefile(ours) and ours.read_text(encoding="utf-8").startswith(_FIRST_LINE):
        return ""
    return (
        f"`import agents` finds {found or 'nothing'}, which is not UniScale-Streams' package of that name; "
        "openai-agents has one, too. Install uniscale-streams into an environment of its own"
    )


if __name__ == "__main__":
    main()
