"""Conformance suites of all kinds and points of this project. Any process; imports none of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Suite:
    """Suite `name` in `module`, whose `attribute` names the plugin. `needs_name_only`: all else has a default."""

    module: str
    name: str
    attribute: str
    needs_name_only: bool = True

    def load(self) -> type[Any]:
        """Import and return the class."""
        found: type[Any] = getattr(importlib.import_module(self.module), self.name)
        return found


def _suite(module: str, name: str, attribute: str = "", *, needs_name_only: bool = True) -> Suite:
    return Suite(f"tenonry_testkit.{module}", name, attribute or module, needs_name_only)


SUITES: dict[str, Suite] = {
    "attention_backend": _suite("attention_backend", "AttentionBackendContract"),
    "buffers": _suite("buffers", "StepBuffersContract"),
    "call_set": _suite("call_set", "CallSetContract", needs_name_only=False),
    "command": _suite("command", "CommandContract"),
    "coordination": _suite("coordination", "CoordinationContract"),
    "drafter": _suite("drafter", "DrafterContract"),
    "engine_recovery": _suite("engine_recovery", "EngineRecoveryContract", "recovery"),
    "executor": _suite("executor", "ExecutorContract"),
    "grammar": _suite("grammar", "GrammarContract", "backend", needs_name_only=False),
    "hook_module": _suite("hook_module", "HookModuleContract"),
    "image_processor": _suite("image_processor", "ImageProcessorContract", needs_name_only=False),
    "io_processor": _suite("io_processor", "IOProcessorContract", needs_name_only=False),
    "kv_connector": _suite("kv_connector", "KVConnectorContract", needs_name_only=False),
    "launcher": _suite("launcher", "LauncherContract"),
    "load_balancer": _suite("load_balancer", "LoadBalancerContract"),
    "logits_processor": _suite(
        "logits_processor", "LogitsProcessorContract", needs_name_only=False
    ),
    "model": _suite("model", "ModelContract"),
    "model_pass": _suite("model_pass", "ModelPassContract"),
    "output_parser": _suite("output_parser", "OutputParserContract", needs_name_only=False),
    "plugin_command": _suite("command", "CommandContract"),
    "progress_bar": _suite("progress_bar", "ProgressBarContract"),
    "quantisation": _suite("quantisation", "QuantisationContract"),
    "request_check": _suite("request_check", "RequestCheckContract"),
    "request_codec": _suite("request_codec", "RequestCodecContract"),
    "route": _suite("route", "RouteContract"),
    "runner_feature": _suite("runner_feature", "RunnerFeatureContract", "feature"),
    "scheduler": _suite("scheduler", "SchedulerContract"),
    "scheduling_policy": _suite("scheduler", "SchedulerContract", "policy"),
    "settings": _suite("settings", "SettingsContract"),
    "stat_logger": _suite("stat_logger", "StatLoggerContract"),
    "step_kernels": _suite("step_kernels", "StepKernelsContract", "kernels"),
    "step_observer": _suite("step_observer", "StepObserverContract"),
    "worker": _suite("worker", "WorkerContract"),
}
