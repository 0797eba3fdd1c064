"""The executor `ray`: the conformance suite with two ranks in a real Ray (EC-9…16 as behaviour, EC-13)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tenonry_testkit.executor import ExecutorContract


@pytest.fixture(scope="module")
def connection(cluster):
    """This process is connected once; the executors find that and leave it as it is (RA-1, RA-7)."""
    import ray

    ray.init(address=cluster.address, include_dashboard=False)
    yield ray
    ray.shutdown()


@pytest.mark.usefixtures("connection")
class TestTwoRanks(ExecutorContract):
    executor = "tenonry_executor_ray.executor:RayExecutor"
    config: ClassVar[dict[str, Any]] = {"tensor_parallel_size": 2, "device": "cpu"}
