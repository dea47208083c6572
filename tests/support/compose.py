"""docker-compose.yml as Docker Compose reads it: variables filled in, and what each container is given.

Compose fills in the file from `--env-file` (`.env` without one). A container is given `env_file`, where later files
win, and `environment`, which wins over them all (docs.docker.com, "Environment variables precedence").
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
GPU_ENV = ROOT / "infra" / "qwen3.env"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def filled(value: Any, env: Mapping[str, str]) -> Any:
    """Fill in ${NAME} and ${NAME:-default}, wherever they are."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: env.get(found[1]) or found[2] or "", value)
    if isinstance(value, dict):
        return {key: filled(each, env) for key, each in value.items()}
    return [filled(each, env) for each in value] if isinstance(value, list) else value


def env_of(file: Path) -> dict[str, str]:
    """Return the variables of an env file; comments and quotes are as in ours."""
    lines = file.read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value.strip("'") for name, value in pairs}


def services_of(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the services, anchors merged and variables filled in."""
    return dict(filled(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"], env))


def environment_of(service: Mapping[str, Any], folder: Path = ROOT) -> dict[str, str]:
    """Return what a container is given.

    Args:
        service: The service, filled in.
        folder: Where the relative env files are: that of docker-compose.yml.

    Raises:
        FileNotFoundError: an env file that is required is missing.
    """
    given: dict[str, str] = {}
    for each in service.get("env_file", ()):
        entry: Mapping[str, Any] = {"path": each, "required": True} if isinstance(each, str) else each
        if (file := folder / entry["path"]).exists() or entry.get("required", True):
            given |= env_of(file)
    given |= {name: str(value) for name, value in service["environment"].items()}
    # What is mounted there where a deployment names no file of its own.
    return {name: re.sub(r"^/run/secrets/\w+$", "/dev/null", value) for name, value in given.items()}
