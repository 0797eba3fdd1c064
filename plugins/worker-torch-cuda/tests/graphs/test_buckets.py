from __future__ import annotations

import pytest

from tenonry_worker_torch_cuda.graphs.buckets import bucket_of, bucket_sizes


def test_the_last_bucket_holds_all_rows():
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(3) == [1, 2, 3]
    assert bucket_sizes(8) == [1, 2, 4, 8]
    assert bucket_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert bucket_sizes(300)[-4:] == [248, 256, 288, 300]


@pytest.mark.parametrize("most", [1, 5, 64, 100, 256, 1000])
def test_each_step_has_the_smallest_bucket_that_holds_it(most):
    sizes = bucket_sizes(most)
    assert sizes == sorted(set(sizes))
    for rows in range(1, most + 1):
        size = bucket_of(rows, sizes)
        assert size >= rows
        assert size - rows < (8 if rows <= 256 else 32)
        assert not any(rows <= other < size for other in sizes)
