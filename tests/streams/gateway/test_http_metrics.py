"""Metrics of HTTP requests: by pattern of the route, status and tenant; when streams begin; how many are open."""

import httpx

from streams.runtime.memory_cluster import Cluster
from tests.support.gateway_deployment import ASK, PLAIN, WITHOUT_EXECUTOR, Deploy, GatewayDeployment


def value(site: GatewayDeployment, name: str, **labels: str) -> float:
    def read(cluster: Cluster) -> float:
        gateway = next(each for each in cluster.workers if each.service == "gateway")
        return gateway.metrics.registry.get_sample_value(name, labels) or 0.0

    return float(site.call(read))


def test_a_request_counts_under_its_route_and_status(site: GatewayDeployment, client: httpx.Client) -> None:
    client.get("/v1/queries/never-asked")
    client.get("/v1/queries/nor-this-one")
    client.post(ASK, json={"model": "auto"})
    client.get("/nothing/here")
    counted = "uniscale_http_requests_total"
    assert value(site, counted, route="/v1/queries/{id}", status="404", tenant="") == 2
    assert value(site, counted, route=ASK, status="400", tenant="") == 1
    assert value(site, counted, route="other", status="404", tenant="") == 1
    assert value(site, "uniscale_http_request_seconds_count", route="/v1/queries/{id}") == 2


def test_a_stream_is_timed_to_its_first_chunk(site: GatewayDeployment, client: httpx.Client) -> None:
    with client.stream("POST", ASK, json={**PLAIN, "stream": True}) as response:
        response.read()
    counted = {"route": ASK, "status": "200", "tenant": ""}
    site.until(lambda: value(site, "uniscale_http_requests_total", **counted) == 1)
    assert value(site, "uniscale_http_first_chunk_seconds_count", route=ASK) == 1


def test_a_stream_is_open_until_its_client_leaves(deploy: Deploy) -> None:
    site = deploy(WITHOUT_EXECUTOR)
    with site.http() as client, client.stream("POST", ASK, json={**PLAIN, "stream": True}):
        site.until(lambda: value(site, "uniscale_http_open_streams") == 1)
    site.until(lambda: value(site, "uniscale_http_open_streams") == 0)


def test_a_keyed_request_counts_for_its_tenant(site: GatewayDeployment) -> None:
    key = site.key("shop", scopes=("ask", "read"))
    with site.http() as client:
        site.until(lambda: client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).is_success)
        client.get("/v1/models", headers={"authorization": "Bearer wrong"})
    counted = "uniscale_http_requests_total"
    assert value(site, counted, route="/v1/models", status="200", tenant="shop") >= 1
    assert value(site, counted, route="/v1/models", status="401", tenant="") >= 1
