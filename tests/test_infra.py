"""The deployment files name only what exists: commands, groups, models, metrics, one record size."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from agents.space.catalogue_file import load_catalogue
from schemas.base import MAX_RECORD

INFRA = Path(__file__).parent.parent / "infra"
COMPOSE = INFRA.parent / "docker-compose.yml"
_DEFAULT = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def with_env(value: str, env: dict[str, str]) -> str:
    """Fill in ${NAME:-default} as compose does."""
    return _DEFAULT.sub(lambda found: env.get(found[1], found[2] or ""), value)


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """The services of the compose file, anchors merged."""
    return dict(yaml.safe_load(COMPOSE.read_text())["services"])


def of_image(services: dict[str, dict[str, Any]], image: str) -> dict[str, dict[str, Any]]:
    found = {name: each for name, each in services.items() if each["image"] == image}
    assert found
    return found


def gpu_env() -> dict[str, str]:
    lines = (INFRA / "qwen3.env").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value.strip("'") for name, value in pairs}


def test_every_service_has_an_image_and_known_neighbours(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["image"], name
        assert set(service.get("depends_on", ())) <= set(services), name
        for key in service.get("environment", {}):
            assert key == key.upper(), f"{name}: {key}"


def test_volumes_that_are_used_are_declared(services: dict[str, dict[str, Any]]) -> None:
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
    used = [volume.split(":")[0] for each in services.values() for volume in each.get("volumes", ())]
    assert declared == {volume for volume in used if not volume.startswith(".")}
    for path in (volume for volume in used if volume.startswith(".")):
        assert (COMPOSE.parent / path).exists(), path


def test_build_targets_are_stages_of_the_dockerfile(services: dict[str, dict[str, Any]]) -> None:
    dockerfile = (INFRA / "docker" / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE))
    targets = {each["build"]["target"] for each in services.values() if "build" in each}
    assert targets == stages
    for copied in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE):
        for source in copied.split():
            # The mini family's checkpoints are made by a command; a checkout may be without them.
            assert source == "models" or (COMPOSE.parent / source).exists(), source


def test_no_image_of_ours_runs_as_root_or_shares_what_is_the_host_s(
    services: dict[str, dict[str, Any]],
) -> None:
    dockerfile = (INFRA / "docker" / "Dockerfile").read_text()
    for stage in re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)[1:]:
        users = re.findall(r"^USER (\w+)$", stage, re.MULTILINE)
        assert users == ["uniscale"], stage.splitlines()[0]
    for name, service in services.items():
        shared = {"privileged", "ipc", "pid", "network_mode", "user", "cap_add"} & set(service)
        assert not shared, f"{name}: {shared}"
        for volume in service.get("volumes", ()):
            assert "docker.sock" not in volume, name


def test_every_rooms_command_is_one_of_the_command_line(services: dict[str, dict[str, Any]]) -> None:
    from streams.commands import main

    for name, service in of_image(services, "uniscale-streams").items():
        command: click.Command = main
        args = [with_env(arg, {}) for arg in service["command"]]
        context = click.Context(main)
        while isinstance(command, click.Group):
            found = command.get_command(context, args[0])
            assert found is not None, f"{name}: no command {args[0]!r}"
            command, args = found, args[1:]
        command.make_context(name, args)


def test_every_room_runs_once_and_every_group_has_an_executor(services: dict[str, dict[str, Any]]) -> None:
    from streams.rooms import ROOMS

    plain = {n: s for n, s in of_image(services, "uniscale-streams").items() if "profiles" not in s}
    assert sorted(s["command"][1] for s in plain.values() if s["command"][0] == "worker") == sorted(ROOMS)
    env = gpu_env()
    served = [
        with_env(each["command"][3], env)
        for each in services.values()
        if each.get("command", [])[1:2] == ["executor"]
    ]
    assert sorted(served) == sorted(load_catalogue(COMPOSE.parent / env["UNISCALE_CATALOGUE"]).groups)


def test_every_model_has_the_server_its_catalogue_names(services: dict[str, dict[str, Any]]) -> None:
    catalogue = load_catalogue(COMPOSE.parent / gpu_env()["UNISCALE_CATALOGUE"])
    wanted = {each.endpoint.url: each.checkpoint for each in (*catalogue.models, *catalogue.verifiers)}
    served = {f"http://{n}:8000": s["command"][0] for n, s in of_image(services, "uniscale-vllm").items()}
    assert served == wanted


def test_the_gpu_profile_can_fetch_tokenizers_keep_them_and_ask_for_a_box(
    services: dict[str, dict[str, Any]],
) -> None:
    """Prompts are rendered in the rooms: without the checkpoints' tokenizers no room with an engine can start."""
    from streams.settings import Settings

    dockerfile = (INFRA / "docker" / "Dockerfile").read_text()
    cache = re.findall(r"^ENV HF_HOME=(\S+)$", dockerfile, re.MULTILINE)[0]
    assert "chown uniscale out $HF_HOME" in dockerfile
    for name, service in of_image(services, "uniscale-streams").items():
        given = {key: with_env(str(value), gpu_env()) for key, value in service["environment"].items()}
        settings = Settings.from_env({k: v for k, v in given.items() if k.startswith("UNISCALE_")})
        assert settings.engine.offline is False, name
        assert "\\boxed{}" in settings.engine.instruction, name
        assert any(mount.endswith(f":{cache}") for mount in service["volumes"]), name
        plain = {key: with_env(str(value), {}) for key, value in service["environment"].items()}
        assert Settings.from_env(plain).engine.offline is True, "the mini family is in the image"
        assert Settings.from_env(plain).engine.instruction == "", "the mini family is trained without one"


def test_settings_given_to_rooms_exist(services: dict[str, dict[str, Any]]) -> None:
    from streams.settings import Settings

    for name, service in of_image(services, "uniscale-streams").items():
        env = {key: with_env(str(value), {}) for key, value in service["environment"].items()}
        assert Settings.from_env(env).kafka.bootstrap == "kafka:9092", name


def test_the_broker_takes_records_of_the_declared_size_and_makes_no_topics(
    services: dict[str, dict[str, Any]],
) -> None:
    broker = services["kafka"]["environment"]
    assert broker["KAFKA_MESSAGE_MAX_BYTES"] == broker["KAFKA_REPLICA_FETCH_MAX_BYTES"] == MAX_RECORD
    assert broker["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_prometheus_scrapes_every_room_and_every_server(services: dict[str, dict[str, Any]]) -> None:
    config = yaml.safe_load((INFRA / "prometheus" / "prometheus.yml").read_text())
    scraped = {
        (job["job_name"], name)
        for job in config["scrape_configs"]
        for dns in job["dns_sd_configs"]
        for name in dns["names"]
    }
    rooms = {n for n, s in of_image(services, "uniscale-streams").items() if "--metrics-port" in s["command"]}
    servers = set(of_image(services, "uniscale-vllm"))
    assert scraped == {("rooms", name) for name in rooms} | {("vllm", name) for name in servers}
    for file in config["rule_files"]:
        assert (INFRA / "prometheus" / file).exists()


def exported() -> set[str]:
    """Return every series name that a scrape of all rooms can hold."""
    from streams.metrics import Metrics

    names = {"up"}
    for family in Metrics("decider").registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


def dashboard_queries() -> list[tuple[str, str]]:
    panels = json.loads((INFRA / "grafana" / "dashboards" / "uniscale.json").read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]


def alert_queries() -> list[tuple[str, str]]:
    groups = yaml.safe_load((INFRA / "prometheus" / "alerts.yml").read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(("where", "expr"), dashboard_queries() + alert_queries())
def test_every_metric_in_use_is_exported_with_its_labels(where: str, expr: str) -> None:
    from streams.metrics import Metrics

    used = set(re.findall(r"\b(?:uniscale_\w+|up\b)", expr))
    assert used, f"{where} shows nothing"
    assert used <= exported(), where
    labels = {
        family.name: set(getattr(metric, "_labelnames", ()))
        for metric in vars(Metrics("decider")).values()
        if hasattr(metric, "collect") and hasattr(metric, "_labelnames")
        for family in metric.collect()
    }
    asked = {each.strip() for by in re.findall(r"by \(([^)]*)\)", expr) for each in by.split(",")} - {"le"}
    known = set().union(
        *(labels.get(re.sub(r"_(total|bucket|sum|count)$", "", name), set()) for name in used)
    )
    assert asked <= known, f"{where}: {asked - known} is no label of {used}"


def test_alert_rules_say_what_is_wrong_and_what_to_do() -> None:
    for group in yaml.safe_load((INFRA / "prometheus" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert {"summary", "action"} <= set(rule["annotations"]), rule["alert"]
            assert rule["labels"]["severity"] in {"page", "warn"}


def test_panels_do_not_overlap_and_have_a_unit() -> None:
    panels = json.loads((INFRA / "grafana" / "dashboards" / "uniscale.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"]


def test_the_entry_point_for_vllm_exists() -> None:
    """The image `vllm` finds Skywork's class by it. The module is read, not imported: vLLM takes half a minute."""
    import ast
    import tomllib

    project = tomllib.loads((COMPOSE.parent / "pyproject.toml").read_text())["project"]
    module, function = project["entry-points"]["vllm.general_plugins"]["uniscale"].split(":")
    tree = ast.parse((COMPOSE.parent / f"{module.replace('.', '/')}.py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
