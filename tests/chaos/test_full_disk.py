"""A disk that is full while blocks are saved: saving ends with one line, and every stream is as without a disk."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import pytest
from ledger import differences
from server_process import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
BLOCK_SIZE = 16
FEW_BYTES = 200  # of a file, before the disk is full: its header and a bit more


def test_a_disk_that_is_full_while_blocks_are_saved(serve, expected, tmp_path):
    """Only the engine writes; from some point on its files are truncated. Blocks saved before are used by another."""
    folder = tmp_path / "blocks"
    flags = ("--kv-connector", "disk", "--kv-connector-option", f"directory={folder}")
    flags += ("--block-size", str(BLOCK_SIZE))
    disturbed = serve("", *flags)
    server = disturbed.server.ready()
    prompt = "The cat sat. " * 12
    answer = server.client().completions.create(model="tiny", prompt=prompt, max_tokens=5)
    computed = answer.usage.total_tokens - 1  # the last token of an answer is not
    eventually(lambda: len(saved(folder)) == computed // BLOCK_SIZE)
    before = saved(folder)
    _, hard = resource.prlimit(server.engine_pid(), resource.RLIMIT_FSIZE)
    resource.prlimit(server.engine_pid(), resource.RLIMIT_FSIZE, (FEW_BYTES, hard))

    for ledgers in (disturbed.run(), disturbed.run()):
        assert differences(expected, ledgers) == {}
    disturbed.check(expected, ledgers)
    assert server.output.count("no more blocks are saved") == 1
    assert "Traceback" not in server.output
    assert saved(folder) == before, "nothing is left half written"
    after = serve("", *flags)
    after.check(expected, after.run())
    assert len(saved(folder)) > len(before)


def saved(folder: Path) -> dict[str, int]:
    """Bytes of the files of blocks, by name, and of drafts of such."""
    found = {}
    for path in folder.rglob("*-of-*/*/*"):
        with contextlib.suppress(FileNotFoundError):  # a temporary file was renamed in the meantime
            found[path.name] = path.stat().st_size
    return found
