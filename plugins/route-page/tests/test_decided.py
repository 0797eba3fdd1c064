"""Latest steps of decision records."""

from __future__ import annotations

import struct

import msgspec

from tenonry_route_page.decided import latest_steps


def test_latest_steps_come_from_records():
    columns = {"total_tokens": struct.pack("<2i", 7, 1), "free_blocks": struct.pack("<2i", 9, 8)}
    chunk = {"type": "chunk", "source": "live", "first_step": 5, "num_steps": 2, **columns}
    packed = [msgspec.msgpack.encode(each) for each in ({"type": "header"}, chunk)]
    part = b"".join(struct.pack("<I", len(each)) + each for each in packed)
    assert latest_steps([part]) == [
        {"step": 6, "tokens": 1, "free_blocks": 8},
        {"step": 5, "tokens": 7, "free_blocks": 9},
    ]
