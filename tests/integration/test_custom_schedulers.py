"""A scheduler that is not ours serves: from a file, from a module, from an installed distribution (Shows 4)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.errors import ContractViolation, PluginError, PluginIncompatible

SHORTEST_FIRST = textwrap.dedent(
    '''
    """Runs the shortest prompts first."""

    from tenonry_scheduling import BaseScheduler
    from tenonry_kvcache import KVCacheManager


    class Mine(BaseScheduler):
        def __init__(self, context):
            super().__init__(context, KVCacheManager(context))

        def order(self, request):
            return request.num_tokens

        def choose(self, step):
            step.run_ready()
            for request in step.waiting:
                if not step.run(request):
                    break
    '''
)
PROMPTS = [[5] * 40, [6, 7], [8] * 9]


def settings(model: Path, scheduler: str) -> dict[str, object]:
    return {
        "model": str(model), "load_format": "dummy", "skip_tokenizer_init": True, "worker": "null",
        "scheduler": scheduler, "max_num_seqs": 4,
    }  # fmt: skip


def serve(model: Path, scheduler: str) -> list[int]:
    """Run the prompts through an engine process; returns how many tokens each got."""
    engine = AsyncLLM(EngineConfig(**settings(model, scheduler)))

    async def count_tokens(index: int) -> int:
        params = SamplingParams(max_tokens=7, temperature=0, ignore_eos=True)
        last = None
        async for output in engine.generate(PROMPTS[index], params, f"r{index}"):
            last = output
        assert last is not None
        assert last.outputs[0].finish_reason == "length"
        return len(last.outputs[0].token_ids)

    async def all_of_them() -> list[int]:
        return list(await asyncio.gather(*(count_tokens(index) for index in range(len(PROMPTS)))))

    try:
        return asyncio.run(all_of_them())
    finally:
        engine.shutdown()


def test_scheduler_in_a_loose_file_serves(tmp_path, weightless_model):
    """PM-6: the text of the file travels in the plan."""
    path = tmp_path / "my_sched.py"
    path.write_text(SHORTEST_FIRST)
    assert serve(weightless_model, f"{path}:Mine") == [7, 7, 7]


def test_scheduler_by_qualified_name_serves(tmp_path, weightless_model, monkeypatch):
    """EC-3: a class by its module, importable in the engine's process because sys.path travels."""
    package = tmp_path / "my_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mod.py").write_text(SHORTEST_FIRST)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert serve(weightless_model, "my_pkg.mod:Mine") == [7, 7, 7]


def install(
    folder: Path, name: str, module: str, source: str, requires: str = "tenonry>=0.1"
) -> None:
    """Install a distribution as pip would: a module and its metadata."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{name.replace('-', '_')}-1.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.4\nRequires-Dist: {requires}\n"
    )
    (info / "entry_points.txt").write_text(f"[tenonry.schedulers]\n{module} = {module}:Mine\n")


def test_scheduler_installed_by_entry_point_serves(tmp_path, weightless_model, monkeypatch):
    """EC-3: the name of an entry point."""
    install(tmp_path, "acme-sched", "acme_sched", SHORTEST_FIRST)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert serve(weightless_model, "acme_sched") == [7, 7, 7]


BROKEN = {
    "raises on import": ("raise RuntimeError('no luck today')", PluginError, "no luck today"),
    "is no scheduler": ("class Mine: pass", PluginIncompatible, "not a subclass"),
    "implements nothing": (
        "from tenonry.interfaces.scheduler import Scheduler\nclass Mine(Scheduler): pass",
        PluginIncompatible,
        "does not implement",
    ),
    "speaks another version": (
        SHORTEST_FIRST + "    interface_version = 99\n",
        PluginIncompatible,
        "version 99",
    ),
}


@pytest.mark.parametrize("fault", sorted(BROKEN))
def test_broken_scheduler_is_refused_with_its_name_distribution_and_reason(
    fault, tmp_path, weightless_model, monkeypatch
):
    source, error, reason = BROKEN[fault]
    module = "broken_" + fault.replace(" ", "_")
    install(tmp_path, "acme-broken", module, source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(error) as caught:
        AsyncLLM(EngineConfig(**settings(weightless_model, module)))
    text = str(caught.value)
    assert module in text
    assert "acme-broken 1.4" in text
    assert reason in text


def test_scheduler_made_for_another_kernel_is_refused_before_import(
    tmp_path, weightless_model, monkeypatch
):
    install(
        tmp_path,
        "acme-future",
        "acme_future",
        "raise SystemExit('imported')",
        requires="tenonry>=9",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginIncompatible, match=r"acme-future 1\.4 needs tenonry>=9"):
        AsyncLLM(EngineConfig(**settings(weightless_model, "acme_future")))


def test_scheduler_that_breaks_its_contract_is_named(tmp_path, weightless_model):
    """The validator stops the engine with the plugin, the step and the rule."""
    path = tmp_path / "over.py"
    path.write_text(
        SHORTEST_FIRST
        + "\n    def schedule(self):\n        output = super().schedule()\n"
        + "        output.num_tokens = output.num_tokens + 1\n        return output\n"
    )
    with (
        LLM(**settings(weightless_model, f"{path}:Mine")) as llm,
        pytest.raises(ContractViolation, match=r"over\.py:Mine.*step 0"),
    ):
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3))


def test_scheduler_by_flag_on_the_command_line(tmp_path, weightless_model):
    """The same through the command line, as a user types it; a wrong one ends with one line and status 1."""
    (tmp_path / "my_sched.py").write_text(SHORTEST_FIRST)
    (tmp_path / "bad.py").write_text("raise RuntimeError('no luck today')")
    arguments = [
        "generate",
        "hi",
        "--model",
        str(weightless_model),
        "--load-format",
        "dummy",
        "--io-processor",
        "none",
    ]
    for name, status, expected in [
        (
            "./my_sched.py:Mine",
            1,
            "no tokenizer is loaded",
        ),  # resolved and built: only the prompt is rejected
        ("./bad.py:Mine", 1, "no luck today"),
    ]:
        command = [
            sys.executable,
            "-m",
            "tenonry",
            *arguments,
            "--worker",
            "null",
            "--scheduler",
            name,
        ]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == status
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
