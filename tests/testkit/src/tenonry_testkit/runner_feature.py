"""The conformance suite of runner features of the worker `torch`: a feature disturbs no request. Test process.

from tenonry_testkit.runner_feature import RunnerFeatureContract

class TestMine(RunnerFeatureContract):
    feature = "my_package:MyFeature"

All tests of `WorkerContract` run on a worker with the feature, and tokens are compared with those of a worker without
it. Needs the worker: install `tenonry-worker-torch`, and `tenonry-demo-model` unless `model` names another one.
"""

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

POINT = Point("tenonry.runner_features", "tenonry_worker_torch.runner.feature:RunnerFeature")
MOST_TOKENS = 5  # of a pass, in the test that has no memory for more


class RunnerFeatureContract(WorkerContract):
    """Subclass in a test module and name the `feature`. `changes_tokens`: the feature changes what the model answers;
    tokens then are compared with those of each request alone, with the feature. Override `model` for another model.
    """

    feature: ClassVar[str] = ""
    changes_tokens: ClassVar[bool] = False
    worker: ClassVar[str | type[Worker] | None] = "tenonry_worker_torch.worker:TorchWorker"
    config: ClassVar[dict[str, Any]] = {"device": "cpu", "dtype": "float32"}
    spec: ClassVar[HarnessSpec] = HarnessSpec(
        num_blocks=40, max_num_batched_tokens=64, max_model_len=48, vocab_size=512
    )
    loads_once: ClassVar[bool] = True

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
        self.options = {"runner_features": [self._named()]}

    def _named(self) -> str:
        if not self.feature:
            raise TypeError(
                'this suite does not say what it tests; add the line:  feature = "my_package:MyFeature"'
            )
        return self.feature

    def _oracle(self) -> Any:
        if not self.changes_tokens:
            self.options = {}
        try:
            return super()._oracle()
        finally:
            self.options = {"runner_features": [self._named()]}

    def _around(self, worker: Worker) -> SchedulerHarness:
        """An engine around a worker that is ready."""
        groups = tuple(worker.kv_cache_groups())
        spec = fitted(self.spec, groups)
        oracle = self._oracle()
        return SchedulerHarness(
            ReferenceScheduler, spec, worker=worker, oracle=oracle, groups=groups
        )

    # ------------------------------------------------------------------ the feature
    def test_is_described(self) -> None:
        """It has a name, a supported version, and the base class of the point."""
        found, _ = resolve_point(POINT, self._named())
        assert found.name
        assert found.interface_version == 1

    def test_passes_are_repeated_in_parts(self) -> None:
        """A pass without enough memory is computed in parts, each prepared anew; tokens stay the same."""
        worker: Any = self._served()
        forward_pass = worker.runner.forward_pass
        compute = forward_pass.forward
        sizes = []

        def limited(inputs: Any, *given: Any) -> Any:
            sizes.append(len(inputs))
            if len(inputs) > MOST_TOKENS:
                raise MemoryError(f"{len(inputs)} tokens")
            return compute(inputs, *given)

        limited.can_prune = compute.can_prune  # type: ignore[attr-defined]
        forward_pass.forward = limited
        self._mixed(self._around(worker))
        assert max(sizes) > MOST_TOKENS

    def test_sleeps_and_wakes_up(self) -> None:
        """Memory by row is released, and allocated again."""
        worker: Any = self._served()
        self._mixed(self._around(worker), count=2)
        worker.sleep(1)
        worker.wake_up()
        self._mixed(self._around(worker), count=2)

    def test_joins_steps_without_requests(self) -> None:
        """Ranks of other engines may wait for a pass of this one while it has no request."""
        worker: Any = self._served()
        worker.execute_dummy_batch()
        self._mixed(self._around(worker), count=2)
        worker.execute_dummy_batch()
