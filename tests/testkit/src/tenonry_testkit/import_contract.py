"""An import-linter contract for plugins: of the kernel, and of the worker `torch`, they import public modules only.

Install `tenonry-testkit[lint]`, and write into the pyproject.toml of the plugin:

    [tool.importlinter]
    root_packages = ["my_plugin", "tenonry"]
    contract_types = ["public_modules: tenonry_testkit.import_contract.PublicModulesContract"]

    [[tool.importlinter.contracts]]
    name = "Public modules of the kernel only"
    type = "public_modules"

Runner features and model passes of the worker `torch` have a second contract, with `package = "tenonry_worker_torch"`
and that package among the root packages.
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter.application import contract_utils, output
from importlinter.application.contract_utils import AlertLevel
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck

KERNEL = "tenonry"
WORKER_TORCH = "tenonry_worker_torch"
# A module names itself alone, a name that ends in `.*` the modules of its folder.
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
# Modules of the worker `torch` for runner features, model passes and device plugins.
PUBLIC_OF_WORKER_TORCH = (
    # runner features
    "tenonry_worker_torch.runner.feature",
    "tenonry_worker_torch.runner.step",
    "tenonry_worker_torch.loaded_model",
    # model passes
    "tenonry_worker_torch.passes.model_pass",
    "tenonry_worker_torch.changes",
    "tenonry_worker_torch.step_kernels",
    "tenonry_worker_torch.invariance",
    # the fused model, changed by passes
    "tenonry_worker_torch.forward",
    "tenonry_worker_torch.fuse.block",
    "tenonry_worker_torch.fuse.decoder",
    "tenonry_worker_torch.fuse.generic",
    "tenonry_worker_torch.fuse.layer",
    "tenonry_worker_torch.fuse.linear",
    "tenonry_worker_torch.fuse.norm",
    "tenonry_worker_torch.fuse.rope",
    "tenonry_worker_torch.fuse.trial",
    # workers derived from it
    "tenonry_worker_torch.worker",
)
PUBLIC_OF = {KERNEL: PUBLIC, WORKER_TORCH: PUBLIC_OF_WORKER_TORCH}


def is_public(module: str) -> bool:
    """Return True if plugins may import this module of the kernel or of the worker `torch`."""
    public = PUBLIC_OF[module.partition(".")[0]]
    return module in public or f"{module.rpartition('.')[0]}.*" in public


class PublicModulesContract(Contract):
    """All root packages except `package` import its public modules only. Indirect imports do not count.

    `package`: `tenonry`, the default, or `tenonry_worker_torch`. `ignore_imports` and
    `unmatched_ignore_imports_alerting` as in other contracts.
    """

    type_name = "public_modules"
    package = fields.StringField(required=False)
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)
    unmatched_ignore_imports_alerting = fields.EnumField(AlertLevel, default=AlertLevel.ERROR)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find imports of inner modules."""
        removal = contract_utils.remove_ignored_imports_and_report(
            graph=graph,
            ignore_imports=self.ignore_imports,
            unmatched_alerting=self.unmatched_ignore_imports_alerting,
        )
        package = str(self.package or KERNEL)
        if package not in PUBLIC_OF:
            raise ValueError(f"package = {package!r} must be one of {', '.join(PUBLIC_OF)}")
        plugins = [name for name in graph.modules if name.partition(".")[0] != package]
        inner = [
            f"{importer} -> {imported}"
            for importer in sorted(plugins)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported.partition(".")[0] == package and not is_public(imported)
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
