"""Row PR-1: named scopes, chosen by the environment on the first call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import pytest

from tenonry.errors import ConfigError
from tenonry_torch_base import profiling
from tenonry_torch_base.profiling import (
    NVTX_VARIABLE,
    TORCH_VARIABLE,
    record_function_or_nullcontext,
)


class Scope(nullcontext[None]):
    """Fake of a library's context manager."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__()
        self.kind, self.name = kind, name


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both libraries, as far as they matter here, and no choice made yet."""
    for names, function, kind in (
        (["torch", "torch.autograd", "torch.autograd.profiler"], "record_function", "torch"),
        (["nvtx"], "annotate", "nvtx"),
    ):
        for name in names:
            module: Any = ModuleType(name)
            setattr(module, function, lambda scope, kind=kind: Scope(kind, scope))
            monkeypatch.setitem(sys.modules, name, module)
    profiling.kind_of_scope.cache_clear()
    yield
    profiling.kind_of_scope.cache_clear()


def kind(scope: AbstractContextManager[Any]) -> str:
    with scope:
        return scope.kind if isinstance(scope, Scope) else "null"


@pytest.mark.parametrize(
    ("torch", "nvtx", "expected"),
    [(None, None, "null"), ("1", None, "torch"), (None, "1", "nvtx"), ("1", "1", "torch"), ("0", "true", "nvtx"),
     ("false", "off", "null"), ("", "", "null")],
)  # fmt: skip
def test_the_first_variable_that_is_set_wins(monkeypatch, torch, nvtx, expected):
    for variable, value in ((TORCH_VARIABLE, torch), (NVTX_VARIABLE, nvtx)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert kind(record_function_or_nullcontext("step")) == expected


def test_the_scope_has_its_name(monkeypatch):
    monkeypatch.setenv(TORCH_VARIABLE, "1")
    scope: Any = record_function_or_nullcontext("schedule")
    assert scope.name == "schedule"


def test_the_choice_is_made_once(monkeypatch):
    assert kind(record_function_or_nullcontext("one")) == "null"
    monkeypatch.setenv(TORCH_VARIABLE, "1")
    assert kind(record_function_or_nullcontext("two")) == "null"


def test_scopes_nest_and_may_be_used_again():
    with record_function_or_nullcontext("outer"), record_function_or_nullcontext("inner"):
        pass


@pytest.mark.parametrize(
    ("variable", "package"), [(TORCH_VARIABLE, "torch"), (NVTX_VARIABLE, "nvtx")]
)
def test_a_missing_library_is_named_with_the_remedy(monkeypatch, variable, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(profiling.importlib, "import_module", _missing(package))
    monkeypatch.setenv(variable, "1")
    with pytest.raises(
        ConfigError, match=f"{variable} is set, but its library is missing: pip install {package}"
    ):
        record_function_or_nullcontext("x")


def _missing(package: str) -> Any:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    return import_module


@pytest.mark.integration
def test_nothing_is_imported_unless_it_is_asked_for():
    code = (
        "import sys; from tenonry_torch_base.profiling import record_function_or_nullcontext as scope\n"
        "with scope('x'): pass\n"
        "assert not {'torch', 'nvtx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
