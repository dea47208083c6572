"""Results name the commit of the product's own files, not that of a repository around an installed package."""

import subprocess
from pathlib import Path

import pytest

from streams.commit import commit_of


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tracked").mkdir()
    (tmp_path / "tracked" / "file").write_text("1")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "file").write_text("1")
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for arguments in (["init", "-q"], ["add", "tracked"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_tracked_files_have_the_commit_of_their_repository(checkout: Path) -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True
    )
    found = commit_of(checkout / "tracked")
    assert len(found) >= 7
    assert head.stdout.startswith(found)
    (checkout / "tracked" / "file").write_text("2")
    assert commit_of(checkout / "tracked") == f"{found}-dirty"


def test_files_that_no_repository_tracks_have_no_commit(checkout: Path) -> None:
    assert commit_of(checkout / "installed") == "unknown"


def test_without_git_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit_of(checkout / "tracked") == "unknown"
