"""Workflows, templates, manifests and the Dockerfile parse, and agree with the server and the tree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from house import ROOT, distributions

FILES = sorted([*ROOT.glob(".github/**/*.yml"), *ROOT.glob("deploy/*.yaml")])
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
OPERATIONS = ROOT / "plugins/openai-server/src/tenonry_openai_server/routes/operations.py"
EXIT_S = 10
VERSION = distributions()[0].project["version"]


def deployment() -> dict[str, Any]:
    """Return the pod template's spec of the Kubernetes manifest."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    [found] = [each for each in documents if each["kind"] == "Deployment"]
    return found["spec"]["template"]["spec"]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name}\s+(.*)$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_is_yaml(file: Path):
    assert all(
        isinstance(document, dict) for document in yaml.safe_load_all(file.read_text()) if document
    )


def test_workflows_run_what_the_tree_has():
    steps = [
        step
        for file in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(file.read_text())["jobs"].values()
        for step in job["steps"]
    ]
    commands = [step["run"] for step in steps if "run" in step]
    assert {".ci/run", ".ci/triton"} <= set(commands)
    assert any(command.startswith("python3 dev.py release --tag") for command in commands)
    assert all(
        (ROOT / command.split()[-1 if " " not in command else 1]).exists() for command in commands
    )


def test_probes_are_routes_of_the_server():
    [container] = deployment()["containers"]
    paths = {probe: container[probe]["httpGet"]["path"] for probe in container if "Probe" in probe}
    assert paths == {
        "startupProbe": "/ready",
        "readinessProbe": "/ready",
        "livenessProbe": "/health",
    }
    source = OPERATIONS.read_text(encoding="utf-8")
    assert all(f'@router.get("{path}"' in source for path in paths.values())


def test_a_drain_ends_before_the_pod_is_killed():
    spec = deployment()
    [container] = spec["containers"]
    wait_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = int(container["args"][container["args"].index("--shutdown-timeout") + 1])
    assert spec["terminationGracePeriodSeconds"] >= wait_s + drain_s + EXIT_S


def test_the_pod_is_not_root_and_writes_to_volumes_only():
    spec = deployment()
    [container] = spec["containers"]
    user = spec["securityContext"]["runAsUser"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", "/models"}
    assert instructions("USER") == [f"{user}:{user}"]


def test_the_image_starts_what_the_manifest_starts():
    [entry] = instructions("ENTRYPOINT")
    command = json.loads(instructions("CMD")[-1])
    [container] = deployment()["containers"]
    assert json.loads(entry) == ["tenonry", "serve"]
    assert command == container["args"]
    assert container["image"] == f"tenonry:{VERSION}"
    assert "/ready" in instructions("HEALTHCHECK")[0]
    assert "sha256sum --check" in DOCKERFILE
