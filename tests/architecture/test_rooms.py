"""Every room can be read in one sitting, and nothing in it is packed to look smaller than it is.

The sittings of the kernel have bounds in tokens, which only ever fall: a change that raises one says why.
"""

from __future__ import annotations

import pytest
from house import ROOT, distributions
from rooms import Weight, weigh, weigh_files

CORE = ROOT / "core" / "src" / "tenonry"
FACE = {"__init__.py", "__main__.py", "cli.py"}
MAX_DENSITY = 8.0
MAX_PACKED_SHARE = 0.5 / 1000
MAX_FILE_LINES = 400
MAX_TOKENS = {
    # What follows a death, rounds and drafters are settings, and told; fallbacks, silence; drafts and replacements are
    # counted.
    # Engines that stand by: a setting, their names, what is counted; batch invariance, which workers decide on where it
    # is not set, and how K and V are kept: settings. Settings that a worker would ignore are refused when it is
    # resolved. Launchers say whether an engine that ended had begun a step; hook modules whether they have nothing to
    # do. KV connectors have fallbacks, which are counted.
    # Workers say what to import, and launchers may begin with it before the first engine. How many tokens a step has
    # depends on whether there may be GPUs, which came from the launcher.
    "contract": 15_087,
    "checks": 1_608,  # which settings those are, unless they are turned off
    "sizing": 1_350,
    # A start can be cancelled, and no stranger ends it; rounds, and what is checked of them; which start a title
    # shows; two engines of one index are connected; rows with grammars have rounds where tokens are drafted; nodes
    # are told which of their engines to start again; engines that step together come back with another coordinator;
    # one that stands by has an index, a name and GPUs, and gets those of one that died, as well as its rank; a node
    # that was started again joins again; an engine says when it begins its first step, and may not be stopped in a
    # call; fleets with engines of one index share their keys; a coordinator that died after all engines is known to
    # be gone; titles and nodes tell which plugins took the place of others; what an engine imports is said once for
    # all.
    "engine": 13_058,
    # A sitting of its own since engines are forks: of a server, adopted, cancelled before they begin, in fresh
    # interpreters where a fork would not be like one, or where the server does not answer. Launchers share when an
    # engine hangs. Imports begin before the front end is built, and end with an
    # owner that does not wait for them. No child begins anew where its owner has closed the server: it shuts down.
    "launch": 10_224,
    # Requests go on when their engine died, or was replaced: links of both, streams that move, who starts engines;
    # links to another coordinator; ports that stay for engines that come back; calls that reach engines that stand by
    # as well, and links that change their engine; the record of what is in use says how K and V are kept; listeners are
    # closed when the engines of their start have gone; engines learn how many they are to
    # be by then. Newcomers take places together, with their coordinator; front ends that own no engines move streams
    # and learn of changes. Launchers prepare for engines as soon as plugins and model are known.
    "client": 18_547,
    "settings": 900,
    "observers": 1_600,  # a logger that does not return is left behind
    "media": 80,
    # What was checked of them in checks moved there; the mirror of images; they go along to another engine.
    "features": 1_725,
    "adapters": 650,
    # The operations of AsyncLLM moved there from the client; they say what a restarted engine would lack;
    # which engine saves depends on the rank that it has now.
    "operations": 2_435,
    "pooling": 1_680,
    # Engines that died are started again, and their requests sent again: two parts since a supervisor does the first
    # for front ends that do the second.
    # Requests move to an engine that took the place of another; one that cannot be started takes no other with it,
    # unless they step together, and those that need no start wait for none that do;
    # one that was given up may come back with its node; one that did no step blames no request;
    # what takes the place of plugins that ended engines came from the client, and does so for KV connectors.
    "continuity": 3_810,
    # Engines that stand by: started in the background, let in, lost, renewed, refused.
    # Engines are replaced one by one, or together where they step together; other front ends move their streams, too.
    "replacement": 3_254,
}
# Packed assignments that are still to be unpacked, and rooms that are still too dense: entries only ever go.
STILL_PACKED = 0
STILL_DENSE: set[str] = set()
SITTINGS = {
    "contract": [
        *(file for file in CORE.glob("*.py") if file.name not in FACE),
        *CORE.glob("interfaces/*.py"),
        *CORE.glob("plugin/*.py"),
    ],
    "checks": [*CORE.glob("checks/*.py")],
    "sizing": [*CORE.glob("sizing/*.py")],
    "engine": [*CORE.glob("engine/*.py"), *CORE.glob("transport/*.py")],
    "launch": [*CORE.glob("launch/*.py")],
    "client": [*CORE.glob("client/*.py")],
    "settings": [*CORE.glob("settings/*.py")],
    "observers": [*CORE.glob("observers/*.py")],
    "operations": [*CORE.glob("operations/*.py")],
    "adapters": [*CORE.glob("adapters/*.py")],
    "media": [*CORE.glob("media/*.py")],
    "features": [*CORE.glob("features/*.py")],
    "pooling": [*CORE.glob("pooling/*.py")],
    "continuity": [*CORE.glob("continuity/*.py")],
    "replacement": [*CORE.glob("replacement/*.py")],
}
SOURCES = [file for dist in distributions() for file in dist.sources]
ROOMS = sorted({file.parent for file in SOURCES})


@pytest.mark.parametrize("sitting", SITTINGS)
def test_a_sitting_of_the_kernel_stays_below_its_bound(sitting: str):
    weight = weigh_files(SITTINGS[sitting])
    assert 0 < weight.tokens <= MAX_TOKENS[sitting]


def test_every_module_of_the_kernel_belongs_to_one_sitting():
    counted = [file for files in SITTINGS.values() for file in files]
    assert sorted(counted) == sorted(set(CORE.rglob("*.py")) - {CORE / name for name in FACE})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_is_not_dense(room):
    weight = weigh_files(room.glob("*.py"))
    if str(room.relative_to(ROOT)) in STILL_DENSE:
        return
    assert weight.density <= MAX_DENSITY, "one statement per line, one name per assignment"


def test_assignments_are_not_packed():
    packed = {str(file.relative_to(ROOT)): weigh_files([file]) for file in SOURCES}
    total = sum(packed.values(), Weight())
    where = {name: weight.packed for name, weight in packed.items() if weight.packed}
    assert total.packed <= max(STILL_PACKED, MAX_PACKED_SHARE * total.lines), where


def test_no_file_is_longer_than_a_sitting_wants():
    sizes = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for file in SOURCES
    }
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


class TestWeigh:
    def test_counts_code_only(self):
        source = '''"""A module,
in two lines."""

import os  # 2 tokens

# not counted


class Thing:
    """Not counted."""

    value = """3 tokens,
    2 lines"""


def call(
    argument,
):
    """Not counted."""
    return os.path.join(argument)


text = f"3 tokens {f'in {2}'} lines" if call else f"""
{Thing}"""
'''
        weight = Weight(tokens=2 + 3 + 3 + 7 + 9 + 7, lines=1 + 1 + 2 + 3 + 1 + 2)
        assert weigh(source) == weight

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("a, b, c = x, y, z", True),
            ("a, b, c, d = 1, 2, 3, 4", True),
            ("self.a, self.b, self.c = a, b, c", True),
            ("a = b, c, d = x, y, z", True),
            ("a, b = x, y", False),
            ("a, b, c = b, c, a", False),
            ("a, b, c = call()", False),
            ("pair = x, y, z", False),
        ],
    )
    def test_knows_a_packed_assignment(self, source, expected):
        assert weigh(source).packed == expected
