"""The examples under deploy/: valid where they are read, and in step with the service that they start."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from litestar import Litestar

from scorer.http.callers import read_key_file
from scorer.plan import parse_bytes
from scorer.server import _LAST_WORDS_S
from scorer.settings import Settings, load
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_application

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.33.0"
MANIFESTS = [
    pytest.param(manifest, id=f"{path.stem}-{manifest['kind']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def manifests(kind: str) -> list[dict[str, Any]]:
    return [manifest for parameter in MANIFESTS for manifest in parameter.values if manifest["kind"] == kind]  # type: ignore[index, misc]


PODS = [pytest.param(each["spec"]["template"]["spec"], id=each["metadata"]["name"]) for each in manifests("Deployment")]


def scorer_of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = [each for each in (*pod.get("initContainers", ()), *pod["containers"]) if each["name"] == "scorer"]
    return container  # type: ignore[no-any-return]


def image_environ() -> dict[str, str]:
    """What the image sets for the service."""
    return dict(re.findall(r"(SCORER_\w+)=(\S+)", DOCKERFILE.rpartition("\nFROM ")[2]))


def settings_of(pod: dict[str, Any]) -> Settings:
    return load(image_environ() | {each["name"]: each["value"] for each in scorer_of(pod)["env"]})


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed")
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_are_valid(manifest: dict[str, Any]) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.skipif(find_spec("check_jsonschema") is None, reason="check-jsonschema is not installed")
def test_the_compose_file_is_valid() -> None:
    import jsonschema
    from check_jsonschema.builtin_schemas import get_builtin_schema

    jsonschema.validate(COMPOSE, get_builtin_schema("vendor.compose-spec"))


@pytest.mark.parametrize("pod", PODS)
def test_pods_start_with_settings_that_exist_and_fit_their_memory(pod: dict[str, Any]) -> None:
    settings, limit = settings_of(pod), scorer_of(pod)["resources"]["limits"]["memory"]

    assert settings.engine.pool_bytes is not None
    assert settings.engine.pool_bytes <= parse_bytes(limit) / 2
    assert scorer_of(pod)["resources"]["requests"] == scorer_of(pod)["resources"]["limits"]


@pytest.mark.parametrize("pod", PODS)
def test_probes_ask_routes_that_are_served_on_the_port_of_the_image(pod: dict[str, Any]) -> None:
    container = scorer_of(pod)
    app = fake_application(FakeEngine()).asgi._app
    assert isinstance(app, Litestar)
    served = {route.path_format for route in app.routes}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in served
        assert ports[asked["port"]] == settings_of(pod).port


@pytest.mark.parametrize("pod", PODS)
def test_pods_are_given_the_time_that_a_drain_takes(pod: dict[str, Any]) -> None:
    before_s = scorer_of(pod).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)

    assert pod["terminationGracePeriodSeconds"] > before_s + settings_of(pod).drain_timeout_s + _LAST_WORDS_S


@pytest.mark.parametrize("pod", PODS)
def test_the_service_runs_locked_down_as_the_user_of_the_image(pod: dict[str, Any]) -> None:
    context = pod["securityContext"] | scorer_of(pod)["securityContext"]

    assert f"USER {context['runAsUser']}:" in DOCKERFILE
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert not pod["enableServiceLinks"]


def test_the_example_of_keys_is_a_file_of_keys(tmp_path: Path) -> None:
    (secret,) = manifests("Secret")
    (pod,) = [
        each["spec"]["template"]["spec"]
        for each in manifests("Deployment")
        if "volumes" in str(each) and "keys" in str(each)
    ]
    (volume,) = [each for each in pod["volumes"] if "secret" in each]
    (mount,) = [each for each in scorer_of(pod)["volumeMounts"] if each["name"] == volume["name"]]
    ((name, content),) = secret["stringData"].items()
    (tmp_path / name).write_text(content, encoding="utf-8")

    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert settings_of(pod).api_keys_file == f"{mount['mountPath']}/{name}"
    assert set(read_key_file(tmp_path / name).values()) == {"search", "support"}


def test_what_compose_mounts_is_there_and_is_what_prometheus_and_grafana_look_for() -> None:
    services = COMPOSE["services"]
    mounts = {
        target: (DEPLOY / source).resolve()
        for service in services.values()
        for source, target in (mount.split(":")[:2] for mount in service.get("volumes", ()) if mount.startswith("."))
    }
    scrape = yaml.safe_load(mounts["/etc/prometheus/prometheus.yml"].read_text(encoding="utf-8"))
    (source,) = yaml.safe_load((DEPLOY / "grafana/datasource.yaml").read_text(encoding="utf-8"))["datasources"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana/dashboards.yaml").read_text(encoding="utf-8"))["providers"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert all(path.is_file() for path in mounts.values())
    assert {f"/etc/prometheus/{name}" for name in scrape["rule_files"]} <= mounts.keys()
    assert [job["job_name"] for job in scrape["scrape_configs"]] == ["scorer"]
    assert scrape["scrape_configs"][0]["static_configs"] == [{"targets": [f"scorer:{load(image_environ()).port}"]}]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert home.rpartition("/")[0] == provider["options"]["path"]
    assert mounts[home] == ROOT / "dashboards/overview.json"


def test_compose_starts_the_service_with_settings_that_exist_and_lets_it_drain() -> None:
    scorer = COMPOSE["services"]["scorer"]
    settings = load(image_environ() | scorer["environment"])

    assert settings.engine.pool_bytes is not None
    assert settings.engine.pool_bytes <= parse_bytes(scorer["mem_limit"]) / 2
    assert int(scorer["stop_grace_period"].removesuffix("s")) > settings.drain_timeout_s + _LAST_WORDS_S
    assert all(port.startswith("127.0.0.1:") for each in COMPOSE["services"].values() for port in each["ports"])
