"""Bill of materials of a release in CycloneDX's JSON: our files with checksums, and what they require."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import subprocess
import uuid
from pathlib import Path
from typing import Any

from dev import paths
from dev.console import stop
from dev.tree import distributions, metadata, required

FILE = "sbom.cdx.json"
# Name, version, licence and requirements of everything in `.venv`, which is what the tests ran with.
INSTALLED = """
import json
from importlib.metadata import distributions
from packaging.requirements import Requirement
found = {}
for dist in distributions():
    needs = [Requirement(line) for line in dist.requires or ()]
    needs = [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
    expression = dist.metadata["License-Expression"]
    named = [line.rpartition(" :: ")[2] for line in dist.metadata.get_all("Classifier") or () if line[:7] == "License"]
    text = (dist.metadata["License"] or "").strip().partition("\\n")[0] or " or ".join(named)
    licence = {"expression": expression} if expression else {"license": {"name": text}} if text else {}
    found[dist.name] = [dist.version, licence, needs]
print(json.dumps(found))
"""


def write(out: Path, version: str, time: int) -> None:
    """Write the bill of the wheels and sdists in `out`, as of `time` in seconds since 1970."""
    command = [str(paths.PYTHON), "-c", INSTALLED]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        stop(f"cannot list installed packages:\n{done.stderr}")
    installed = {canonical(name): facts for name, facts in json.loads(done.stdout).items()}
    text = json.dumps(bill(out, version, time, installed), indent=1, sort_keys=True)
    (out / FILE).write_text(text + "\n", encoding="utf-8")


def canonical(name: str) -> str:
    """Return the normalised name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def bill(out: Path, version: str, time: int, installed: dict[str, Any]) -> dict[str, Any]:
    """Return the bill; `installed` maps a name to version, licence and required names."""
    requires = {
        name: sorted({canonical(required(line)[0]) for line in metadata(folder)["dependencies"]})
        for name, folder in distributions().items()
    }
    versions = dict.fromkeys(requires, version)
    licences = {
        name: {"expression": metadata(folder)["license"]}
        for name, folder in distributions().items()
    }
    pending = [name for needs in requires.values() for name in needs]
    while pending:
        name = pending.pop()
        if name not in requires and name in installed:
            versions[name], licences[name], needs = installed[name]
            requires[name] = sorted({canonical(each) for each in needs})
            pending += requires[name]
    references = {name: f"pkg:pypi/{name}@{versions[name]}" for name in requires}
    components = [
        component(name, versions[name], licences[name], files_of(out, name))
        for name in sorted(requires)
    ]
    seed = json.dumps([components, time], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, seed)}",
        "version": 1,
        "metadata": {
            "timestamp": dt.datetime.fromtimestamp(time, dt.UTC).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": "release",
                "name": "tenonry",
                "version": version,
            },
        },
        "components": components,
        "dependencies": [
            {
                "ref": references[name],
                "dependsOn": [references[need] for need in needs if need in references],
            }
            for name, needs in sorted(requires.items())
        ],
    }


def files_of(out: Path, name: str) -> list[Path]:
    """Return the release files of a distribution."""
    return sorted(out.glob(f"{name.replace('-', '_')}-[0-9]*"))


def component(
    name: str, version: str, licence: dict[str, Any], files: list[Path]
) -> dict[str, Any]:
    """Return one package, with its release files as nested components if it is ours."""
    reference = f"pkg:pypi/{name}@{version}"
    entry: dict[str, Any] = {
        "type": "library", "bom-ref": reference, "name": name, "version": version, "purl": reference,
    }  # fmt: skip
    if licence:
        entry["licenses"] = [licence]
    if files:
        entry["components"] = [
            {
                "type": "file", "bom-ref": file.name, "name": file.name,
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}],
            }
            for file in files
        ]  # fmt: skip
    return entry
