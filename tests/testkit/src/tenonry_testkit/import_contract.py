"""An import-linter contract for plugins: of the kernel they import public modules only.

Install `tenonry-testkit[lint]`, and write into the pyproject.toml of the plugin:

    [tool.importlinter]
    root_packages = ["my_plugin", "tenonry"]
    contract_types = ["public_modules: tenonry_testkit.import_contract.PublicModulesContract"]

    [[tool.importlinter.contracts]]
    name = "Public modules of the kernel only"
    type = "public_modules"
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter.application import contract_utils, output
from importlinter.application.contract_utils import AlertLevel
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck

KERNEL = "tenonry"
# A module denotes itself alone, a name that ends in `.*` the modules of its folder.
PUBLIC = (
    # values and settings
    "tenonry",
    "tenonry.config",
    "tenonry.config.sources",
    "tenonry.errors",
    "tenonry.gpus",
    "tenonry.info",
    "tenonry.kv_cache",
    "tenonry.messages",
    "tenonry.outputs",
    "tenonry.point",
    "tenonry.request",
    "tenonry.sampling_params",
    "tenonry.stats",
    "tenonry.step",
    "tenonry.version",
    # contracts, and the resolver
    "tenonry.interfaces.*",
    "tenonry.plugin",
    "tenonry.plugin.*",
    # processes and messages
    "tenonry.engine.proc",
    "tenonry.launch.child",
    "tenonry.launch.output",
    "tenonry.launch.process",
    "tenonry.launch.spawn",
    "tenonry.launch.supervise",
    "tenonry.logs",
    "tenonry.transport.*",
    # front ends, and owners of engines
    "tenonry.cli",
    "tenonry.client.async_llm",
    "tenonry.client.core_client",
    "tenonry.client.engines",
    "tenonry.client.llm",
    "tenonry.client.start",
    "tenonry.client.stat_manager",
    "tenonry.client.stream",
    "tenonry.engine.kv_plan",
    "tenonry.launch.fleet",
)


def is_public(module: str) -> bool:
    """Return whether plugins may import this module of the kernel."""
    return module in PUBLIC or f"{module.rpartition('.')[0]}.*" in PUBLIC


class PublicModulesContract(Contract):
    """All root packages but the kernel import its public modules alone. Indirect imports do not count.

    `ignore_imports` and `unmatched_ignore_imports_alerting` mean what they mean in other contracts.
    """

    type_name = "public_modules"
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)
    unmatched_ignore_imports_alerting = fields.EnumField(AlertLevel, default=AlertLevel.ERROR)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find imports of inner modules."""
        removal = contract_utils.remove_ignored_imports_and_report(
            graph=graph,
            ignore_imports=self.ignore_imports,
            unmatched_alerting=self.unmatched_ignore_imports_alerting,
        )
        plugins = [name for name in graph.modules if name.partition(".")[0] != KERNEL]
        inner = [
            f"{importer} -> {imported}"
            for importer in sorted(plugins)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported.partition(".")[0] == KERNEL and not is_public(imported)
        ]
        return ContractCheck(
            kept=not inner,
            warnings=list(removal.warnings),
            ignored_import_count=removal.ignored_import_count,
            metadata={"inner": inner},
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports, and the location of the list."""
        for line in check.metadata["inner"]:
            output.print_error(f"{line} is not public")
        output.print(f"Public modules are listed in {__name__}.")
