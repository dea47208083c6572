"""A service as a process: how it ends."""

import subprocess
import sys
from pathlib import Path

from streams.worker import CRASH_EXIT

NO_MEMORY = """
import logging, sys
from pathlib import Path
from streams.runtime.handler_guard import InFlightFile
from streams.worker import exit_crashed

class Full(logging.Handler):
    def emit(self, record):
        raise MemoryError

logging.getLogger("streams").addHandler(Full())
in_flight = InFlightFile(Path(sys.argv[1]), 4)
try:
    exit_crashed("no memory left", MemoryError(), in_flight)
except MemoryError:
    sys.exit("it goes on")
"""


def test_process_out_of_memory_exits_with_the_crash_code(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", NO_MEMORY, str(tmp_path / "in-flight")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == CRASH_EXIT, ran.stderr
