"""What `python -m tenonry_grammars.check_start` runs: starts a checking process without taking a processor from others.

Importing what a check needs takes half a second of processor time, which the steps of a model would wait for. So the
thread that imports and builds is lowered; a thread that was started before answers at the priority of the process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from tenonry_grammars.background import lower

NICE = 10  # about a tenth of a busy processor


def main() -> int:
    """Answer until standard input ends, or what reads the answers has gone."""
    ready: Future[Callable[[], None]] = Future()
    answering = threading.Thread(target=_answer, args=(ready,), name="grammar-answers", daemon=True)
    answering.start()
    lower(threading.get_native_id(), NICE)
    from tenonry_grammars.check_process import prepare

    answer_all = prepare()
    if answer_all is None:
        return 1
    ready.set_result(answer_all)
    answering.join()
    return 0


def _answer(ready: Future[Callable[[], None]]) -> None:
    ready.result()()


if __name__ == "__main__":
    sys.exit(main())
