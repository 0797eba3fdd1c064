"""The import contracts of the root `pyproject.toml` cover every package, and detect violations.

`dev.py check layers` holds the tree to them. Here faults are planted in copies of the sources.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest
from house import ROOT, distributions

from tenonry_testkit.import_contract import PUBLIC_OF

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
PACKAGES = sorted(dist.import_name for dist in distributions())
NO_CIRCLES = next(
    contract for contract in SETTINGS["contracts"] if contract["type"] == "acyclic_siblings"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of all sources, flat, and of the settings."""
    for dist in distributions():
        shutil.copytree(
            dist.package,
            tmp_path / dist.import_name,
            ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"),
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """`lint-imports`, which looks for packages in its working directory first."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


def plant(tree: Path, module: str, imported: str, *, for_types: bool = False) -> None:
    """Append to `module` an import of `imported`; a module that does not exist is made."""
    file = tree / f"{module.replace('.', '/')}.py"
    lines = ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:", f"    import {imported}"]
    source = "\n".join(lines) if for_types else f"import {imported}"
    with file.open("a", encoding="utf-8") as opened:
        opened.write(f"\n{source}\n")


def test_every_package_is_looked_at():
    assert sorted(SETTINGS["root_packages"]) == PACKAGES
    assert sorted(NO_CIRCLES["ancestors"]) == PACKAGES
    assert "ignore_imports" not in NO_CIRCLES


def test_imports_for_type_checking_count():
    assert SETTINGS["exclude_type_checking_imports"] is False


@pytest.mark.integration
def test_a_copy_of_the_tree_keeps_all_contracts(tree: Path):
    done = lint(tree)
    assert "0 broken" in done.stdout
    assert done.returncode == 0


def test_no_import_leads_back_to_its_module():
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    circles = [
        f"{module} -> {imported}"
        for module in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(module))
        if graph.chain_exists(importer=imported, imported=module)
    ]
    assert circles == []


@pytest.mark.parametrize("for_types", [False, True], ids=["at run time", "for type checking"])
@pytest.mark.integration
def test_an_upward_import_in_the_kernel_is_refused_by_name(tree: Path, for_types: bool):
    plant(tree, "tenonry.errors", "tenonry.engine.core", for_types=for_types)
    done = lint(tree)
    assert done.returncode == 1
    assert "The kernel's layers: imports go downwards only BROKEN" in done.stdout
    assert "tenonry.errors -> tenonry.engine.core" in done.stdout


@pytest.mark.parametrize("for_types", [False, True], ids=["at run time", "for type checking"])
@pytest.mark.integration
def test_a_circle_of_modules_is_refused_by_name(tree: Path, for_types: bool):
    plant(tree, "tenonry_bench.hen", "tenonry_bench.egg")
    plant(tree, "tenonry_bench.egg", "tenonry_bench.hen", for_types=for_types)
    done = lint(tree)
    assert done.returncode == 1
    assert f"{NO_CIRCLES['name']} BROKEN" in done.stdout
    assert "No cycles are allowed in tenonry_bench." in done.stdout
    assert ".hen -> .egg" in done.stdout or ".egg -> .hen" in done.stdout


@pytest.mark.integration
def test_a_circle_of_folders_is_refused_by_name(tree: Path):
    """In a small package: of a large one, the report names some of the imports that could be removed."""
    plant(tree, "tenonry_worker_torch_cuda.graphs.new", "tenonry_worker_torch_cuda.passes.graphs")
    done = lint(tree)
    assert done.returncode == 1
    assert "No cycles are allowed in tenonry_worker_torch_cuda." in done.stdout
    assert ".graphs -> .passes" in done.stdout or ".passes -> .graphs" in done.stdout


@pytest.mark.parametrize("for_types", [False, True], ids=["at run time", "for type checking"])
@pytest.mark.integration
def test_an_import_of_an_inner_module_of_the_kernel_is_refused_by_name(tree: Path, for_types: bool):
    plant(tree, "tenonry_models.new", "tenonry.client.admission", for_types=for_types)
    plant(tree, "tenonry_models.fine", "tenonry.interfaces.scheduler", for_types=for_types)
    done = lint(tree)
    assert done.returncode == 1
    assert "which the testkit lists BROKEN" in done.stdout
    assert "tenonry_models.new -> tenonry.client.admission is not public" in done.stdout
    assert "tenonry_models.fine" not in done.stdout


@pytest.mark.integration
def test_a_new_module_of_the_kernel_is_not_public(tree: Path):
    plant(tree, "tenonry.engine.new", "json")
    plant(tree, "tenonry_models.new", "tenonry.engine.new")
    assert "tenonry_models.new -> tenonry.engine.new is not public" in lint(tree).stdout


@pytest.mark.integration
def test_an_import_of_an_inner_module_of_the_worker_is_refused_by_name(tree: Path):
    plant(tree, "tenonry_worker_torch_cuda.new", "tenonry_worker_torch.loading.probe")
    plant(tree, "tenonry_worker_torch_cuda.fine", "tenonry_worker_torch.runner.feature")
    done = lint(tree)
    assert done.returncode == 1
    assert "import public modules of the worker torch BROKEN" in done.stdout
    refused = "tenonry_worker_torch_cuda.new -> tenonry_worker_torch.loading.probe is not public"
    assert refused in " ".join(done.stdout.split())  # lines are wrapped
    assert "tenonry_worker_torch_cuda.fine" not in done.stdout


def test_every_public_module_exists():
    modules = grimp.build_graph(*PUBLIC_OF, cache_dir=None).modules
    names = itertools.chain.from_iterable(PUBLIC_OF.values())
    assert [name for name in names if name.removesuffix(".*") not in modules] == []


def test_few_imports_of_inner_modules_are_excepted():
    """Each has its reason beside it; a plugin that needs more gets a seam."""
    contracts = [one for one in SETTINGS["contracts"] if one["type"] == "public_modules"]
    assert [len(one["ignore_imports"]) <= 10 for one in contracts] == [True, True]
