"""Child processes: their descendants end with them."""

from __future__ import annotations

import os
import select
import subprocess

import pytest

from tenonry_author_tools.children import run_child


@pytest.mark.integration
def test_output_and_status():
    done = run_child(["sh", "-c", "echo out; exit 3"], 60.0, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (3, b"out\n")


@pytest.mark.integration
def test_descendants_end_after_a_timeout():
    """The pipe is at its end once no process holds it."""
    ours, theirs = os.pipe()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            run_child(["sh", "-c", "sleep 1000 & wait"], 0.5, pass_fds=(theirs,))
        os.close(theirs)
        assert select.select([ours], [], [], 20.0)[0]
        assert os.read(ours, 1) == b""
    finally:
        os.close(ours)
