"""The C kernels under AddressSanitizer and UndefinedBehaviorSanitizer (class U).

A library with both is built for the best instruction set of this processor, and more than 1 000 random shapes run
through it in a process of its own. Scratch memory is exactly as large as a call requests. The first fault ends the
process with a report.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_kernels_cpu.library import instruction_sets

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "plugins" / "kernels-cpu" / "src" / "tenonry_kernels_cpu"
NATIVE = ROOT / "plugins" / "kernels-cpu" / "native"
# As `hatch_build.py` has them, without optimisation, which takes a minute more.
FLAGS = (
    "-std=gnu11",
    "-g1",
    "-fPIC",
    "-fvisibility=default",
    "-fopenmp-simd",
    "-ffp-contract=fast",
)
SANITISERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
)
AVX2 = ("-mavx2", "-mfma")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
BF16 = (*AVX512, "-mavx512vnni", "-mavx512bf16")
SETS = {
    "baseline": (),
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512vnni": (*AVX512, "-mavx512vnni"),
    "avx512bf16": BF16,
    "amx": (*BF16, "-mamx-tile", "-mamx-bf16"),
}
EXACT_SCRATCH = '''"""Exactly the memory that a call wants."""

import torch


class Scratch:
    def address(self, room: int) -> int:
        self._held = torch.empty(room, dtype=torch.uint8)
        return self._held.data_ptr()
'''
PLANTED = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
import torch
from tenonry_kernels_cpu.library import function
kernel = function("rms_norm", sys.argv[2])
x, weight, out = torch.ones(1, 64), torch.ones(64), torch.ones(2, 64)
kernel(2, 64, x.data_ptr(), weight.data_ptr(), 1e-6, out.data_ptr())
"""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(400),
    pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built"),
    pytest.mark.skipif(sys.platform != "linux", reason="sanitisers are preloaded on Linux alone"),
]


def run(words: list[Any], variables: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        words, cwd=ROOT, env=variables, check=False, capture_output=True, text=True
    )


def built(folder: Path, instruction_set: str) -> Path:
    """A copy of the package with a sanitised library; the test is skipped where the compiler has no sanitisers."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc, whose sanitisers can be preloaded")
    package = folder / "tenonry_kernels_cpu"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (package / "scratch.py").write_text(EXACT_SCRATCH)
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    told = [f"-DTENONRY_HAS_{instruction_set}", *["-DTENONRY_X86"] * is_x86]
    objects = []
    for source, flags in (("kernels", SETS[instruction_set]), ("processor", told), ("pool", ())):
        name = instruction_set if source == "kernels" else "baseline"
        objects.append(folder / f"{source}.o")
        words = [*FLAGS, *SANITISERS, *flags, f"-DTENONRY_SET={name}", "-c", NATIVE / f"{source}.c"]
        made = run([compiler, *words, "-o", objects[-1]])
        if "sanitize" in made.stderr:
            pytest.skip(f"the compiler has no sanitisers: {made.stderr[:200]}")
        assert made.returncode == 0, made.stderr
    target = package / "libkernels.so"
    linked = [compiler, "-shared", "-fsanitize=address,undefined", "-o", target, *objects, "-lm"]
    made = run(linked)
    if made.returncode:
        pytest.skip(f"the sanitisers' libraries are missing: {made.stderr[:200]}")
    return target


def environment(library: Path) -> dict[str, str]:
    names = ("libasan.so", "libubsan.so")
    found = [
        subprocess.check_output(["gcc", f"-print-file-name={each}"], text=True) for each in names
    ]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(each.strip() for each in found),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(library.parents[1]),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("sanitised"), instruction_sets()[0])


def test_a_planted_overflow_is_found(library):
    """One row more than there is."""
    words = [sys.executable, "-c", PLANTED, str(library), instruction_sets()[0]]
    found = run(words, environment(library))
    assert found.returncode
    assert "AddressSanitizer: heap-buffer-overflow" in found.stderr


def test_no_shape_makes_a_kernel_leave_its_memory(library):
    cases = Path(__file__).with_name("sanitised_kernels.py")
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=300"]
    found = run([*words, "--hypothesis-seed=0", str(cases)], environment(library))
    assert found.returncode == 0, (found.stdout + found.stderr)[-6000:]
    assert " passed" in found.stdout
