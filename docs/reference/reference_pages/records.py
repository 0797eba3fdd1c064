"""The page of records: values that plugins receive and return."""

from __future__ import annotations

import enum
import importlib
import inspect
from typing import Any

import msgspec
import numpy as np

from reference_pages.text import NOTICE, signature

# What a plugin is given or gives back, by who needs it.
RECORDS = {
    "Every plugin": ["interfaces.plugin:Plugin", "interfaces.plugin:PluginOptions", "info:ModelInfo"],
    "Schedulers and policies": [
        "tenonry_scheduler_batching.policy:SchedulingPolicy", "tenonry_scheduler_batching.policy:AdmissionState",
        "request:Request", "request:RequestStatus", "messages:EngineCoreRequest", "sampling_params:SamplingParams",
        "sampling_params:StructuredOutput", "step:Media", "messages:EngineCoreOutputs", "messages:ScheduledOutput",
        "messages:FinishedOutput", "outputs:FinishReason", "tenonry_scheduling:BaseScheduler",
        "tenonry_scheduling:StepBuilder", "tenonry_scheduling:BlockManager",
    ],
    "Stat loggers": [
        "stats:StatRecord", "stats:SchedulerStats", "stats:IterationStats", "stats:FinishedRequestStats",
        "info:EngineInfo",
    ],
    "IO processors": [
        "interfaces.io_processor:ProcessedPrompt", "interfaces.io_processor:Detokenizer", "outputs:RequestOutput",
        "outputs:CompletionOutput",
    ],
    "KV connectors": ["interfaces.kv_connector:BlockStore", "interfaces.kv_connector:KVConnectorRole"],
    "Executors and workers": [
        "info:WorkerFacts",
        "kv_cache:KVCacheGroup", "kv_cache:LengthClasses", "kv_cache:MemoryReport", "kv_cache:KVCacheConfig",
        "step:SchedulerOutput",
        "step:NewRow", "step:Adapter", "step:ModelRunnerOutput", "step:TokenLogprobs", "step:PromptLogprobs",
        "step:RowFailure", "step:StepFuture", "step:DoneFuture",
        "tenonry_scheduling:BatchState", "tenonry_scheduling:StepInputs",
    ],
    "Launchers": ["interfaces.launcher:EngineSpec"],
    "Call sets": [
        "interfaces.call_set:Engine", "interfaces.call_set:EngineCalls", "interfaces.call_set:FrontEnd",
        "interfaces.call_set:FrontEndHalf",
    ],
    "Request checks": ["interfaces.request_check:RequestLimits"],
    "Step observers": ["interfaces.step_observer:StepObserver"],
    "Commands": ["interfaces.command:Command"],
    "Routes": ["tenonry_openai_server.routes.plugins:RouteContext"],
    "Load balancers": [
        "tenonry_scale_out.load_balancer:LoadBalancer", "tenonry_scale_out.load_balancer:LoadBalancerContext",
    ],
    "Output parsers": [
        "tenonry_output_parsers.base:OutputParser", "tenonry_output_parsers.base:ParserContext",
    ],
    "Drafters": ["tenonry_drafters.base:Drafter", "tenonry_drafters.base:DrafterContext"],
    "Grammars": [
        "tenonry_grammars.base:GrammarBackend", "tenonry_grammars.base:GrammarContext",
        "tenonry_grammars.base:Grammar", "tenonry_grammars.base:Matcher",
    ],
    "Image processors": [
        "tenonry_images.base:ImageProcessor", "tenonry_images.base:ImageContext", "tenonry_images.base:ImageLimits",
        "tenonry_images.base:ProcessedImage",
    ],
    "Logits processors": [
        "tenonry_torch_base.sampler.processors:LogitsProcessor",
        "tenonry_torch_base.sampler.processors:ProcessorContext",
        "tenonry_torch_base.sampler.processors:SampleStep",
    ],
    "Runner features": [
        "tenonry_worker_torch.runner.feature:RunnerFeature", "tenonry_worker_torch.runner.feature:RunnerContext",
        "tenonry_worker_torch.runner.step:Step",
    ],
    "Model passes": [
        "tenonry_worker_torch.passes.model_pass:ModelPass", "tenonry_worker_torch.passes.model_pass:PassFacts",
    ],
    "Step buffers": ["tenonry_torch_base.buffers:StepBuffers"],
    "Attention backends": [
        "tenonry_torch_base.attention.base:AttentionBackend", "tenonry_torch_base.attention.base:LayerSpec",
        "tenonry_torch_base.attention.base:AttentionBatch",
    ],
    "Quantisations": [
        "tenonry_torch_base.quantisations:Quantisation", "tenonry_torch_base.quantisations:QuantisedWeight",
        "tenonry_torch_base.quantisations:QuantisedLinear",
    ],
    "Step kernels": ["tenonry_torch_base.step_kernels:StepKernels"],
}  # fmt: skip


def records_page() -> str:
    """Records of plugins: fields with types and defaults, methods with signatures."""
    parts = [
        "# Records\n",
        NOTICE,
        "What plugins are given and give back; [interfaces](interfaces.md) says when.\n",
    ]
    for title, targets in RECORDS.items():
        parts += [f"## {title}\n"]
        for target in targets:
            module, _, name = target.partition(":")
            path = module if module.startswith("tenonry_") else f"tenonry.{module}"
            cls = getattr(importlib.import_module(path), name)
            place = f"`{path}.{name}`" + (
                ", keyword arguments only" if _is_keyword_only(cls) else ""
            )
            parts += [f"### {name}\n", f"{place}\n", inspect.getdoc(cls) or "", ""]
            members = [*_fields(cls), *_members(cls)]
            parts += [*(f"- {member}" for member in members), *([""] if members else [])]
    return "\n".join(parts).rstrip() + "\n"


def _is_keyword_only(cls: type) -> bool:
    """Return True for a record whose constructor takes no positional argument."""
    if not issubclass(cls, msgspec.Struct):
        return False
    kinds = {each.kind for each in inspect.signature(cls).parameters.values()}
    return kinds == {inspect.Parameter.KEYWORD_ONLY}


def _fields(cls: type) -> list[str]:
    """Fields of a record, or the plain attributes that a class declares."""
    if issubclass(cls, enum.Enum):
        return [f"`{member.name}`" for member in cls]
    if not issubclass(cls, msgspec.Struct):
        known = vars(cls)
        slots = [name for name in known.get("__slots__", ()) if not name.startswith("_")]
        hints = [
            f"{name}: {getattr(hint, '__forward_arg__', hint)}"
            for name, hint in known.get("__annotations__", {}).items()
            if name[0] != "_"
        ]
        constants = [
            f"{name} = {value}"
            for name, value in known.items()
            if name.isupper() and isinstance(value, int)
        ]
        return [f"`{text}`" for text in (*slots, *hints, *constants)]
    return [
        f"`{field.name}: {cls.__annotations__.get(field.name, '')}{_of(field)}`"
        for field in msgspec.structs.fields(cls)
    ]


def _of(field: Any) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return "" if value is msgspec.NODEFAULT else f" = {_plain(value)!r}"


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _members(cls: type) -> list[str]:
    """Properties and methods of its own, with the first line of their docstrings."""
    lines = []
    for name, member in vars(cls).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        text = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")
        sign = signature(member) if inspect.isfunction(member) else ""
        lines.append(f"`{name}{sign}`" + (f": {text}" if text else ""))
    return lines
