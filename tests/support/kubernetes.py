"""infra/kubernetes as `kubectl kustomize` renders it, and what a container finds in its pod."""

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "infra" / "kubernetes"
Resource = dict[str, Any]


@cache
def rendered(folder: Path) -> tuple[Resource, ...]:
    """Return the resources of a kustomization; the test is skipped where there is no kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(resources: Iterable[Resource], kind: str) -> dict[str, Resource]:
    """Return the resources of one kind, by name."""
    return {each["metadata"]["name"]: each for each in resources if each["kind"] == kind}


def container_of(workload: Resource) -> Resource:
    """Return the only container of a Deployment or a Job."""
    [container] = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


def environment_of(
    workload: Resource, resources: Iterable[Resource], folder: Path, *, ip: str
) -> dict[str, str]:
    """Return the variables of a pod's container; the files that they name are written to a folder.

    Args:
        workload: A Deployment or a Job.
        resources: All that is rendered with it, ConfigMaps included.
        folder: Where its ConfigMaps and Secrets are mounted, in place of the container's own file system.
        ip: The pod's address.
    """
    container, maps = container_of(workload), of_kind(resources, "ConfigMap")
    given: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        given |= maps[source["configMapRef"]["name"]]["data"]
    for variable in container.get("env", ()):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        assert field in (None, "status.podIP"), field
        given[variable["name"]] = ip if field else variable["value"]
    volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
    for mount in container["volumeMounts"]:
        _mount(volumes[mount["name"]], folder / mount["mountPath"].lstrip("/"), maps)
    mounted = tuple(mount["mountPath"] for mount in container["volumeMounts"])
    return {
        name: str(folder / text.lstrip("/")) if text.startswith(mounted) else text
        for name, text in given.items()
    }


def _mount(volume: Mapping[str, Any], at: Path, maps: Mapping[str, Resource]) -> None:
    at.mkdir(parents=True, exist_ok=True)
    files = maps[volume["configMap"]["name"]]["data"] if "configMap" in volume else {}
    files |= {item["path"]: f"the {item['key']}\n" for item in volume.get("secret", {}).get("items", ())}
    for name, text in files.items():
        (at / name).write_text(text)
