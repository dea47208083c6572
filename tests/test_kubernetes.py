"""infra/kubernetes is valid, and agrees with the code: commands, groups, settings, ports, probes, names, sizes."""

import os
import re
import subprocess
import tomllib
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from agents.catalogue.file import load_catalogue
from schemas.record import MAX_RECORD
from streams.http.health import Health, serve
from streams.services import SERVICES
from streams.settings import SECRETS, Settings, variable
from tests.support.compose import services_of
from tests.support.kubernetes import FOLDER, Resource, container_of, environment_of, of_kind, rendered

ROOT = FOLDER.parents[1]
EXAMPLES = FOLDER / "examples"
OPERATORS = {"kafka.strimzi.io/v1", "monitoring.coreos.com/v1"}
"""Their kinds are not Kubernetes' own."""
ENGINES = {"executor", "verifier"}


@pytest.fixture(params=["mini", pytest.param("gpu", marks=pytest.mark.seconds)])
def overlay(request: pytest.FixtureRequest) -> tuple[Resource, ...]:
    return rendered(FOLDER / "overlays" / request.param)


def workloads(resources: tuple[Resource, ...]) -> dict[str, Resource]:
    """Return all that runs a pod, by name."""
    return of_kind(resources, "Deployment") | of_kind(resources, "Job")


def ours(resources: tuple[Resource, ...]) -> dict[str, Resource]:
    """Return what runs our services or commands rather than vLLM."""
    return {n: w for n, w in workloads(resources).items() if container_of(w)["name"] == "uniscale"}


def service_of(workload: Resource) -> str:
    command = container_of(workload)["args"]
    return str(command[1] if command[0] == "worker" else command[0])


def option(workload: Resource, name: str) -> str | None:
    words = container_of(workload)["args"]
    return str(words[words.index(name) + 1]) if name in words else None


def labels_of(workload: Resource) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def selected(resources: tuple[Resource, ...], selector: dict[str, Any]) -> list[Resource]:
    """Return what runs the pods that a selector of labels finds."""
    wanted = selector.get("matchLabels", {}).items()
    among = selector.get("matchExpressions", ())
    return [
        each
        for each in workloads(resources).values()
        if wanted <= labels_of(each).items()
        and all(labels_of(each).get(one["key"]) in one["values"] for one in among)
    ]


def ports_of(workload: Resource) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container_of(workload).get("ports", ())}


def example(name: str) -> tuple[Resource, ...]:
    return tuple(yaml.safe_load_all((EXAMPLES / name).read_text()))


@pytest.mark.seconds
def test_every_resource_is_valid(overlay: tuple[Resource, ...]) -> None:
    patches = {"engine-keys.yaml"}
    examples = [
        each for path in EXAMPLES.glob("*.yaml") if path.name not in patches for each in example(path.name)
    ]
    found = {each["apiVersion"] for each in examples}
    assert found >= OPERATORS
    for each in (*overlay, *(one for one in examples if one["apiVersion"] not in OPERATORS)):
        kubernetes_validate.validate(each, "1.37", strict=True)


def test_a_misspelt_field_is_not_valid(overlay: tuple[Resource, ...]) -> None:
    deployment = of_kind(overlay, "Deployment")["decider"]
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_every_command_is_one_of_the_command_line(overlay: tuple[Resource, ...]) -> None:
    from streams.cli import main

    for name, workload in ours(overlay).items():
        command: click.Command = main
        args, context = container_of(workload)["args"], click.Context(main)
        while isinstance(command, click.Group):
            found = command.get_command(context, args[0])
            assert found is not None, f"{name}: no command {args[0]!r}"
            command, args = found, args[1:]
        command.make_context(name, args)


def settings_in(workload: Resource, resources: tuple[Resource, ...], folder: Path) -> Settings:
    given = environment_of(workload, resources, folder, ip="10.0.0.7")
    return Settings.from_env({name: text for name, text in given.items() if name.startswith("UNISCALE_")})


def test_every_service_runs_under_a_name_of_its_own(overlay: tuple[Resource, ...], tmp_path: Path) -> None:
    workers = of_kind(tuple(ours(overlay).values()), "Deployment")
    assert {service_of(each) for each in workers.values()} == set(SERVICES) - {"tracer"}
    settings = settings_in(workers["decider"], overlay, tmp_path)
    groups = [option(each, "--group") for each in workers.values() if service_of(each) == "executor"]
    assert sorted(groups) == sorted(load_catalogue(ROOT / settings.catalogue).groups)
    names = Counter(
        (service_of(each), option(each, "--group"), option(each, "--instance")) for each in workers.values()
    )
    assert set(names.values()) == {1}
    for name, worker in workers.items():
        if SERVICES[service_of(worker)].inputs:
            assert worker["spec"]["replicas"] == 1, f"{name}: two pods would share an instance name"


def test_images_are_those_of_the_dockerfile_and_this_release(overlay: tuple[Resource, ...]) -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "infra/docker/Dockerfile").read_text(), re.MULTILINE)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, workload in workloads(overlay).items():
        assert container_of(workload)["image"] in {f"uniscale-{stage}:{version}" for stage in stages}, name
    heavy = {
        service_of(each)
        for each in ours(overlay).values()
        if container_of(each)["image"].startswith("uniscale-engines")
    }
    assert heavy in (ENGINES, set()), "only what holds models has engines"


def test_settings_are_read_and_name_what_is_there(overlay: tuple[Resource, ...], tmp_path: Path) -> None:
    services = of_kind(overlay, "Service")
    for name, workload in ours(overlay).items():
        settings = settings_in(workload, overlay, tmp_path / name)
        load_catalogue(ROOT / settings.catalogue)
        assert settings.metrics_host == "10.0.0.7", name
        assert settings.security.sasl_password == "the password"
        assert Path(settings.security.ssl_cafile).read_text() == "the ca.crt\n"
        assert settings.kafka.replication == 3
        ports = ports_of(workload)
        assert ports.get("metrics") == (int(option(workload, "--metrics-port") or 0) or None), name
        if service_of(workload) == "gateway":
            assert (settings.gateway.host, settings.gateway.port) == ("10.0.0.7", ports["http"])
            assert set(settings.gateway.hosts) == {f"gateway{end}" for end in within("uniscale")}
            urls = [
                f"http://{n}:{s['spec']['ports'][0]['port']}" for n, s in services.items() if "decider" in n
            ]
            assert sorted(settings.previews.urls) == sorted(urls)
        if service_of(workload) == "decider":
            assert (settings.previews.host, settings.previews.port) == ("10.0.0.7", ports["previews"])


def within(namespace: str) -> list[str]:
    """Return what may follow a Service's name inside a cluster."""
    return ["", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local"]


def test_probes_ask_what_a_process_answers(overlay: tuple[Resource, ...]) -> None:
    health = Health()
    health.ready()
    server = serve("127.0.0.1", 0, CollectorRegistry(), health)
    answers = {}
    for path in ("live", "ready"):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/health/{path}") as reply:
            answers[f"/health/{path}"] = reply.read().decode().strip()
    server.shutdown()
    server.server_close()
    for worker in of_kind(tuple(ours(overlay).values()), "Deployment").values():
        container = container_of(worker)
        for probe, said in (
            ("startupProbe", "ready"),
            ("livenessProbe", "live"),
            ("readinessProbe", "ready"),
        ):
            asked = container[probe]["httpGet"]
            assert answers[asked["path"]] == said
            assert asked["port"] == "metrics"


def test_ports_and_selectors_find_pods(overlay: tuple[Resource, ...]) -> None:
    for name, service in of_kind(overlay, "Service").items():
        found = selected(overlay, {"matchLabels": service["spec"]["selector"]})
        assert len(found) == 1, name
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports_of(found[0]), name
    for name, policy in of_kind(overlay, "NetworkPolicy").items():
        found = selected(overlay, policy["spec"]["podSelector"])
        for rule in policy["spec"]["ingress"]:
            for port in rule["ports"]:
                assert any(port["port"] in ports_of(each) for each in found), name
            for peer in rule.get("from", ()):
                assert "namespaceSelector" in peer or selected(overlay, peer["podSelector"]), name
    for name, workload in of_kind(overlay, "Deployment").items():
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels_of(workload).items(), name
        assert selected(overlay, workload["spec"]["selector"]) == [workload], f"{name}: others' pods, too"


def test_a_disruption_budget_leaves_room_to_drain_a_node(overlay: tuple[Resource, ...]) -> None:
    for name, budget in of_kind(overlay, "PodDisruptionBudget").items():
        pods = sum(each["spec"]["replicas"] for each in selected(overlay, budget["spec"]["selector"]))
        assert 1 <= budget["spec"]["minAvailable"] < pods, name


def test_the_gateway_ends_after_its_requests(overlay: tuple[Resource, ...]) -> None:
    gateway = of_kind(overlay, "Deployment")["gateway"]
    pause = container_of(gateway)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause + 10 <= gateway["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_pods_are_restricted_and_have_sizes(overlay: tuple[Resource, ...]) -> None:
    limits = {f"{each['mem_limit'].removesuffix('g')}Gi" for each in services_of({}).values()}
    for name, workload in workloads(overlay).items():
        pod, container = workload["spec"]["template"]["spec"], container_of(workload)
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] == 10001, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
        if container["name"] == "uniscale":
            assert container["resources"]["limits"]["memory"] in limits, f"{name}: as in docker-compose.yml"
            assert "cpu" not in container["resources"]["limits"], name


def test_what_is_written_lies_in_volumes(overlay: tuple[Resource, ...]) -> None:
    folders = dict(
        re.findall(
            r"(UNISCALE_STATE_DIR|HF_HOME|VLLM_CACHE_ROOT)=(\S+)",
            (ROOT / "infra/docker/Dockerfile").read_text(),
        )
    )
    for name, workload in workloads(overlay).items():
        mounts = [
            Path(m["mountPath"]) for m in container_of(workload)["volumeMounts"] if not m.get("readOnly")
        ]
        kept = {"UNISCALE_STATE_DIR"} if container_of(workload)["name"] == "uniscale" else set()
        if container_of(workload)["name"] == "vllm" or service_of(workload) in ENGINES:
            kept |= {"HF_HOME", "VLLM_CACHE_ROOT"}
        for folder in (*(folders[each] for each in kept), "/tmp"):
            assert any(Path(folder).is_relative_to(mount) for mount in mounts), f"{name}: {folder}"


def test_secrets_are_named_never_written(overlay: tuple[Resource, ...]) -> None:
    assert of_kind(overlay, "Secret") == {}
    for config in of_kind(overlay, "ConfigMap").values():
        assert not config["data"].keys() & {variable(each) for each in SECRETS}
        assert not yaml.safe_load(config["data"].get("uniscale.yaml", "{}")).keys() & set(SECRETS)
    for name, workload in workloads(overlay).items():
        hub = {"name": "HF_TOKEN_PATH", "value": "/run/secrets/huggingface/token"}
        if hub in container_of(workload)["env"]:
            assert container_of(workload)["name"] == "vllm" or service_of(workload) in ENGINES, name


@pytest.mark.seconds
def test_every_model_has_the_server_its_catalogue_names(tmp_path: Path) -> None:
    resources = rendered(FOLDER / "overlays" / "gpu")
    settings = settings_in(of_kind(resources, "Deployment")["decider"], resources, tmp_path)
    catalogue = load_catalogue(ROOT / settings.catalogue)
    served: list[Any] = [*catalogue.models, catalogue.verifier_named()]
    known = {each.endpoint.url: each for each in served}
    servers = {}
    for name, service in of_kind(resources, "Service").items():
        if name.startswith("vllm"):
            [server] = selected(resources, {"matchLabels": service["spec"]["selector"]})
            servers[f"http://{name}:{service['spec']['ports'][0]['port']}"] = server
    assert servers.keys() == known.keys()
    compose = {each["command"][0]: each["command"] for each in services_of({}).values() if "command" in each}
    for url, server in servers.items():
        args, model = container_of(server)["args"], known[url]
        assert args[0] == model.checkpoint
        assert int(args[args.index("--max-model-len") + 1]) == model.engine.context_tokens
        share = args.index("--gpu-memory-utilization") + 1
        assert (args[:share], args[share + 1 :]) == (compose[args[0]][:share], compose[args[0]][share + 1 :])
        [claim] = [
            v["persistentVolumeClaim"]["claimName"]
            for v in volumes_of(server)
            if "persistentVolumeClaim" in v
        ]
        space = of_kind(resources, "PersistentVolumeClaim")[claim]["spec"]["resources"]["requests"]["storage"]
        weights = model.architecture.parameters * model.architecture.weight_bytes
        assert int(space.removesuffix("Gi")) * 2**30 > 1.5 * weights, url
        memory = container_of(server)["resources"]["requests"]["memory"]
        assert int(memory.removesuffix("Gi")) * 2**30 > weights, url


def volumes_of(workload: Resource) -> list[dict[str, Any]]:
    return list(workload["spec"]["template"]["spec"]["volumes"])


def test_the_example_of_kafka_is_what_services_connect_to(tmp_path: Path) -> None:
    resources = rendered(FOLDER / "overlays" / "mini")
    decider = of_kind(resources, "Deployment")["decider"]
    settings = settings_in(decider, resources, tmp_path)
    kafka, user, nodes = (
        of_kind(example("kafka.yaml"), kind) for kind in ("Kafka", "KafkaUser", "KafkaNodePool")
    )
    [cluster] = kafka
    [listener] = kafka[cluster]["spec"]["kafka"]["listeners"]
    assert settings.kafka.bootstrap == f"{cluster}-kafka-bootstrap:{listener['port']}"
    assert (settings.security.protocol, listener["tls"]) == ("SASL_SSL", True)
    assert settings.security.sasl_mechanism.lower() == listener["authentication"]["type"]
    assert {settings.security.sasl_username} == user.keys()
    secrets = {v["secret"]["secretName"] for v in volumes_of(decider) if "secret" in v}
    assert secrets == {*user, f"{cluster}-cluster-ca-cert"}
    assert sum(pool["spec"]["replicas"] for pool in nodes.values()) >= settings.kafka.replication
    config = kafka[cluster]["spec"]["kafka"]["config"]
    assert config["message.max.bytes"] == config["replica.fetch.max.bytes"] == MAX_RECORD
    assert config["auto.create.topics.enable"] is False
    for each in (*kafka.values(), *user.values(), *nodes.values()):
        assert each["metadata"]["namespace"] == decider["metadata"]["namespace"]
        assert each["kind"] == "Kafka" or each["metadata"]["labels"]["strimzi.io/cluster"] == cluster


@pytest.mark.seconds
def test_other_examples_name_what_is_there() -> None:
    resources = rendered(FOLDER / "overlays" / "gpu")
    [scaler] = example("autoscaling.yaml")
    [ingress] = example("ingress.yaml")
    target = scaler["spec"]["scaleTargetRef"]
    assert target["name"] in of_kind(resources, target["kind"])
    assert not SERVICES[service_of(of_kind(resources, "Deployment")[target["name"]])].inputs
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    ports = of_kind(resources, "Service")[backend["name"]]["spec"]["ports"]
    assert backend["port"]["name"] in {port["name"] for port in ports}
    jobs = {
        job["job_name"]
        for job in yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text())["scrape_configs"]
    }
    for name, monitor in of_kind(example("monitoring.yaml"), "PodMonitor").items():
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        found = selected(resources, monitor["spec"]["selector"])
        assert [each for each in found if endpoint["port"] in ports_of(each)], name
        relabelled = {each["targetLabel"]: each for each in endpoint["relabelings"]}
        assert relabelled["job"]["replacement"] in jobs
        [source] = relabelled["service"]["sourceLabels"]
        known = {
            f"__meta_kubernetes_pod_label_{re.sub('[^a-z0-9]', '_', key)}" for key in labels_of(found[-1])
        }
        assert source in known


def test_the_page_makes_a_rule_of_the_alerts() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    [command] = re.findall(r"^(\{ printf .+?; \}) \| kubectl", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    rule = yaml.safe_load(done.stdout)
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == yaml.safe_load((ROOT / "infra/prometheus/alerts.yml").read_text())


@pytest.mark.seconds
def test_a_patch_of_an_overlay_adds_keys_and_a_name(tmp_path: Path) -> None:
    """As the comments of both examples have it."""
    comment = re.findall(r"^#   (.*)$", (EXAMPLES / "ingress.yaml").read_text(), re.MULTILINE)
    patches = yaml.safe_load("\n".join(comment))["patches"]
    comment = re.findall(r"^#   (.*)$", (EXAMPLES / "engine-keys.yaml").read_text(), re.MULTILINE)
    patches += yaml.safe_load("\n".join(comment))["patches"]
    inside = FOLDER / "overlays" / "mini"
    (tmp_path / "engine-keys.yaml").write_text((EXAMPLES / "engine-keys.yaml").read_text())
    kustomization = {"resources": [os.path.relpath(inside, tmp_path)], "patches": patches}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    resources = rendered(tmp_path)
    deployments = of_kind(resources, "Deployment")
    assert settings_in(deployments["gateway"], resources, tmp_path / "1").gateway.hosts == (
        "gateway",
        example("ingress.yaml")[0]["spec"]["rules"][0]["host"],
    )
    with_keys = {n for n, d in deployments.items() if "engine-keys" in {v["name"] for v in volumes_of(d)}}
    assert with_keys == ENGINES
