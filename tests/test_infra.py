"""The deployment files name only what exists: commands, groups, models, metrics, one record size."""

import configparser
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Catalogue
from schemas.record import MAX_RECORD
from streams.settings import SECRETS, Settings, variable
from tests.support.compose import GPU_ENV, env_of, environment_of, services_of

Services = dict[str, dict[str, Any]]

INFRA = Path(__file__).parent.parent / "infra"
COMPOSE = INFRA.parent / "docker-compose.yml"


@pytest.fixture(scope="module")
def services() -> Services:
    """The services without an env file."""
    return services_of({})


@pytest.fixture(scope="module")
def gpu_services() -> Services:
    """The services under `--env-file infra/qwen3.env`."""
    return services_of(env_of(GPU_ENV))


OURS = ("uniscale-services", "uniscale-engines")
ENGINES = {"executor", "verifier"}
"""The services whose processes may hold models."""


def of_image(services: Services, *images: str) -> Services:
    found = {name: each for name, each in services.items() if each["image"].partition(":")[0] in images}
    assert found
    return found


def service_of(command: list[str]) -> str:
    """What of the command line a container runs: a service's name, or a command's."""
    return command[1] if command[0] == "worker" else command[0]


def settings_of(service: dict[str, Any], folder: Path) -> Settings:
    given = environment_of(service, folder)
    return Settings.from_env({name: text for name, text in given.items() if name.startswith("UNISCALE_")})


def test_every_service_has_an_image_and_known_neighbours(services: Services) -> None:
    for name, service in services.items():
        assert service["image"], name
        assert set(service.get("depends_on", ())) <= set(services), name
        for key in service.get("environment", {}):
            assert key == key.upper(), f"{name}: {key}"


def test_volumes_that_are_used_are_declared(services: Services) -> None:
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
    used = [volume.split(":")[0] for each in services.values() for volume in each.get("volumes", ())]
    assert declared == {volume for volume in used if not volume.startswith(".")}
    for path in (volume for volume in used if volume.startswith(".")):
        assert (COMPOSE.parent / path).exists(), path


def test_build_targets_are_stages_of_the_dockerfile(services: Services) -> None:
    dockerfile = (INFRA / "docker" / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE))
    built = {each["build"]["target"]: each["image"] for each in services.values() if "build" in each}
    assert built.keys() == stages
    version = tomllib.loads((COMPOSE.parent / "pyproject.toml").read_text())["project"]["version"]
    assert built == {stage: f"uniscale-{stage}:{version}" for stage in stages}, "tagged by the release"
    for copied in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE):
        for source in copied.split():
            assert (COMPOSE.parent / source).exists(), source


def test_no_image_runs_as_root_or_shares_host_namespaces(services: Services) -> None:
    dockerfile = (INFRA / "docker" / "Dockerfile").read_text()
    for stage in re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)[1:]:
        users = re.findall(r"^USER (.+)$", stage, re.MULTILINE)
        assert users[-1] == "10001:10001", "by number, so that Kubernetes can tell that it is not root"
        assert f"--uid {users[-1].partition(':')[0]} " in stage or stage.startswith("services "), (
            stage.splitlines()[0]
        )
    for name, service in services.items():
        shared = {"privileged", "ipc", "pid", "network_mode", "user", "cap_add"} & set(service)
        assert not shared, f"{name}: {shared}"
        for volume in service.get("volumes", ()):
            assert "docker.sock" not in volume, name


def test_containers_have_limits_and_no_capabilities(services: Services, gpu_services: Services) -> None:
    for name, service in (*services.items(), *gpu_services.items()):
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"]), name
        assert service["pids_limit"] > 0, name
        log = service["logging"]
        assert (log["driver"], set(log["options"])) == ("json-file", {"max-size", "max-file"}), name
        assert service["restart"] == "on-failure", f"{name}: after a reboot the unit starts all in order"


def test_the_unit_starts_everything_in_order_after_a_reboot() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(INFRA / "systemd" / "uniscale-streams.service")
    assert unit["Service"]["ExecStart"].endswith("docker compose $OPTIONS up --detach")
    assert unit["Service"]["ExecStop"].endswith("docker compose $OPTIONS stop")
    assert (unit["Service"]["Type"], unit["Service"]["RemainAfterExit"]) == ("oneshot", "yes")
    assert "docker.service" in unit["Unit"]["After"]


SECRETS_OF = {
    "embedder": {"encoder_key"},
    "decider": {"encoder_key"},  # it embeds the actions
    "executor": {"engine_key", "engine_keys", "hf_token"},
    "verifier": {"engine_key", "engine_keys", "hf_token"},
}


def test_each_service_gets_only_the_secrets_it_needs(services: Services) -> None:
    declared = yaml.safe_load(COMPOSE.read_text())["secrets"]
    assert set(declared) == {*SECRETS, "hf_token"}
    for name, secret in declared.items():
        assert secret == {"file": f"${{{name.upper()}_FILE:-/dev/null}}"}, name
    for name, service in of_image(services, *OURS).items():
        wanted = {"sasl_password"} | SECRETS_OF.get(service_of(service["command"]), set())
        assert set(service["secrets"]) == wanted, name
        files = {variable(each) + "_FILE": f"/run/secrets/{each}" for each in wanted - {"hf_token"}}
        given = {key: text for key, text in service["environment"].items() if key.endswith("_FILE")}
        assert given == files, name
        token = service["environment"].get("HF_TOKEN_PATH")
        assert token == ("/run/secrets/hf_token" if "hf_token" in wanted else None), name
    for name, server in of_image(services, "uniscale-vllm").items():
        assert server["secrets"] == ["hf_token"], name
        assert set(server["environment"]) == {"HF_TOKEN_PATH"}, name


def test_only_processes_that_may_hold_models_carry_engines(
    services: Services, gpu_services: Services
) -> None:
    """Where all models are at servers none does. What the other image suffices for: test_light_image.py."""
    for name, service in of_image(services, *OURS).items():
        heavy = service["image"].startswith("uniscale-engines:")
        assert heavy == (service_of(service["command"]) in ENGINES), name
    assert not [n for n, s in gpu_services.items() if s["image"].startswith("uniscale-engines")]


def test_what_is_kept_lies_in_volumes(services: Services) -> None:
    dockerfile = (INFRA / "docker" / "Dockerfile").read_text()
    folders = dict(re.findall(r"(UNISCALE_STATE_DIR|HF_HOME|VLLM_CACHE_ROOT)=(\S+)", dockerfile))
    for name, service in services.items():
        mounted = [volume.split(":")[1] for volume in service.get("volumes", ()) if ":" in volume]
        kept = {"UNISCALE_STATE_DIR"} if service["image"].startswith(OURS) else set()
        runs = service_of(service["command"]) if "command" in service else ""
        if runs in ENGINES or service["image"].startswith("uniscale-vllm"):
            kept |= {"HF_HOME", "VLLM_CACHE_ROOT"}
        for folder in kept:
            assert any(Path(folders[folder]).is_relative_to(mount) for mount in mounted), f"{name}: {folder}"


def test_every_services_command_is_one_of_the_command_line(services: Services) -> None:
    from streams.cli import main

    for name, service in of_image(services, *OURS).items():
        command: click.Command = main
        args = service["command"]
        context = click.Context(main)
        while isinstance(command, click.Group):
            found = command.get_command(context, args[0])
            assert found is not None, f"{name}: no command {args[0]!r}"
            command, args = found, args[1:]
        command.make_context(name, args)


def test_every_service_runs_once_and_every_group_has_an_executor(
    services: Services, gpu_services: Services
) -> None:
    from streams.services import SERVICES

    plain = {n: s for n, s in of_image(services, *OURS).items() if "profiles" not in s}
    started = {s["command"][1] for s in plain.values() if s["command"][0] == "worker"}
    assert started == set(SERVICES) - {"tracer"}  # a profile of its own: it needs a collector
    served = [s["command"][3] for s in gpu_services.values() if s.get("command", [])[1:2] == ["executor"]]
    assert sorted(served) == sorted(gpu_catalogue().groups)


def gpu_catalogue() -> Catalogue:
    return load_catalogue(COMPOSE.parent / env_of(GPU_ENV)["UNISCALE_CATALOGUE"])


def test_every_model_has_the_server_its_catalogue_names(services: Services) -> None:
    catalogue = gpu_catalogue()
    known: list[Any] = [*catalogue.models, *catalogue.verifiers]
    wanted = {each.endpoint.url: each.checkpoint for each in known}
    served = {f"http://{n}:8000": s["command"][0] for n, s in of_image(services, "uniscale-vllm").items()}
    assert served == wanted


def share_of(service: dict[str, Any]) -> float:
    """The share of its device's memory that a `vllm serve` takes."""
    command = service["command"]
    return float(command[command.index("--gpu-memory-utilization") + 1])


@pytest.mark.parametrize("env", [{}, env_of(GPU_ENV)], ids=["defaults", "qwen3.env"])
def test_servers_that_share_a_gpu_share_its_memory(env: dict[str, str]) -> None:
    """Every profile at once: with the larger verifier, the smaller one runs as well."""
    shares: dict[str, float] = {}
    for name, service in of_image(services_of(env), "uniscale-vllm").items():
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"]), name
        assert "count" not in device, f"{name}: Compose refuses count beside device_ids"
        for gpu in device["device_ids"]:
            shares[gpu] = shares.get(gpu, 0.0) + share_of(service)
    assert all(share < 1 for share in shares.values()), shares
    assert sorted(shares) == ["0", "1", "2", "3"], "infra/README.md says four GPUs"


def test_each_gpu_share_holds_weights_and_one_context(gpu_services: Services) -> None:
    """vLLM refuses to start with less. A margin of 1.5 GB is left to activations and CUDA."""
    catalogue = gpu_catalogue()
    served = {s["command"][0]: s for s in of_image(gpu_services, "uniscale-vllm").values()}
    known: list[Any] = [*catalogue.models, *catalogue.verifiers]
    for each in known:
        service = served[each.checkpoint]
        command = service["command"]
        assert int(command[command.index("--max-model-len") + 1]) == each.engine.context_tokens
        shape = each.architecture
        weights = shape.parameters * shape.weight_bytes
        context = (
            each.engine.context_tokens * 2 * shape.layers * shape.kv_heads * shape.head_dim * shape.kv_bytes
        )
        assert share_of(service) * 80e9 >= weights + context + 1.5e9, each.checkpoint


def test_any_verifier_of_the_catalogue_can_be_the_one_in_use(gpu_services: Services, project: Path) -> None:
    """The setting names it, its server is asked as the other one is, and README says how to start it."""
    catalogue = gpu_catalogue()
    commands = [
        [word for word in server["command"][1:] if not re.fullmatch(r"0\.\d+", word)]
        for server in of_image(gpu_services, "uniscale-vllm").values()
        if server["command"][0] in {verifier.checkpoint for verifier in catalogue.verifiers}
    ]
    assert len(commands) == len(catalogue.verifiers) == 2
    assert commands[0] == commands[1]
    for verifier in catalogue.verifiers:
        (project / ".env").write_text(f"UNISCALE_VERIFIER={verifier.name}\n")
        for name, service in of_image(gpu_services, *OURS).items():
            settings = settings_of(service, project)
            assert catalogue.scored_by(settings.engine.verifier).verifier_named() == verifier, name
    assert "UNISCALE_VERIFIER=skywork-o1-open-prm-qwen-2.5-7b" in (INFRA / "README.md").read_text()


def test_each_server_has_its_own_variables(gpu_services: Services) -> None:
    """A variable of qwen3.env moves one server and no other; none is without use."""
    env = env_of(GPU_ENV)
    moved = {}
    for name in (name for name in env if name.startswith("GPU_")):
        now = of_image(services_of({**env, name: "7"}), "uniscale-vllm")
        [moved[name]] = [each for each in now if now[each] != gpu_services[each]]
    servers = of_image(gpu_services, "uniscale-vllm")
    wanted = {name.removeprefix("vllm-").upper().replace("-", "_"): name for name in servers}
    assert moved == {
        f"{kind}_{name}": server for name, server in wanted.items() for kind in ("GPU", "GPU_MEMORY")
    }


def test_servers_start_one_after_the_other(services: Services) -> None:
    """A vLLM that starts measures what is free on its device: two at once on one device count each other's."""
    servers = of_image(services, "uniscale-vllm")
    after = {name: list(service.get("depends_on", {})) for name, service in servers.items()}
    assert [name for name, before in after.items() if not before] == [next(iter(after))]
    assert [before for before in after.values() if before] == [[name] for name in list(after)[:-1]]
    for service in list(servers.values())[1:]:
        [condition] = service["depends_on"].values()
        assert condition == {"condition": "service_healthy", "required": False}


def test_gpu_profile_is_online_and_asks_for_a_box(
    services: Services, gpu_services: Services, project: Path
) -> None:
    """Prompts are rendered in the services: without the checkpoints' tokenizers no service with an engine can start."""
    for name, service in of_image(gpu_services, *OURS).items():
        settings = settings_of(service, project)
        assert settings.engine.offline is False, name
        assert "\\boxed{}" in settings.engine.instruction, name
        plain = settings_of(services[name], project)
        assert plain.engine.offline is True, "the mini family is in the image"
        assert plain.engine.instruction == "", "the mini family is trained without one"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as Compose finds it in a fresh checkout: no `.env`."""
    (tmp_path / "infra").mkdir()
    for file in (GPU_ENV, GPU_ENV.with_name("mini.env")):
        shutil.copy(file, tmp_path / "infra")
    return tmp_path


# What the network of the containers decides, whatever the files say.
FIXED = {
    "decider": {"UNISCALE_DECIDER_HOST", "UNISCALE_DECIDER_PORT"},
    "gateway": {"UNISCALE_GATEWAY_HOST", "UNISCALE_GATEWAY_PORT"},
}


@pytest.mark.parametrize("profile", [{}, env_of(GPU_ENV)], ids=["mini", "qwen3.env"])
def test_every_setting_in_the_env_file_reaches_every_service(profile: dict[str, str], project: Path) -> None:
    secret = {variable(name) for name in SECRETS}  # those come from files
    mine = {name: f"my {name}" for name in Settings().variables() if name not in secret}
    (project / ".env").write_text("".join(f"{name}='{text}'\n" for name, text in mine.items()))
    # `--env-file infra/qwen3.env --env-file .env`, or neither, when Compose takes `.env`.
    for name, service in of_image(services_of({**profile, **mine}), *OURS).items():
        given = environment_of(service, project)
        changed = {name for name, text in mine.items() if given.get(name) != text}
        fixed = {variable("bootstrap"), variable("metrics_host"), *FIXED.get(name, ())}
        assert changed == fixed, name


def test_a_service_with_an_embedding_server_starts(project: Path) -> None:
    lines = ["ENCODER=http", "ENCODER_URL=http://host:8000/v1", "ENCODER_MODEL=e", "ENCODER_DIMENSION=1024"]
    options = """POLICY_OPTIONS='{"alpha": 2.0}'"""
    (project / ".env").write_text("".join(f"UNISCALE_{line}\n" for line in [*lines, options]))
    for service in of_image(services_of(env_of(project / ".env")), *OURS).values():
        settings = settings_of(service, project)
        assert (settings.encoder.kind, settings.encoder.url) == ("http", "http://host:8000/v1")
        assert (settings.encoder.model, settings.encoder.dimension) == ("e", 1024)
        assert settings.policy.options == {"alpha": 2.0}


def test_settings_given_to_services_exist(services: Services, project: Path) -> None:
    for name, service in of_image(services, *OURS).items():
        assert settings_of(service, project).kafka.bootstrap == "kafka:9092", name


def test_an_env_file_of_ones_own_stays_out_of_git_and_of_images() -> None:
    """It may hold API keys."""
    for ignored in (".gitignore", ".dockerignore"):
        assert ".env" in (COMPOSE.parent / ignored).read_text().splitlines(), ignored


def test_every_image_has_a_digest_or_is_named_as_one_without(services: Services) -> None:
    dockerfile = (INFRA / "docker" / "Dockerfile").read_text()
    used = {each["image"] for each in services.values() if "build" not in each}
    stages = dict(re.findall(r"^FROM (\S+) AS (\w+)$", dockerfile, re.MULTILINE))
    used |= stages.keys() - set(stages.values())
    for image in used:
        assert re.fullmatch(r"[\w./-]+:[\w.-]+(@sha256:[0-9a-f]{64})?", image), image
    without = re.findall(r"^- `(\S+)`$", (INFRA.parent / "docs" / "trust.md").read_text(), re.MULTILINE)
    assert sorted(without) == sorted(image for image in used if "@" not in image)


def test_no_key_is_in_a_log_and_nobody_can_log_in_to_grafana(services: Services) -> None:
    command = services["key"]["command"]
    scopes = [command[at + 1] for at, word in enumerate(command) if word == "--scope"]
    assert "admin" not in scopes, "who sees every tenant's queries has a key of its own"
    file = Path(command[command.index("--file") + 1])
    assert f"key:{file.parent}" in services["key"]["volumes"]
    grafana = services["grafana"]["environment"]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert (grafana["GF_AUTH_DISABLE_LOGIN_FORM"], grafana["GF_AUTH_BASIC_ENABLED"]) == ("true", "false")


def test_broker_takes_declared_size_and_creates_no_topics(services: Services) -> None:
    broker = services["kafka"]["environment"]
    assert broker["KAFKA_MESSAGE_MAX_BYTES"] == broker["KAFKA_REPLICA_FETCH_MAX_BYTES"] == MAX_RECORD
    assert broker["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_prometheus_scrapes_every_service_and_every_server(services: Services) -> None:
    config = yaml.safe_load((INFRA / "prometheus" / "prometheus.yml").read_text())
    scraped = {
        (job["job_name"], name)
        for job in config["scrape_configs"]
        for dns in job["dns_sd_configs"]
        for name in dns["names"]
    }
    workers = {n for n, s in of_image(services, *OURS).items() if "--metrics-port" in s["command"]}
    servers = set(of_image(services, "uniscale-vllm"))
    assert scraped == {("services", name) for name in workers} | {("vllm", name) for name in servers}
    for file in config["rule_files"]:
        assert (INFRA / "prometheus" / file).exists()


def exported() -> set[str]:
    """Return every series name that a scrape of all services can hold."""
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

    project = tomllib.loads((COMPOSE.parent / "pyproject.toml").read_text())["project"]
    module, function = project["entry-points"]["vllm.general_plugins"]["uniscale"].split(":")
    tree = ast.parse((COMPOSE.parent / f"{module.replace('.', '/')}.py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
