"""Compiles the kernels when a wheel or an editable installation is made; a machine without a compiler gets none.

The library has each kernel once per instruction set, under a name of its own; which one is called is decided where the
library is loaded. `-march=native` is never used.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "src/tenonry_kernels_cpu/libkernels.so"
# No -ffast-math: sums are reordered only where a pragma says so, NaN stays NaN, and denormal numbers stay as they are.
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fvisibility=default",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
)
X86 = {"x86_64", "amd64"}
AVX512 = (
    "-mavx2",
    "-mfma",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)
BF16 = (*AVX512, "-mavx512vnni", "-mavx512bf16")
BASELINE = "baseline"
GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)(?=[.\0])")  # names of symbol versions in an ELF file
OLDEST_GLIBC = 17  # of all processors that manylinux has
SETS = {
    BASELINE: (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": AVX512,
    "avx512vnni": (*AVX512, "-mavx512vnni"),
    "avx512bf16": BF16,
    "amx": (*BF16, "-mamx-tile", "-mamx-bf16"),
}


class NativeBuild(BuildHookInterface):  # type: ignore[misc] - hatchling has no types
    """Adds the library to a wheel, whose tag then names the platform and no version of Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        if not compile_library(root / "native", root / LIBRARY):
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag((root / LIBRARY).read_bytes())}"
        build_data["artifacts"].append(LIBRARY)


def platform_tag(library: bytes) -> str:
    """Return the platform of the wheel: `manylinux_2_N_…`, where the library needs glibc 2.N, or that of this machine.

    PEP 600 allows it because the library is linked with glibc's own libraries alone.
    """
    name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    needed = [int(minor) for minor in GLIBC.findall(library)]
    if not needed or not name.startswith("linux_"):
        return name
    return name.replace("linux", f"manylinux_2_{max(OLDEST_GLIBC, *needed)}", 1)


def compile_library(sources: Path, target: Path) -> bool:
    """Build `target`; returns success. Compiler errors are printed; an older library is removed then."""
    compiler = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if not compiler:
        say(
            "no C compiler (cc, gcc, clang), so no kernels; "
            "install gcc and install tenonry-kernels-cpu again, or take its wheel"
        )
        target.unlink(missing_ok=True)
        return False
    is_x86 = platform.machine().lower() in X86
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "libkernels.so"
        try:
            _compile(compiler.split(), sources, Path(folder), made, is_x86=is_x86)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or error
            say(f"{compiler} failed, so no kernels:\n{said}")
            target.unlink(missing_ok=True)
            return False
        beside = target.with_suffix(f".{os.getpid()}")
        shutil.copy(made, beside)
        beside.replace(target)  # a process that has the old library open keeps it
    return True


def say(text: str) -> None:
    """Into the log of the installer."""
    sys.stderr.write(f"tenonry-kernels-cpu: {text}\n")


def _compile(
    compiler: list[str], sources: Path, folder: Path, target: Path, *, is_x86: bool
) -> None:
    objects = []
    made = []
    for name, flags in SETS.items():
        if is_x86 or not flags:
            try:
                objects.append(_object(compiler, sources / "kernels.c", folder, name, flags))
            except subprocess.CalledProcessError as error:
                if not flags:
                    raise
                say(f"{compiler[0]} cannot compile for {name}, which is left out:\n{error.stderr}")
            else:
                made.append(name)
    has = [f"-DTENONRY_HAS_{name}" for name in made]
    told = ("-DTENONRY_X86", *has) if is_x86 else ()
    objects.append(_object(compiler, sources / "processor.c", folder, BASELINE, told))
    objects.append(_object(compiler, sources / "pool.c", folder, BASELINE, ()))
    _run([*compiler, "-shared", "-o", str(target), *objects, "-lm"])


def _object(
    compiler: list[str], source: Path, folder: Path, name: str, flags: tuple[str, ...]
) -> str:
    """Compile a source for an instruction set; returns the object file."""
    out = folder / f"{source.name}.{name}.o"
    words = [*compiler, *FLAGS, *flags, f"-DTENONRY_SET={name}", "-c", str(source), "-o", str(out)]
    _run(words)
    return str(out)


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, encoding="utf-8")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.exit(0 if compile_library(here / "native", here / LIBRARY) else 1)
