"""The conformance suite of runner features of the worker `torch`: features do not affect requests. Test process.

from tenonry_testkit.runner_feature import RunnerFeatureContract

class TestMine(RunnerFeatureContract):
    feature = "my_package:MyFeature"

All tests of `WorkerContract` run on a worker with the feature, and tokens are compared with those of a worker without
it. Needs the worker: install `tenonry-worker-torch`, and `tenonry-demo-model` unless `model` names another one.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry.point import Point
from tenonry_testkit.worker_part import WorkerPartContract

MOST_TOKENS = 5  # of a pass, in the test of out-of-memory errors


class RunnerFeatureContract(WorkerPartContract):
    """Subclass in a test module and name the `feature`. See `WorkerPartContract` for `changes_tokens` and `model`."""

    feature: ClassVar[str] = ""
    point = Point("tenonry.runner_features", "tenonry_worker_torch.runner.feature:RunnerFeature")
    option = "runner_features"

    def part(self) -> str:
        if not self.feature:
            raise TypeError(
                'this suite names nothing to test; add the line:  feature = "my_package:MyFeature"'
            )
        return self.feature

    def test_passes_are_repeated_in_parts(self) -> None:
        """A pass without enough memory is computed in parts, each prepared again; tokens are unchanged."""
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

    def test_joins_steps_without_requests(self) -> None:
        """Ranks of other engines may wait for a pass of this one while it has no request."""
        worker: Any = self._served()
        worker.execute_dummy_batch()
        self._mixed(self._around(worker), count=2)
        worker.execute_dummy_batch()
