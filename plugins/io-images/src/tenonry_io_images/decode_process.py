"""What `python -m tenonry_io_images.decode_process` runs: makes images ready for a front end, one after another.

A process of its own, because a file can be made to take all the time and memory there is, and decoders have had holes:
it has no more memory than its bound, and is killed by an alarm of its own when an image takes too long. It reads
messages from standard input and ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import sys

from tenonry_io_images.messages import Job, Made, Ready, Setup, read_message, write_message
from tenonry_io_images.preparation import BadImage, CannotPrepare, Preparation

MAX_MEMORY = 4 << 30
MAX_WALL = 5  # times the limit: on a busy machine processor time passes slowly

logger = logging.getLogger("tenonry.io")


def main() -> int:
    """Answer until standard input ends."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the front end decides
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    setup = read_message(sys.stdin.buffer, Setup)
    if setup is None:
        return 0
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    try:
        preparation = Preparation(setup.path)
    except (CannotPrepare, OSError, ValueError) as error:
        write_message(answers, Ready(error=str(error)))
        return 1
    write_message(answers, Ready(preparation.token_id))
    while (job := read_message(sys.stdin.buffer, Job)) is not None:
        _limit(setup.seconds)
        made = _make(preparation, job.data, setup.max_pixels)
        _limit(0)
        write_message(answers, made)
    return 0


def _limit(seconds: float) -> None:
    """End this process, wherever it is then, after so much processor time; 0 takes the limit away."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, MAX_WALL * seconds)


def _make(preparation: Preparation, data: bytes, max_pixels: int) -> Made:
    try:
        return preparation.make(data, max_pixels)
    except BadImage as error:
        return Made(str(error))
    except MemoryError:
        return Made("it takes too much memory")
    except Exception:  # the request is at fault, and no text of a library goes to a client
        logger.exception("an image could not be made ready")
        return Made("the model's image processor does not take it")


if __name__ == "__main__":
    sys.exit(main())
