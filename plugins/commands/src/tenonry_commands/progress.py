"""The progress bar of `LLM.generate`, on standard error. Front end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar for this many requests; yields a function that takes how many have ended."""
    from tqdm import tqdm

    with tqdm(total=total, unit="request") as bar:
        yield lambda ended: bar.update(ended - bar.n)
