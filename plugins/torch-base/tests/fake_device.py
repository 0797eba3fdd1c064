"""A device that only pretends to compute, and a count of the operations for which a host would wait for it.

torch's fake tensors have shapes and no values, so whatever reads a value is seen: it is counted, answered with
something, and the operations behind it are seen, too. Without a GPU. `fake_device` renames torch's device for private
use, for the whole process: call it in a fork.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import traceback
import weakref
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

NAME = "fakegpu"
register = functools.cache(setup)
READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
# Their result has a size that depends on values.
SIZED = {"aten::nonzero", "aten::bincount", "aten::masked_select", "aten::_unique2"}
INDEXED = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"}
COPIES = {"aten::_to_copy", "aten::copy_"}
ANSWER = 1  # to a read


class HostWaits(TorchDispatchMode):
    """`places`: kind of wait and line of the package where it happened → how often."""

    def __init__(self) -> None:
        super().__init__()
        self.places: collections.Counter[str] = collections.Counter()
        self._pinned: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().partition(".")[0]
        if name == "aten::is_pinned":
            return any(tensor is args[0] for tensor in self._pinned)
        if name == "aten::_pin_memory":
            self._pinned.append(torch.empty_like(args[0]))
            return self._pinned[-1]
        if name in COPIES:
            self._copy(name, args, kwargs)
        elif name in INDEXED:
            self._index(args)
        elif any(is_fake(each) for each in args):
            if name in READS:
                self._note(f"read by {name}")
                return ANSWER
            if name in SIZED:
                self._note(f"size of {name}")
                return torch.zeros(ANSWER, max(1, args[0].dim()), device=args[0].device).long()
        return func(*args, **kwargs)

    def _copy(self, name, args, kwargs):
        is_assigned = name == "aten::copy_"
        source = args[1] if is_assigned else args[0]
        to = args[0].device if is_assigned else kwargs.get("device") or source.device
        waits = not (args[2:] and args[2] if is_assigned else kwargs.get("non_blocking"))
        if to.type == source.device.type:
            return
        if waits:
            self._note("blocking copy")
        elif to.type == NAME and not any(tensor is source for tensor in self._pinned):
            self._note("copy from pageable memory")

    def _index(self, args):
        if not is_fake(args[0]):
            return
        for index in args[1]:
            if index is not None and index.dtype in {torch.bool, torch.uint8}:
                self._note("size of a mask")
            elif index is not None and not is_fake(index):
                self._note("index on the host")

    def _note(self, kind):
        frames = [frame for frame in traceback.extract_stack() if "/src/tenonry" in frame.filename]
        frame = frames[-1] if frames else traceback.extract_stack()[-4]
        self.places[f"{kind} at {frame.filename.rsplit('/', 1)[1]}:{frame.lineno}"] += 1


def is_fake(value) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


@contextlib.contextmanager
def fake_device() -> Iterator[torch.device]:
    """Tensors made inside are fake, and those on this device pretend to be on a GPU."""
    register(NAME)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield torch.device(NAME, 0)


class LiveBytes(TorchDispatchMode):
    """`peak`: bytes on the device of tensors that live together, those of an operation's own workspace excluded."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name() == "aten::_pin_memory":
            return torch.empty_like(args[0])
        if func.name() == "aten::is_pinned":
            return False
        made = func(*args, **(kwargs or {}))
        self._live += [weakref.ref(each) for each in tree_leaves(made) if is_fake(each)]
        alive = [each() for each in self._live]
        self._live = [ref for ref, each in zip(self._live, alive, strict=True) if each is not None]
        storages = {}
        for each in alive:
            if each is not None:
                storage = each.untyped_storage()
                storages[StorageWeakRef(storage)] = storage.nbytes()
        self.peak = max(self.peak, sum(storages.values()))
        return made
