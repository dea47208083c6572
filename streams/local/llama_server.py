"""The process of llama.cpp's own server: `python -m streams.local.llama_server FOLDER PORT NAME READY`.

The server is a library with a model beside it in FOLDER (`llama.py`). READY is printed once the model is loaded.
"""

import importlib
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 2048
"""Tokens of prompt and answer together, as the catalogue's entry says."""

_POLL_S = 0.05
_PARENT_S = 1.0


def serve(folder: Path, port: int, name: str, ready: str) -> None:
    """Serve the model on 127.0.0.1 with one thread and one slot, until the process that started this one ends."""
    sys.path.insert(0, str(folder))
    xllamacpp: Any = importlib.import_module("xllamacpp")
    [model] = folder.glob("*/*.gguf")
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(model), {name}
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel = CONTEXT_TOKENS, 1
    # A second thread waits for the first one at each token, so on busy cores two are slower than one.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.ui, params.offline, params.cache_ram_mib, params.endpoint_metrics = False, True, 0, True
    # Errors only: with the default, each query has five lines in the services' log, which the terminal shows.
    params.verbosity = 1
    parent = os.getppid()
    server = xllamacpp.Server(params)  # answers before the model is loaded, with 503
    while not _is_loaded(port):
        time.sleep(_POLL_S)
    sys.stdout.write(f"{ready}\n")
    sys.stdout.flush()
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    del server


def _is_loaded(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
