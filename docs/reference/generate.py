"""Writes the reference pages from the code. `--check` compares.

Run it as `python docs/reference/generate.py` after a change; a test fails when the pages are out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pydantic import BaseModel

from tenonry.cli import COMMANDS, make_parser
from tenonry.config import EngineConfig, PluginChoice, fact
from tenonry.config.sources import ENV_PREFIX
from tenonry.plugin import hookspecs
from tenonry.plugin.checks import supported_versions
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import EVERY_INSTALLED, HOOK_MODULES, KINDS
from tenonry.plugin.manager import resolve_point, settings_of
from tenonry.sampling_params import SamplingParams
from tenonry_commands.flags import flags_of
from tenonry_commands.plugins import PLUGIN_COMMANDS, points
from tenonry_commands.setting_texts import setting_texts
from tenonry_testkit.import_contract import PUBLIC, PUBLIC_OF_WORKER_TORCH

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# How many plugins of a kind one engine has, where it is not exactly one.
HOW_MANY = {
    "stat_logger": "any",
    "call_set": "any",
    "kv_connector": "none or one",
    "worker": "one per rank",
}
# Points that owners open: what a name stands for, and what asks for it.
OWNERS = {
    "scheduling_policy": (
        "`tenonry_scheduler_batching.SchedulingPolicy`", "the scheduler `batching`: `--scheduling-policy`",
    ),
    "buffers": ("`tenonry_torch_base.buffers.StepBuffers`", "workers on torch: `--worker-option buffers=`"),
    "attention_backend": (
        "`tenonry_torch_base.attention.base.AttentionBackend`", "the worker `torch`: `--attention-backend`",
    ),
    "model_pass": (
        "`tenonry_worker_torch.passes.model_pass.ModelPass`", "the worker `torch`: `--worker-option model_passes=`",
    ),
    "runner_feature": (
        "`tenonry_worker_torch.runner.feature.RunnerFeature`",
        "the worker `torch`: `--worker-option runner_features=`",
    ),
    "drafter": ("`tenonry_drafters.base.Drafter`", "the worker `torch`: `--drafter`"),
    "logits_processor": (
        "`tenonry_torch_base.sampler.processors.LogitsProcessor`",
        "workers on torch: `--worker-option logits_processors=`",
    ),
    "model": ("a function without arguments, that returns a folder", "`hf-hub`: the model's name"),
    "command": ("`tenonry.interfaces.command.Command`", "the command line: `tenonry NAME`"),
    "plugin_command": (
        "`tenonry.interfaces.command.Command`", "the command `plugins`: `tenonry plugins NAME`",
    ),
    "progress_bar": (
        "a context manager of the number of requests, that yields a function of how many ended",
        "`LLM.generate(prompts, use_tqdm=True)`: `default`",
    ),
    "load_balancer": (
        "`tenonry_scale_out.load_balancer.LoadBalancer`", "the coordination `scale-out`: `--load-balancer`",
    ),
    "request_check": (
        "a function, see `tenonry.interfaces.request_check`", "front ends and engines: every installed one",
    ),
    "step_observer": (
        "`tenonry.interfaces.step_observer.StepObserver`", "engines: every installed one",
    ),
    "output_parser": ("`tenonry_output_parsers.base.OutputParser`", "`tenonry serve`: `--output-parser`"),
    "route": ("a function of a `RouteContext`, that returns an ASGI application", "`tenonry serve`: `--route`"),
}  # fmt: skip
# What a plugin is given or gives back, by who needs it.
RECORDS = {
    "Every plugin": ["interfaces.plugin:Plugin", "interfaces.plugin:PluginOptions", "info:ModelInfo"],
    "Schedulers and policies": [
        "request:Request", "messages:EngineCoreRequest", "tenonry_scheduling:BaseScheduler",
        "tenonry_scheduling:StepBuilder",
        "tenonry_scheduling:BlockManager",
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
        "kv_cache:KVCacheGroup", "kv_cache:MemoryReport", "kv_cache:KVCacheConfig", "step:SchedulerOutput",
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
}  # fmt: skip
# What is typed for a setting without a flag of its name.
NO_FLAG = {
    "model": "MODEL",
    "models": "none",
    "process_note": "none",
    "plugins": "`--allow-plugin`, `--disable-plugin`",
}
NOTICE = "<!-- Generated by generate.py; edit the docstrings instead. -->\n"


def hooks_page() -> str:
    """Every hookspec with its signature, in the order of the file."""
    parts = ["# Hooks\n", NOTICE, inspect.getdoc(hookspecs) or "", ""]
    for name, function in vars(hookspecs).items():
        if name.startswith("tenonry_"):
            options = getattr(function, f"{hookspecs.PROJECT}_spec")
            wins = "the first answer other than None wins"
            first = wins if options["firstresult"] else "all implementations are called"
            parts += [
                f"## `{name}{_signature(function)}`\n",
                inspect.getdoc(function) or "",
                f"\n*{first}*\n",
            ]
    return "\n".join(parts).rstrip() + "\n"


def interfaces_page() -> str:
    """Every kind of plugin: group, contract, methods."""
    parts = ["# Interfaces\n", NOTICE, _kinds_table()]
    for kind in KINDS.values():
        interface: Any = kind.load_base()
        supported = supported_versions(interface)
        module = importlib.import_module(interface.__module__)
        parts += [
            f"## {interface.__name__}\n",
            f"`{interface.__module__}.{interface.__name__}`, group `{kind.group}`, ",
        ]
        parts += [f"interface versions {list(supported)}.\n", inspect.getdoc(module) or "", ""]
        parts += [inspect.getdoc(interface) or "", ""]
        context = getattr(module, f"{interface.__name__}Context", None)
        if context is not None:
            fields = ", ".join(
                f"`{field.name}: {field.type}`" for field in dataclasses.fields(context)
            )
            parts += [
                f"**Context** (`{context.__name__}`: {fields})\n",
                inspect.getdoc(context) or "",
                "",
            ]
        for name, member in vars(interface).items():
            function = member.__func__ if isinstance(member, classmethod) else member
            if inspect.isfunction(function) and not name.startswith("_"):
                note = (
                    "" if getattr(function, "__isabstractmethod__", False) else " *(has a default)*"
                )
                parts += [
                    f"### `{name}{_signature(function)}`{note}\n",
                    inspect.getdoc(function) or "",
                    "",
                ]
    return "\n".join(parts).rstrip() + "\n"


def _kinds_table() -> str:
    lines = ["| kind | entry-point group | lives in | how many | tier |", "|---|---|---|---|---|"]
    lines += [
        f"| {kind.kind} | `{kind.group}` | {kind.lives_in} | {HOW_MANY.get(kind.kind, 'one')} | {kind.tier} |"
        for kind in KINDS.values()
    ]
    lines += [
        f"| hook module | `{HOOK_MODULES.group}` | where an engine is started | any | {HOOK_MODULES.tier} |",
        "",
    ]
    lines += [
        "Parts open further points, which are resolved in the process of the part. Any plugin can open one: it",
        "declares a `tenonry.plugin.Point` and names it in the group `tenonry.points`. Those of this repository:\n",
    ]
    lines += [
        "| kind | entry-point group | a name stands for | asked by | tier |",
        "|---|---|---|---|---|",
    ]
    opened = {point.kind: point for point in points()}
    opened |= {point.kind: point for point in EVERY_INSTALLED}
    lines += [
        f"| {kind} | `{opened[kind].group}` | {what} | {who} | {opened[kind].tier} |"
        for kind, (what, who) in OWNERS.items()
    ]
    lines += [
        "\n[Versions](../explanation/versioning.md#tiers) says what a tier promises.",
        "[Records](records.md) has what plugins are given and give back.\n",
    ]
    return "\n".join(lines)


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
            parts += [f"### {name}\n", f"`{path}.{name}`\n", inspect.getdoc(cls) or "", ""]
            members = [*_fields(cls), *_members(cls)]
            parts += [*(f"- {member}" for member in members), *([""] if members else [])]
    return "\n".join(parts).rstrip() + "\n"


def _fields(cls: type) -> list[str]:
    """Fields of a record, or the plain attributes that a class declares."""
    if issubclass(cls, enum.Enum):
        return [f"`{member.name}`" for member in cls]
    if not issubclass(cls, msgspec.Struct):
        known = vars(cls)
        slots = [name for name in known.get("__slots__", ()) if not name.startswith("_")]
        hints = [
            f"{name}: {hint}"
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
        sign = _signature(member) if inspect.isfunction(member) else ""
        lines.append(f"`{name}{sign}`" + (f": {text}" if text else ""))
    return lines


def config_page() -> str:
    """Every field of EngineConfig, of the installed plugins, of ServerConfig, of HostConfig and of SamplingParams."""
    from tenonry_openai_server.hosting.settings import HostConfig
    from tenonry_openai_server.settings import ServerConfig

    parts = [
        "# Configuration\n",
        NOTICE,
        inspect.getdoc(importlib.import_module("tenonry.config")) or "",
        "",
    ]
    parts += ["## Engine\n", *_settings_table(EngineConfig)]
    parts += ["", f"Each field is also read from the environment: `{ENV_PREFIX}MAX_NUM_SEQS=64`.\n"]
    parts += [
        "## Plugins\n",
        "What each plugin adds where it is chosen, with flags, variables and file alike.\n",
    ]
    for title, settings in _plugin_settings():
        parts += [f"### {title}\n", *_settings_table(settings), ""]
    parts += [
        "## Server\n",
        "What `tenonry serve` has besides, with flags, variables and file alike.\n",
    ]
    parts += [*_settings_table(ServerConfig), ""]
    parts += [
        "## Several models\n",
        "What `tenonry serve` has for several models in one server; `models` only in the file of `--config`.\n",
    ]
    parts += [*_settings_table(HostConfig), ""]
    parts += [
        "## Sampling\n",
        inspect.getdoc(SamplingParams) or "",
        "",
        "| field | default |",
        "|---|---|",
    ]
    for name, default in zip(
        SamplingParams.__struct_fields__, SamplingParams.__struct_defaults__, strict=True
    ):
        parts.append(f"| `{name}` | {_default(default)} |")
    return "\n".join(parts) + "\n"


def _plugin_settings() -> list[tuple[str, type[BaseModel]]]:
    """The models of settings of all plugins, each once, under the plugins that have it."""
    from tenonry_openai_server.points import ROUTES

    found: dict[type[BaseModel], list[str]] = {}
    for point in (*KINDS.values(), *EVERY_INSTALLED, ROUTES):
        for record in installed(point):
            settings = settings_of(record)
            if settings.model_fields:
                kind = record.kind.replace("_", " ")
                found.setdefault(settings, []).append(
                    f"{kind} `{record.name}` ({record.distribution})"
                )
    return [(", ".join(names), settings) for settings, names in found.items()]


def _settings_table(model: type[BaseModel]) -> list[str]:
    """One row per field, with the flags that `fact` knows of it."""
    rows = ["| field | flag | default | meaning |", "|---|---|---|---|"]
    texts = setting_texts(model)
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else _default(field.default)
        flags = ", ".join(f"`{flag}`" for flag in flags_of(name, field))
        flag = flags if fact(field, "flag") is not None else NO_FLAG[name]
        rows.append(f"| `{name}` | {flag} | {default} | {field.description or texts[name]} |")
    return rows


def metrics_page() -> str:
    """Every metric of the prometheus stat logger."""
    from tenonry_stat_logger_prometheus import metric_table

    parts = ["# Metrics\n", NOTICE]
    parts += [
        "Those that vLLM measures, too, have an alias under its prefix, `vllm:`, unless that is switched off.\n"
    ]
    parts += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    parts += [
        f"| `{name}` | {kind} | {', '.join(labels)} | {text} |"
        for name, kind, labels, text in metric_table()
    ]
    return "\n".join(parts) + "\n"


def commands_page() -> str:
    """Every verb of the command line."""
    parts = ["# Commands\n", NOTICE, "`tenonry VERB --help` lists the flags of one.\n"]
    parts += ["| command | does | from |", "|---|---|---|"]
    for entry in installed(COMMANDS):
        _, command = make_parser(entry.name)
        parts.append(f"| `tenonry {entry.name}` | {command.summary} | {entry.distribution} |")
    for entry in installed(PLUGIN_COMMANDS):
        found, _ = resolve_point(PLUGIN_COMMANDS, entry.name)
        parts.append(f"| `tenonry plugins {entry.name}` | {found.summary} | {entry.distribution} |")
    return "\n".join(parts) + "\n"


def failpoints_page() -> str:
    """Every failpoint, and how a fault is written."""
    from tenonry_failpoints import faults
    from tenonry_failpoints.borders import BORDERS

    syntax = (inspect.getdoc(faults) or "").partition("\n\n")[2]
    parts = ["# Failpoints\n", NOTICE]
    parts += [
        "Of `tenonry-failpoints`, which tests install; its README says how they are used.\n",
        f"{syntax}\n",
        "With `TENONRY_FAILPOINTS_SHARED=FOLDER` all processes count together, in files there.\n",
        "| failpoints | when |",
        "|---|---|",
    ]
    parts += [f"| `{border.before}`, `{border.after}` | {border.what} |" for border in BORDERS]
    return "\n".join(parts) + "\n"


def tree_page() -> str:
    """The kernel's layers, as the import linter holds them, and every distribution."""
    layers = _read_toml(ROOT)["tool"]["importlinter"]["contracts"][0]["layers"]
    parts = ["# The tree\n", NOTICE, "## The kernel\n"]
    parts += [
        "`core/src/tenonry/`, from the top down: a module imports from its own line and from those below it.\n"
    ]
    parts += ["```", *_drawing([layer.split(" : ") for layer in layers]), "```\n"]
    parts += [
        "A plugin imports the kernel, and of its siblings only libraries; an import linter holds all of this.\n",
        "## Distributions\n",
    ]
    parts += [
        "Each needs the kernel, `tenonry`; *needs* names the siblings that it needs besides.\n"
    ]
    for folder in ("executors", "schedulers", "stat_loggers", "plugins", "tests"):
        parts += [
            f"### `{folder}/`\n",
            "| folder | what it is | offers | needs |",
            "|---|---|---|---|",
        ]
        files = sorted((ROOT / folder).glob("*/pyproject.toml"))
        parts += [_distribution_row(file.parent) for file in files]
        parts += [""]
    return "\n".join(parts)


def _drawing(layers: list[list[str]]) -> list[str]:
    """One line per room, and one for the modules without one: its name, and the first sentence of its docstring."""
    kernel = ROOT / "core" / "src" / "tenonry"
    lines = []
    for layer in layers:
        rooms = [name for name in layer if (kernel / name).is_dir()]
        values = [name for name in layer if name not in rooms]
        lines += [
            f"{name + '/':14}{_first_sentence(kernel / name / '__init__.py')}" for name in rooms
        ]
        if len(values) > 1:
            lines += [f"{'values':14}{', '.join(sorted(values))}"]
        elif values:
            lines += [f"{values[0]:14}{_first_sentence(kernel / f'{values[0]}.py')}"]
    arrows = [f"{'':4}↓" for _ in lines]
    return [line for pair in zip(lines, arrows, strict=True) for line in pair][:-1]


def _first_sentence(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


def _distribution_row(folder: Path) -> str:
    project = _read_toml(folder)["project"]
    offers = [
        f"{group.removeprefix('tenonry.')} {', '.join(f'`{name}`' for name in sorted(names))}"
        for group, names in sorted(project.get("entry-points", {}).items())
    ]
    needs = [re.split(r"[^\w-]", one)[0] for one in project["dependencies"]]
    siblings = [
        f"`{name.removeprefix('tenonry-')}`" for name in needs if name.startswith("tenonry-")
    ]
    cells = (
        f"`{folder.name}`",
        project["description"],
        "; ".join(offers),
        ", ".join(sorted(siblings)),
    )
    return f"| {' | '.join(cells)} |"


def _read_toml(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))


def _signature(function: Any) -> str:
    return str(inspect.signature(function)).replace("'", "")


def _default(value: Any) -> str:
    if isinstance(value, PluginChoice):
        return f"`{value.name}`"
    return "none" if value in (None, (), "") else f"`{value!s}`"


def public_modules_page() -> str:
    """Every module of the kernel and of the worker `torch` that plugins may import, with its public names."""
    parts = ["# Public modules\n", NOTICE]
    parts += [
        "A plugin imports these modules and no others; `tenonry_testkit.import_contract` holds it to them. A name that",
        "leaves this page, or changes its meaning, is a change of [version](../explanation/versioning.md).\n",
        "## The kernel\n",
        *_module_table(PUBLIC),
        "\n## The worker `torch`\n",
        'For runner features, model passes and device parts; the contract has `package = "tenonry_worker_torch"`.',
        "Like their points, they are alpha.\n",
        *_module_table(PUBLIC_OF_WORKER_TORCH),
    ]
    return "\n".join(parts) + "\n"


def _module_table(entries: Sequence[str]) -> list[str]:
    lines = ["| module | what it holds | names |", "|---|---|---|"]
    for module in public_modules(entries):
        summary = _first_sentence(Path(module.__file__))
        names = ", ".join(f"`{name}`" for name in _public_names(module))
        lines.append(f"| `{module.__name__}` | {summary} | {names} |")
    return lines


def public_modules(entries: Sequence[str] = PUBLIC) -> list[Any]:
    """Import them, each once, in the order of the contract."""
    found: dict[str, Any] = {}
    for entry in entries:
        package = entry.removesuffix(".*")
        if not entry.endswith(".*"):
            found[entry] = importlib.import_module(entry)
            continue
        folder = importlib.import_module(package)
        for module in sorted(each.name for each in pkgutil.iter_modules(folder.__path__)):
            found[f"{package}.{module}"] = importlib.import_module(f"{package}.{module}")
    return list(found.values())


def _public_names(module: Any) -> list[str]:
    """Public names of a module: `__all__`, or all names defined at its top level."""
    if own := getattr(module, "__all__", None):
        return sorted(own)
    names: list[str] = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_") and name != "logger"]


MEASURED = "yes"
TORCH = "torch's operations around the attention kernels"
# What is used → tokens equal the CPU's in float32, kernels and graphs of decoding steps.
ON_CUDA = {
    "greedy, temperature, top-p, top-k, min-p, seeds, penalties, log-probabilities": (MEASURED, "kernels, graphs"),
    "prefix cache, chunked prompts, two steps in flight, sleep": (MEASURED, "kernels, graphs"),
    "JSON schemas": (MEASURED, "kernels, graphs"),
    "KV connectors `host` and `disk`": (MEASURED, "kernels, graphs"),
    "`max_loras`": (MEASURED, "kernels"),
    "`max_images`": ("not measured", "kernels"),
    "layers with state (Mamba, Kimi Linear, Bamba)": (MEASURED, TORCH),
    "tables that follow the sequence length": ("not measured", "kernels"),
    "other structures than Llama's (MLA, sinks, experts)": (MEASURED, TORCH),
    "`kv_cache_dtype` in 8 bits": ("not measured", "kernels, graphs"),
    "`quantization`, quantised checkpoints": ("not measured", "kernels, graphs"),
    "`tensor_parallel_size`, `pipeline_parallel_size`": ("not measured", "kernels"),
    "`enable_expert_parallel`": ("not measured", TORCH),
    "`enforce_eager`": (MEASURED, "attention kernels, the model's own code"),
}  # fmt: skip


def cuda_table() -> list[str]:
    """Parts that compute on CUDA, by feature."""
    return [
        "\n## On CUDA\n",
        "Tokens were compared with the CPU's in float32 on an H200 on 28 November 2026, before there were kernels and",
        "graphs of decoding steps; `tenonry bench gpu` compares again. One log line has the reason where a model goes",
        "without kernels or graphs.\n",
        "| what is used | tokens as on the CPU | decoding steps use |",
        "|---|---|---|",
        *(f"| {name} | {same} | {used} |" for name, (same, used) in ON_CUDA.items()),
    ]


def compatibility_page() -> str:
    """Return the page of settings, passes and features of the worker `torch` that exclude each other."""
    from tenonry_torch_base.conflicts import CONDITIONS
    from tenonry_worker_torch.compatibility import OWN

    parts = ["# Compatibility\n", NOTICE]
    parts += [
        "Settings of the worker `torch` that exclude each other. It rejects them by name before weights are read,",
        "and no other combination of them. What a model supports is in [models](models.md).\n",
    ]
    names = [part.setting for part in OWN]
    pairs = {frozenset((part.setting, name)) for part in OWN for name in part.given}
    parts += [f"| | {' | '.join(f'`{name}`' for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for row in names:
        cells = [
            "" if row == name else "no" if frozenset((row, name)) in pairs else "yes"
            for name in names
        ]
        parts.append(f"| `{row}` | {' | '.join(cells)} |")
    for part in OWN:
        parts += [f"\n## `{part.setting}`\n", f"In effect: {CONDITIONS[part.setting].when}.\n"]
        if not part.given:
            parts.append("No setting excludes it by itself.")
            continue
        parts += ["| does not go with | when | why, and what to use |", "|---|---|---|"]
        parts += [
            f"| `{name}` | {CONDITIONS[name].when} | {reason} |"
            for name, reason in part.given.items()
        ]
    return "\n".join([*parts, *cuda_table()]) + "\n"


PAGES = {
    "hooks.md": hooks_page,
    "public-modules.md": public_modules_page,
    "interfaces.md": interfaces_page,
    "records.md": records_page,
    "configuration.md": config_page,
    "metrics.md": metrics_page,
    "commands.md": commands_page,
    "failpoints.md": failpoints_page,
    "tree.md": tree_page,
    "compatibility.md": compatibility_page,
}


def outdated() -> list[str]:
    """Pages whose file differs from the code."""
    return [
        name
        for name, make in PAGES.items()
        if not (HERE / name).is_file() or (HERE / name).read_text("utf-8") != make()
    ]


def main() -> int:
    """Write the pages, or compare them; returns the exit status."""
    if "--check" in sys.argv:
        stale = outdated()
        sys.stdout.write("".join(f"docs/reference/{name} is out of date\n" for name in stale))
        return 1 if stale else 0
    for name, make in PAGES.items():
        (HERE / name).write_text(make(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
