"""First imports of torch and transformers, made at less cost and with the same result."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tenonry_torch_base import imports
from tenonry_torch_base.imports import importing

PEFT = "transformers.integrations.peft"
LOSS = "transformers.loss.loss_for_object_detection"


@pytest.fixture
def finder():
    """The finder installed within `importing`."""
    with importing():
        found = sys.meta_path[0]
    assert found not in sys.meta_path
    return found


def executed(finder, name: str):
    """A second copy of a module of transformers, which no other module sees."""
    package = importlib.import_module(name.rpartition(".")[0])
    spec = finder.find_spec(name, package.__path__)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestCollector:
    def test_it_rests_until_the_last_one_is_done(self):
        inside = threading.Event()
        leave = threading.Event()

        def other() -> None:
            with importing():
                inside.set()
                leave.wait(20)

        thread = threading.Thread(target=other)
        with importing():
            thread.start()
            assert inside.wait(20)
            with importing():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert not gc.isenabled()  # the other thread still imports
        leave.set()
        thread.join()
        assert gc.isenabled()

    def test_an_error_wakes_it(self):
        with pytest.raises(ImportError), importing():
            raise ImportError
        assert gc.isenabled()
        assert sys.meta_path[0] is not imports._FINDER

    def test_who_had_switched_it_off_finds_it_off(self):
        gc.disable()
        try:
            with importing():
                pass
            assert not gc.isenabled()
        finally:
            gc.enable()

    def test_in_a_frozen_process_objects_of_new_modules_are_frozen_and_in_others_not(
        self, monkeypatch
    ):
        before = gc.get_freeze_count()
        gc.unfreeze()
        try:
            with importing():
                pass
            assert gc.get_freeze_count() == 0
            gc.freeze()
            count = gc.get_freeze_count()
            with importing():
                new = [[] for _ in range(1000)]
                monkeypatch.setitem(sys.modules, "new_to_this_process", ModuleType("new"))
            assert gc.get_freeze_count() >= count + len(new)
        finally:
            gc.unfreeze()
            if before:
                gc.freeze()

    @pytest.mark.slow
    def test_objects_of_new_modules_are_old_without_a_collection(self, monkeypatch):
        """The next collection of the young would look at half a million of them."""
        frozen = gc.get_freeze_count()
        gc.unfreeze()
        try:
            with importing():
                new = [[] for _ in range(1000)]
                monkeypatch.setitem(sys.modules, "new_to_this_process", ModuleType("new"))
            old = {id(each) for each in gc.get_objects(generation=2)}
            assert all(id(each) in old for each in new)
            assert gc.get_freeze_count() == 0
        finally:
            if frozen:
                gc.freeze()

    def test_frozen_objects_are_not_counted_where_nothing_was_imported(self, monkeypatch):
        """There are a million of them, and workers are built again and again."""
        counts = []
        monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(1) or 0)
        with importing():
            pass
        assert not counts


class TestTransformers:
    def test_losses_import_scipy_with_their_first_call(self, finder, monkeypatch):
        optimize = pytest.importorskip("scipy.optimize")
        real = optimize.linear_sum_assignment
        monkeypatch.delitem(sys.modules, "scipy.optimize")
        module = executed(finder, LOSS)
        assert "scipy.optimize" not in sys.modules
        monkeypatch.setitem(sys.modules, "scipy.optimize", optimize)
        cost = np.array([[4, 1, 3], [2, 0, 5], [3, 2, 2]])
        assert np.array_equal(module.linear_sum_assignment(cost), real(cost))

    def test_where_scipy_is_imported_losses_have_its_functions(self, finder):
        optimize = pytest.importorskip("scipy.optimize")
        assert executed(finder, LOSS).linear_sum_assignment is optimize.linear_sum_assignment

    def test_parts_for_training_are_imported_with_their_first_use(self, finder, monkeypatch):
        fsdp = importlib.import_module("torch.distributed.fsdp")
        monkeypatch.delitem(sys.modules, fsdp.__name__)
        module = executed(finder, "transformers.distributed.fsdp")
        assert fsdp.__name__ not in sys.modules
        monkeypatch.setitem(sys.modules, fsdp.__name__, fsdp)
        assert isinstance(module.CPUOffloadPolicy(pin_memory=False), fsdp.CPUOffloadPolicy)

    def test_adapters_of_transformers_import_accelerate_with_their_first_call(
        self, finder, monkeypatch
    ):
        accelerate = pytest.importorskip("accelerate")
        importlib.import_module(PEFT)  # what it imports may import accelerate
        monkeypatch.delitem(sys.modules, "accelerate")
        monkeypatch.delitem(sys.modules, "accelerate.utils", raising=False)
        module = executed(finder, PEFT)
        assert "accelerate" not in sys.modules
        monkeypatch.setitem(sys.modules, "accelerate", accelerate)
        model = torch.nn.Linear(1, 1)
        assert module.dispatch_model(model, device_map={"": "cpu"}) is model

    def test_imports_within_functions_are_as_usual(self, finder):
        """Such as of a class that is only compared with."""
        module = executed(finder, "transformers.distributed.fsdp")
        assert not module.is_fsdp_managed_module(object())

    def test_each_folder_of_models_is_read_once(self, finder, monkeypatch):
        module = executed(finder, "transformers.utils.import_utils")
        scan = getattr(module, imports.SCAN)
        assert scan.cache_info().maxsize is None
        folder = importlib.import_module("transformers.models").__path__[0] + "/llama"
        assert scan(folder) is scan(folder)
        known = importlib.import_module("transformers.utils.import_utils")
        assert scan(folder) == known.create_import_structure_from_path(folder)

    def test_what_sources_export_is_found_at_their_ends(self, finder):
        """Equal results for each source of transformers, and for other possible sources."""
        models = Path(importlib.import_module("transformers.models").__path__[0])
        texts = [file.read_text("utf-8") for file in models.glob("[a-g]*/*.py")]
        texts += [
            "",
            "import a\n",
            '__all__ = ["a", "b"]',
            'x = 1\n__all__ = ["a"]\n__all__ = [\n    "b",\n    "c",\n]\n',
            'x = "__all__"\n',
            'x = 1\r\n__all__ = ["a"]\r\n',
            '__all__ = ["a"]\x0c__all__ = ["b"]',
            '\n__all__ = ["a"]\n\x0c__all__ = ["b"]\ny = 2\n',
        ]
        found = executed(finder, imports.SCANNER)
        plain = executed(PathFinder, imports.SCANNER)
        assert len(texts) > 100
        for text in texts:
            assert found.fetch__all__(text) == plain.fetch__all__(text)

    def test_other_modules_are_left_to_the_finders_behind(self, finder):
        assert finder.find_spec("transformers.models", None) is None
        assert finder.find_spec("transformers.loss.loss_of_nothing", []) is None

    def test_sources_are_shown_in_tracebacks(self, finder):
        spec = finder.find_spec(LOSS, importlib.import_module("transformers.loss").__path__)
        assert "linear_sum_assignment" in spec.loader.get_source(LOSS)
