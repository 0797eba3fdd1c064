"""The kinds of plugin that the kernel chooses: group, interface and hook of each. Any process; imports no interface."""

from __future__ import annotations

from dataclasses import dataclass

from tenonry.point import Point


@dataclass(frozen=True, kw_only=True)
class Kind(Point):
    """A point of the kernel. `base` is "module:Class"; `lives_in`: processes that build it. `needed_by`: settings of
    which one must be non-default for a plugin of the kind to be chosen.
    """

    lives_in: str
    needed_by: tuple[str, ...] = ()

    @property
    def hook(self) -> str:
        return f"tenonry_get_{self.kind}"


def _kind(kind: str, class_name: str, lives_in: str, **provider: str) -> Kind:
    return Kind(
        f"tenonry.{kind}s", f"tenonry.interfaces.{kind}:{class_name}", provider, lives_in=lives_in
    )


KINDS: dict[str, Kind] = {
    kind.kind: kind
    for kind in (
        _kind(
            "executor",
            "Executor",
            "engine",
            uni="tenonry-executor-uniproc",
            mp="tenonry-executor-multiproc",
            ray="tenonry-executor-ray",
        ),
        _kind(
            "scheduler",
            "Scheduler",
            "engine",
            batching="tenonry-scheduler-batching",
            static="tenonry-scheduler-static",
        ),
        _kind(
            "stat_logger",
            "StatLogger",
            "front end",
            console="tenonry-stat-logger-console",
            opentelemetry="tenonry-stat-logger-opentelemetry",
            prometheus="tenonry-stat-logger-prometheus",
        ),
        _kind("kv_connector", "KVConnector", "engine and worker"),
        _kind("io_processor", "IOProcessor", "front end", text="tenonry-io-text"),
        Kind(
            "tenonry.request_codecs",
            "tenonry.interfaces.request_codec:RequestCodec",
            {"mirror": "tenonry-images"},
            lives_in="front end and engine",
            tier="alpha",
        ),
        _kind(
            "worker",
            "Worker",
            "worker",
            auto="tenonry-worker-auto",
            torch="tenonry-worker-torch",
            transformers="tenonry-worker-transformers",
            pooling="tenonry-worker-torch",
            null="tenonry-bench",
        ),
        _kind(
            "launcher",
            "Launcher",
            "front end",
            fork="tenonry-launcher-fork",
            ray="tenonry-executor-ray",
        ),
        Kind(
            "tenonry.coordinations",
            "tenonry.interfaces.coordination:Coordination",
            {"scale-out": "tenonry-scale-out"},
            lives_in="front end and engine",
            tier="alpha",
            needed_by=("data_parallel_size", "load_balancer"),
        ),
        _kind(
            "call_set",
            "CallSet",
            "front end and engine",
            adapters="tenonry-operations",
            decisions="tenonry-decisions",
            operations="tenonry-operations",
            pooling="tenonry-worker-torch",
            scaling="tenonry-scale-out",
        ),
        Kind(
            "tenonry.engine_recoveries",
            "tenonry.interfaces.recovery:EngineRecovery",
            {"resume": "tenonry-recovery"},
            lives_in="front end",
            tier="alpha",
        ),
    )
}

# Kinds of `LLM`, whose engine runs in the caller's process.
IN_PROCESS = (
    "executor",
    "scheduler",
    "stat_logger",
    "kv_connector",
    "io_processor",
    "worker",
    "call_set",
)

HOOK_MODULES = Point("tenonry.plugins", kind="hook_module")
# Context manager of the number of requests; it yields a function that receives the number of ended ones.
PROGRESS_BARS = Point("tenonry.progress_bars", provider={"default": "tenonry-commands"})
REQUEST_CHECKS = Point("tenonry.request_checks")
STEP_OBSERVERS = Point(
    "tenonry.step_observers",
    "tenonry.interfaces.step_observer:StepObserver",
    {"validator": "tenonry-scheduling"},
    tier="alpha",
)
EVERY_INSTALLED = (REQUEST_CHECKS, STEP_OBSERVERS)  # active without being chosen
# PluginSettings of plugins, named KIND.NAME, in modules that import quickly.
SETTINGS = Point(
    "tenonry.settings",
    "tenonry.interfaces.plugin:PluginSettings",
    {"validate_scheduler": "tenonry-scheduling"},  # by setting
    kind="settings",
)
UNNAMED = (HOOK_MODULES, SETTINGS, *EVERY_INSTALLED)  # without class names in the configuration
# Points opened by plugins, as "module:POINT".
POINTS = Point("tenonry.points")
