"""Base of suites of parts of the worker `torch`: a worker with a part behaves like one without it. Test process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from tenonry.info import ModelInfo
from tenonry.interfaces.worker import Worker
from tenonry.plugin.manager import resolve_point
from tenonry.point import Point
from tenonry_hf_hub.locate import locate
from tenonry_testkit.fakes.scheduler import ReferenceScheduler
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.worker import WorkerContract, fitted


class WorkerPartContract(WorkerContract):
    """All tests of `WorkerContract`, on a worker with the part; tokens are compared with those of a worker without it.

    `point` and `option`: entry-point group, and the worker option that names parts. `changes_tokens`: the part changes
    the model's results; tokens are then compared with those of each request alone, with the part. Override `model` for
    another model.
    """

    point: ClassVar[Point]
    option: ClassVar[str]
    changes_tokens: ClassVar[bool] = False
    worker: ClassVar[str | type[Worker] | None] = "tenonry_worker_torch.worker:TorchWorker"
    config: ClassVar[dict[str, Any]] = {"device": "cpu", "dtype": "float32"}
    spec: ClassVar[HarnessSpec] = HarnessSpec(
        num_blocks=40, max_num_batched_tokens=64, max_model_len=48, vocab_size=512
    )
    loads_once: ClassVar[bool] = True

    def part(self) -> str:
        """Name of the part under test."""
        raise NotImplementedError

    def model(self) -> ModelInfo:
        """The demo model."""
        path = locate("demo").path
        config = json.loads((Path(path) / "config.json").read_text("utf-8"))
        return ModelInfo(
            name="demo",
            path=str(path),
            architecture=config["architectures"][0],
            max_model_len=self.spec.max_model_len,
            vocab_size=config["vocab_size"],
        )

    def setup_method(self) -> None:
        super().setup_method()
        self.options = {self.option: [self.part()]}

    def _oracle(self) -> Any:
        if not self.changes_tokens:
            self.options = {}
        try:
            return super()._oracle()
        finally:
            self.options = {self.option: [self.part()]}

    def _around(self, worker: Worker) -> SchedulerHarness:
        """Return an engine around a ready worker."""
        groups = tuple(worker.kv_cache_groups())
        spec = fitted(self.spec, groups)
        oracle = self._oracle()
        return SchedulerHarness(
            ReferenceScheduler, spec, worker=worker, oracle=oracle, groups=groups
        )

    def test_is_described(self) -> None:
        """It has a name, a supported version, and the base class of the point."""
        found, _ = resolve_point(self.point, self.part())
        assert found.name
        assert found.interface_version == 1

    def test_sleeps_and_wakes_up(self) -> None:
        """Memory by row is released, and allocated again."""
        worker: Any = self._served()
        self._mixed(self._around(worker), count=2)
        worker.sleep(1)
        worker.wake_up()
        self._mixed(self._around(worker), count=2)
