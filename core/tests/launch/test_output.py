"""WK-12: lines of a child have its prefix, whatever writes them."""

from __future__ import annotations

import pytest

from tenonry.launch.output import CHUNK_BYTES, prefixed
from tenonry.launch.supervise import Supervisor
from tenonry_testkit.roles import eventually


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a\n"], [b"> a\n", b""]),
        ([b"a\nb\n\nc"], [b"> a\n> b\n> \n", b"> c"]),
        ([b"a", b"b", b"\n", b"c\n"], [b"", b"", b"> ab\n", b"> c\n", b""]),
        ([b"10 %\r", b"20 %\r", b"done\n"], [b"> 10 %\r", b"20 %\r", b"done\n", b""]),
        ([], [b""]),
        ([b"W 07:00:00 > slow\nTrace\n"], [b"W 07:00:00 > slow\n> Trace\n", b""]),
        ([b"x" * CHUNK_BYTES, b"y\n"], [b"> " + b"x" * CHUNK_BYTES, b"y\n", b""]),
    ],
    ids=["line", "several", "pieces", "progress", "nothing", "log", "long"],
)
def test_each_line_has_the_prefix_once(pieces: list[bytes], expected: list[bytes]):
    """Whole lines: processes share the file, and half a line would get the other half of another's."""
    assert list(prefixed(pieces, lambda: "> ")) == expected


@pytest.mark.integration
def test_what_is_written_to_the_descriptors_is_prefixed(capfd):
    """As C libraries do, and up to the last byte before a signal."""
    supervisor = Supervisor()
    names: list[str] = []
    supervisor.on_exit(lambda name, pid, code: names.append(name))
    role = "tenonry_testkit.roles:write_and_die"
    child = supervisor.start("one", role, {}, prefix=lambda child: f"({child.name} {child.pid}) ")
    eventually(lambda: names)
    out, err = capfd.readouterr()
    supervisor.stop()
    mark = f"({names[0]} {child.pid}) "
    assert out == f"{mark}printed\n{mark}to 1\n"
    assert err == f"{mark}to 2\n{mark}the last"


@pytest.mark.integration
def test_a_child_without_a_prefix_writes_where_its_parent_does(capfd):
    supervisor = Supervisor()
    ended: list[int] = []
    supervisor.on_exit(lambda name, pid, code: ended.append(code))
    supervisor.start("one", "tenonry_testkit.roles:write_and_die", {})
    eventually(lambda: ended)
    out, err = capfd.readouterr()
    supervisor.stop()
    assert out.endswith("to 1\n")
    assert err == "to 2\nthe last"
