"""`record` as it is typed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from experiments.commands.record import record


@pytest.mark.parametrize("task", ["math", "code", "mixed"])
def test_what_is_no_recording_cannot_be_continued(task: str, tiny: Path, tmp_path: Path) -> None:
    """Said once the plan of the task stands, and before anything is run."""
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"question": ["a"]}), foreign)
    told = ["--catalogue", str(tiny / "tiny.yaml"), "--folder", str(tiny), "--share", "0.001"]
    told += ["--task", task, "--work", str(tmp_path / "work"), "--continue", str(foreign)]
    refused = CliRunner().invoke(record, told)
    assert refused.exit_code == 1
    assert (
        f"Error: {foreign}: is no recording of ours; `python -m experiments record` makes one"
        in refused.output
    )


def test_short_traffic_is_of_the_mixed_task_alone() -> None:
    refused = CliRunner().invoke(record, ["--task", "code", "--short"])
    assert refused.exit_code == 2
    assert "--short is for --task mixed alone" in refused.output
