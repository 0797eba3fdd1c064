"""Imports torch and transformers at less cost, without changing their behaviour. Worker process.

Half a million objects are created, so garbage collection during the import takes a fifth of the time and finds nothing.
Three other costs are those of transformers: it reads the source of all its models, twice, since its cache of exports is
smaller than their number, and searches every line for a name that is in the last ones; it imports scipy for losses,
accelerate and parts of torch for training and for models over several devices, none of which serving computes, and a
compiler for marks that only the compiler reads. And torch imports an algebra system for queries about sizes that are
numbers.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import sys
import threading
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tenonry_torch_base.deferred_dynamo import NAME as DYNAMO
from tenonry_torch_base.deferred_dynamo import DynamoLoader
from tenonry_torch_base.deferred_shapes import NAME as SHAPES
from tenonry_torch_base.deferred_shapes import ShapesLoader
from tenonry_torch_base.exports import stored_exports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

SCANNER = "transformers.utils.import_utils"
SCAN = "create_import_structure_from_path"
EXPORTS = "fetch__all__"
DEFINE = "define_import_structure"
LOSSES = "transformers.loss."
PROMOTION = "torch._prims_common"
TRAINING = {
    "transformers.distributed.checkpoint",
    "transformers.distributed.fsdp",
    "transformers.generation.utils",
    "transformers.integrations.accelerate",
    "transformers.integrations.peft",
    "transformers.modeling_utils",
}
ON_CALL = {
    "accelerate",
    "accelerate.hooks",
    "accelerate.utils",
    "accelerate.utils.modeling",
    "scipy.optimize",
    "torch.distributed._composable.fsdp",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.fsdp",
}
ALGEBRA = "sympy"


@contextmanager
def importing() -> Iterator[None]:
    """Context of first imports of torch and transformers, and of building a model without storage.

    May be entered within itself and by several threads. In a process whose objects are frozen, those of new modules
    are, too.
    """
    with _LOCK:
        _STATE.entered += 1
        if _STATE.entered == 1:
            _STATE.collects = gc.isenabled()
            _STATE.known = len(sys.modules)
            gc.disable()
            sys.meta_path.insert(0, _FINDER)
    try:
        yield
    finally:
        with _LOCK:
            _STATE.entered -= 1
            if not _STATE.entered:
                sys.meta_path.remove(_FINDER)
                if len(sys.modules) > _STATE.known:
                    _age_objects()
                if _STATE.collects:
                    gc.enable()


def _age_objects() -> None:
    """Spare the objects of new modules the collections of the young: they stay. Freezing and thawing again makes them
    old, without a look at any; a process that had frozen its objects has those of new modules frozen as well.
    """
    is_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    if not is_frozen:
        gc.unfreeze()


class _Finder(MetaPathFinder):
    """Finds the modules that are executed in another way; all others are left to the finders behind it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        kind = _loader(fullname)
        if kind is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = kind(fullname, spec.loader.path)
        return spec


def _loader(name: str) -> type[SourceFileLoader] | None:
    if name == SCANNER:
        return _Scanner
    if name == DYNAMO:
        return DynamoLoader
    if name == SHAPES:
        return ShapesLoader
    imports_less = name == PROMOTION or name in TRAINING or name.startswith(LOSSES)
    return _ImportsLess if imports_less else None


class _Scanner(SourceFileLoader):
    """Makes transformers cache the exports of its models in a file, and those of every folder; and scan only the end of
    a source for them.
    """

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        scan = getattr(module, SCAN, None)
        if hasattr(scan, "cache_info") and hasattr(scan, "__wrapped__"):
            setattr(module, SCAN, functools.cache(scan.__wrapped__))
        define = getattr(module, DEFINE, None)
        if define is not None:
            setattr(module, DEFINE, stored_exports(define))
        exports = getattr(module, EXPORTS, None)
        if exports is not None:
            setattr(module, EXPORTS, lambda text: exports(_last_exports(text)))


def _last_exports(text: str) -> str:
    """Text from the last line that begins with `__all__`, which is the one that counts; all of it if there is none."""
    return text[text.rfind("\n__all__") + 1 :]


class _ImportsLess(SourceFileLoader):
    """Imports the functions and classes of `ON_CALL` with their first call, and `ALGEBRA` where something else has
    imported it. Imports within functions are as usual.
    """

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        _EXECUTED.add(module.__name__)
        try:
            super().exec_module(module)
        finally:
            _EXECUTED.discard(module.__name__)


def _import(
    name: str,
    globals: Any = None,  # noqa: A002 - as the interpreter calls it
    locals: Any = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    is_of_module = globals is not None and globals.get("__name__") in _EXECUTED
    if name in ON_CALL and is_of_module and fromlist and name not in sys.modules:
        return SimpleNamespace(**{function: _on_call(name, function) for function in fromlist})
    if name == ALGEBRA and name not in sys.modules:
        return _NO_ALGEBRA
    return builtins.__import__(name, globals, locals, fromlist or (), level)


def _on_call(module: str, function: str) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*args, **options)

    return call


class _Nothing:
    """A class without objects."""


_NO_ALGEBRA = SimpleNamespace(Basic=_Nothing)  # of which nothing is an object before it is imported
_EXECUTED: set[str] = set()  # modules whose own imports are made
_LOCK = threading.Lock()
_STATE = SimpleNamespace(entered=0, collects=True, known=0)
_FINDER = _Finder()
