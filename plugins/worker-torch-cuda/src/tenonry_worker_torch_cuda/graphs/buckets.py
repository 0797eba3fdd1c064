"""Numbers of rows for which decoding steps have a graph. Worker process.

A step is padded to the next bucket: by less than 8 rows up to 256, by less than 32 above.
"""

from __future__ import annotations

from bisect import bisect_left

FEW = (1, 2, 4)
NARROW, WIDE = 8, 32  # distances of buckets
MANY = 256  # minimum rows for wide buckets


def bucket_sizes(most: int) -> list[int]:
    """Buckets for steps of at most `most` rows, ascending; the last one is `most`."""
    sizes = [*FEW, *range(NARROW, MANY + 1, NARROW), *range(MANY + WIDE, most, WIDE)]
    return [size for size in sizes if size < most] + [most]


def bucket_of(rows: int, sizes: list[int]) -> int:
    """Smallest bucket for this number of rows."""
    return sizes[bisect_left(sizes, rows)]
