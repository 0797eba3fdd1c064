"""Every hook of the kernel: the manual for authors of hook modules.

A hook module is an ordinary Python module, named in the entry-point group `tenonry.plugins` (or passed to
`PluginManager.register`), whose functions carry the marker `tenonry.hookimpl`:

    from tenonry.plugin.hookspecs import hookimpl

    @hookimpl
    def tenonry_get_scheduler(name, config):
        if name == "auto":
            return "my_pkg.short:ShortFirst" if config.max_num_seqs < 8 else "my_pkg.fair:Fair"

Hooks run at start-up, in the process that starts the engines, never per request or per token. They answer with names
(`"module:Class"`), because names travel to other processes and classes do not. All are `firstresult`: the first
answer other than None wins; implementations registered last are asked first, `@hookimpl(trylast=True)` ones at the end,
where the kernel's own answer from the entry points stands.
"""

from __future__ import annotations

import pluggy

from tenonry.config import EngineConfig
from tenonry.info import EngineInfo, ModelInfo

PROJECT = "tenonry"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# ------------------------------------------------------------------------------------------- choosing implementations
# Called once per kind that the configuration names without a colon, before anything is started. `name` is what the
# user typed. An unknown name is answered with None, never with an exception.


@hookspec(firstresult=True)
def tenonry_get_executor(name: str, config: EngineConfig) -> str | None:
    """The class of executor `name`, as "module:Class"; see `tenonry.interfaces.executor`."""


@hookspec(firstresult=True)
def tenonry_get_scheduler(name: str, config: EngineConfig) -> str | None:
    """The class of scheduler `name`, as "module:Class"; see `tenonry.interfaces.scheduler`."""


@hookspec(firstresult=True)
def tenonry_get_stat_logger(name: str, config: EngineConfig) -> str | None:
    """The class of stat logger `name`, as "module:Class"; called once per chosen logger."""


@hookspec(firstresult=True)
def tenonry_get_kv_connector(name: str, config: EngineConfig) -> str | None:
    """The class of KV connector `name`, as "module:Class"; only called when one is configured."""


@hookspec(firstresult=True)
def tenonry_get_io_processor(name: str, config: EngineConfig) -> str | None:
    """The class of IO processor `name`, as "module:Class"."""


@hookspec(firstresult=True)
def tenonry_get_worker(name: str, config: EngineConfig) -> str | None:
    """The class of worker `name`, as "module:Class"."""


@hookspec(firstresult=True)
def tenonry_get_launcher(name: str, config: EngineConfig) -> str | None:
    """The class of launcher `name`, as "module:Class"; only called when engines run in processes of their own."""


# ------------------------------------------------------------------------------------------------------------ the model


@hookspec(firstresult=True)
def tenonry_resolve_model(config: EngineConfig) -> ModelInfo | None:
    """Facts of `config.model`, from small files only; called once, in the front end, before anything is started.

    None when this implementation does not know the model; ModelError when it does and the model is unusable.
    """


# -------------------------------------------------------------------------------------------------------- life of a run


@hookspec
def tenonry_configured(config: EngineConfig) -> None:
    """The configuration is final and the plan is made; nothing is started yet. Raise ConfigError to refuse it."""


@hookspec
def tenonry_engine_ready(info: EngineInfo) -> None:
    """All engines answered; requests are accepted from now on."""
