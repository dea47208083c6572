"""The commit that a figure was measured at."""

import shutil
import subprocess
from pathlib import Path


def commit_of(folder: Path) -> str:
    """Return the commit of a folder's files, marked `-dirty` if any in their repository has changed since.

    `unknown` without git, or if no repository tracks them, as in a package installed inside another project's checkout.
    """

    def git(*arguments: str) -> str:
        told = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        return told.stdout.strip()

    if shutil.which("git") is None or not git("ls-files", "."):
        return "unknown"
    return git("describe", "--always", "--dirty") or "unknown"
