"""A checkout's commit, which every result names."""

import subprocess
from pathlib import Path


def commit_of(checkout: Path) -> str:
    """Return a checkout's commit, marked `-dirty` if files have changed since; `unknown` without a repository."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=checkout, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"
