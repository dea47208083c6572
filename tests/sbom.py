"""Print what the product is made of as CycloneDX 1.6 JSON: packages, the embedded broker, vendored scripts, weights.

`make sbom` writes it to out/sbom.json. The same commit gives the same bytes, in any environment: names, versions and
hashes come from the files of this repository, and nothing is looked up.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from streams.local.broker import TANSU_SHA256, TANSU_VERSION

ROOT = Path(__file__).resolve().parents[1]

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+) \\\n    --hash=sha256:([0-9a-f]{64})$", re.MULTILINE)


def component(kind: str, name: str, version: str, sha256: str, **more: Any) -> dict[str, Any]:
    """Return one component."""
    hashes = [{"alg": "SHA-256", "content": sha256}]
    return {"type": kind, "name": name, "version": version, "hashes": hashes, **more}


def packages(file: Path) -> list[dict[str, Any]]:
    """Return the packages of a lock file."""
    found = []
    for name, version, sha256 in _PINNED.findall(file.read_text()):
        purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version.replace('+', '%2B')}"
        found.append(component("library", name, version, sha256, purl=purl))
    return found


def files(kind: str, pattern: str, version: str) -> list[dict[str, Any]]:
    """Return the files of this repository that match a pattern, by path."""
    return [
        component(kind, str(path.relative_to(ROOT)), version, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(ROOT.glob(pattern))
    ]


def bill() -> dict[str, Any]:
    """Return the bill of materials."""
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    commit = told.stdout.strip() or "unknown"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "uniscale-streams", "version": commit}},
        "components": [
            *packages(ROOT / "requirements" / "torch.txt"),
            *packages(ROOT / "requirements" / "lock.txt"),
            component("application", "tansu", TANSU_VERSION, TANSU_SHA256),
            *files("file", "streams/gateway/static/vendor/*.js", commit),
            *files("machine-learning-model", "models/*/model.safetensors", commit),
            *files("data", "infra/prior/*.bin", commit),
        ],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
