"""Every hook of the kernel: the manual for authors of hook modules.

A hook module is an ordinary Python module, named in the entry-point group `tenonry.plugins` (or passed to
`PluginManager.register`), whose functions carry the marker `tenonry.hookimpl`:

    from tenonry.plugin.hookspecs import hookimpl

    @hookimpl
    def tenonry_get_scheduler(name, config):
        if name == "auto":
            return "my_pkg.short:ShortFirst" if config.max_num_seqs < 8 else "my_pkg.fair:Fair"

Hooks run at start-up, in the process that starts the engines, never per request or per token; those that choose, again
whenever settings are read, with what is known of the configuration by then. An implementation may
leave out arguments that it does not need. A misspelt hook name or an unknown argument stops the start and names the
module. An installed one that has nothing to do, such as without a variable that it reads, may define `is_idle()`: where
that returns True it is not called, and does not stand among the plugins in use.

Order: the implementation that was registered last is called first; those marked `@hookimpl(trylast=True)` come at the
end, as defaults that any other one overrides. The kernel's own implementation of a choosing hook, which reads the entry
points, is `trylast` as well and the last of all. Hooks that choose something stop at the first
answer other than None; the others call every implementation.

Exceptions: those of `tenonry.errors` end the start with their own message and the hook module. Any other one,
SystemExit included, ends it with PluginFault, which names the hook module, its distribution, its version, and the hook.
"""

from __future__ import annotations

import pluggy

from tenonry.config import EngineConfig
from tenonry.info import EngineInfo, ModelInfo

PROJECT = "tenonry"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
first_answer = hookspec(firstresult=True)

# ------------------------------------------------------------------------------------------- choosing implementations
# Called for each plugin that the configuration names without a colon, before anything is started, except
# `module:Class` and `path.py:Class`.


@first_answer
def tenonry_get_executor(name: str, config: EngineConfig) -> str | None:
    """Name the class of an executor, which runs the ranks of one engine.

    Called with what stands behind `--executor` and the complete configuration. Answer "module:Class", a subclass
    of `tenonry.interfaces.executor.Executor`, or None for a name that is not yours; None from all hook modules leaves
    the answer to the kernel's own implementation, which reads the entry points in `tenonry.executors`. For an exception
    see the top of this page.

        @hookimpl
        def tenonry_get_executor(name, config):
            return "acme.pool:PoolExecutor" if name == "pool" and config.world_size > 1 else None
    """


@first_answer
def tenonry_get_scheduler(name: str, config: EngineConfig) -> str | None:
    """Name the class of a scheduler, which decides what runs next.

    Called with what stands behind `--scheduler`. Answer "module:Class", a subclass of
    `tenonry.interfaces.scheduler.Scheduler`, or None for a name that is not yours. For an exception see the top of this
    page.

        @hookimpl
        def tenonry_get_scheduler(name, config):
            return "acme.fair:FairScheduler" if name == "fair" else None
    """


@first_answer
def tenonry_get_stat_logger(name: str, config: EngineConfig) -> str | None:
    """Name the class of a stat logger, which receives statistics.

    Called for each `--stat-logger`. Answer "module:Class", a subclass of
    `tenonry.interfaces.stat_logger.StatLogger`, or None for a name that is not yours. For an exception see the top of
    this page.

        @hookimpl
        def tenonry_get_stat_logger(name):
            return "acme.metrics:AcmeStatLogger" if name == "acme" else None
    """


@first_answer
def tenonry_get_kv_connector(name: str, config: EngineConfig) -> str | None:
    """Name the class of a KV connector, which moves KV blocks in or out of the engine.

    Called only when `--kv-connector` is given. Answer "module:Class", a subclass of
    `tenonry.interfaces.kv_connector.KVConnector`, or None for a name that is not yours. For an exception see the top of
    this page.

        @hookimpl
        def tenonry_get_kv_connector(name):
            return "acme.store:StoreConnector" if name == "store" else None
    """


@first_answer
def tenonry_get_io_processor(name: str, config: EngineConfig) -> str | None:
    """Name the class of an IO processor, which turns prompts into tokens and tokens into text.

    Called unless `io_processor` is none. Answer "module:Class", a subclass of
    `tenonry.interfaces.io_processor.IOProcessor`, or None for a name that is not yours. For an exception see the top of
    this page.

        @hookimpl
        def tenonry_get_io_processor(name, config):
            return "acme.bytes:ByteProcessor" if name == "bytes" else None
    """


@first_answer
def tenonry_get_request_codec(name: str, config: EngineConfig) -> str | None:
    """Name the class of a request codec, which encodes requests for engines.

    Called only where engines run in processes of their own; `LLM` has none. Answer "module:Class", a subclass
    of `tenonry.interfaces.request_codec.RequestCodec`, or None for a name that is not yours. For an exception see the
    top of this page.

        @hookimpl
        def tenonry_get_request_codec(name):
            return "acme.codec:DocumentCodec" if name == "documents" else None
    """


@first_answer
def tenonry_get_worker(name: str, config: EngineConfig) -> str | None:
    """Name the class of a worker, which runs the model of one rank.

    Called with what stands behind `--worker`. Answer "module:Class", a subclass of
    `tenonry.interfaces.worker.Worker` whose module imports no heavy library, or None for a name that is not yours. For
    an exception see the top of this page.

        @hookimpl
        def tenonry_get_worker(name, config):
            return "acme.chip:ChipWorker" if name == "auto" and config.device == "cpu" else None
    """


@first_answer
def tenonry_get_launcher(name: str, config: EngineConfig) -> str | None:
    """Name the class of a launcher, which starts engine processes.

    Called only where engines run in processes of their own; `LLM` has none. Answer "module:Class", a subclass
    of `tenonry.interfaces.launcher.Launcher`, or None for a name that is not yours. For an exception see the top of
    this page.

        @hookimpl
        def tenonry_get_launcher(name):
            return "acme.cluster:ClusterLauncher" if name == "cluster" else None
    """


@first_answer
def tenonry_get_engine_recovery(name: str, config: EngineConfig) -> str | None:
    """Name the class of an engine recovery, which decides what becomes of dead engines and their requests.

    Called with what stands behind `--engine-recovery`. Answer "module:Class", a subclass of
    `tenonry.interfaces.recovery.EngineRecovery`, or None for a name that is not yours. For an exception see the top of
    this page.

        @hookimpl
        def tenonry_get_engine_recovery(name):
            return "acme.pager:PagingRecovery" if name == "page" else None
    """


@first_answer
def tenonry_get_coordination(name: str, config: EngineConfig) -> str | None:
    """Name the class of a coordination, which joins several engines, front ends or nodes.

    Called where there are several of them, or where `--load-balancer` is given. Answer "module:Class", a subclass of
    `tenonry.interfaces.coordination.Coordination`, or None for a name that is not yours. For an exception see the top
    of this page.

        @hookimpl
        def tenonry_get_coordination(name, config):
            return "acme.mesh:Mesh" if name == "mesh" else None
    """


@first_answer
def tenonry_get_call_set(name: str, config: EngineConfig) -> str | None:
    """Name the class of a call set, which offers calls of engines that run.

    Called for each of `call_sets`. Answer "module:Class", a subclass of `tenonry.interfaces.call_set.CallSet`, or
    None for a name that is not yours. For an exception see the top of this page.

        @hookimpl
        def tenonry_get_call_set(name):
            return "acme.counters:CounterCalls" if name == "counters" else None
    """


# ------------------------------------------------------------------------------------------------------------ the model


@first_answer
def tenonry_resolve_model(config: EngineConfig) -> ModelInfo | None:
    """Find the model and return its facts, from small files only; no weights are read.

    Called once, in the front end, after the plugins were chosen and before anything is started. `config.model` is the
    user's input. Return a ModelInfo, or None for an unknown model; raise ModelError for a known but unusable one. If
    all return None the start ends with ModelError.

        @hookimpl
        def tenonry_resolve_model(config):
            if config.model != "acme-1":
                return None
            return ModelInfo(name="acme-1", path="/models/1", architecture="A", max_model_len=4096, vocab_size=32000)
    """


# -------------------------------------------------------------------------------------------------------- life of a run


@hookspec
def tenonry_configured(config: EngineConfig) -> None:
    """React to the final configuration and plugins; nothing is started yet.

    Called once, on every implementation. The result is ignored; the configuration cannot be changed. Raise ConfigError
    to reject it.

        @hookimpl
        def tenonry_configured(config):
            if config.max_num_seqs > 64:
                raise ConfigError(f"max_num_seqs={config.max_num_seqs}: at most 64 on this cluster")
    """


@hookspec
def tenonry_engine_ready(info: EngineInfo) -> None:
    """React to the start of all engines; requests are accepted from now on.

    Called once, on every implementation, in the process that started the engines. `info` names model, sizes and the
    plugins in use. The result is ignored; an exception ends the start and stops the engines.

        @hookimpl
        def tenonry_engine_ready(info):
            print(info.served_model_name, info.num_gpu_blocks)
    """
