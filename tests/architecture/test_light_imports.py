"""The kernel and every class that the front end imports to check it are light: no torch, no transformers.

Each question is put to a fresh interpreter. `import tenonry` alone loads nothing but the standard library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from house import distributions

from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import EVERY_INSTALLED, KINDS
from tenonry.plugin.plan import load_class

pytestmark = pytest.mark.integration

PROBE = Path(__file__).with_name("import_probe.py")
HEAVY = {"torch", "transformers", "fastapi", "uvicorn", "ray"}
# The kinds that the kernel resolves itself, and the points whose classes the front end imports.
LIGHT_GROUPS = {
    "tenonry.call_sets",
    "tenonry.request_checks",
    "tenonry.step_observers",
    "tenonry.executors",
    "tenonry.schedulers",
    "tenonry.stat_loggers",
    "tenonry.kv_connectors",
    "tenonry.io_processors",
    "tenonry.workers",
    "tenonry.launchers",
    "tenonry.plugins",
    "tenonry.commands",
    "tenonry.models",
    "tenonry.scheduling_policies",
    "tenonry.output_parsers",
}
LIGHT = sorted(
    value
    for dist in distributions()
    for (group, _), value in dist.entry_points.items()
    if group in LIGHT_GROUPS
)
# Models of settings are imported for `--help`, which shall be quick.
SLOW = HEAVY | {"numpy", "zmq", "msgspec"}
SETTINGS = {
    name: value
    for dist in distributions()
    for (group, name), value in dist.entry_points.items()
    if group == "tenonry.settings"
}


def probe(*targets: str) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, str(PROBE), *targets], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def after_the_kernel() -> dict[str, dict]:
    """One interpreter imports the whole kernel, then every first-party entry point of the light groups."""
    return probe("tenonry.*", *LIGHT)


def test_import_tenonry_loads_only_the_standard_library():
    report = probe("tenonry")["tenonry"]
    assert report == {"error": None, "loaded": ["tenonry"]}


def test_every_public_name_resolves():
    script = "import tenonry; missing = [n for n in tenonry.__all__ if not hasattr(tenonry, n)]; print(missing)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_whole_kernel_is_light(after_the_kernel: dict[str, dict]):
    report = after_the_kernel["tenonry.*"]
    assert report["error"] is None
    assert HEAVY.isdisjoint(report["loaded"])


@pytest.mark.parametrize("target", LIGHT)
def test_entry_point_is_light(target: str, after_the_kernel: dict[str, dict]):
    report = after_the_kernel[target]
    assert report["error"] is None, report["error"]
    assert HEAVY.isdisjoint(report["loaded"])


def test_probe_sees_a_heavy_module_and_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "heavy_thing.py").write_text("import torch\n")
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "broken_thing.py").write_text("1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = probe("heavy_thing", "broken_thing", "json:no_such_name")
    assert report["heavy_thing"] == {"error": None, "loaded": ["heavy_thing", "torch"]}
    assert "ZeroDivisionError" in report["broken_thing"]["error"]
    assert "no_such_name" in report["json:no_such_name"]["error"]


def test_settings_are_read_without_plugins():
    report = probe("tenonry", *sorted(set(SETTINGS.values())))
    assert {target: each["error"] for target, each in report.items() if each["error"]} == {}
    slow = {target: SLOW.intersection(each["loaded"]) for target, each in report.items()}
    assert {target: names for target, names in slow.items() if names} == {}


def test_each_plugin_names_the_settings_of_its_class():
    found = {}
    for point in (*KINDS.values(), *EVERY_INSTALLED):
        for record in installed(point):
            if record.distribution.startswith("tenonry"):
                own = getattr(load_class(record), "Settings", PluginSettings)
                found[f"{point.kind}.{record.name}"] = f"{own.__module__}:{own.__name__}"
    missing = {name: value for name, value in found.items() if SETTINGS.get(name) != value}
    assert missing == {}
