from __future__ import annotations

import psutil
import pytest

from tenonry.errors import TenonryError
from tenonry_bench.models.engines import find_peers
from tenonry_bench.models.session import Session, prepare, resident_mib

pytestmark = pytest.mark.integration

OPTIONS = {"threads": 1}


def engine(name):
    (found,), _ = find_peers([name], {})
    return found


def test_a_run_may_be_asked_for_before_the_model_is_there(peers):
    with Session(engine("steady"), OPTIONS) as session:
        session.ask([[1], [2]], 4)
        session.ready()
        assert session.version == "1.2.3"
        assert session.answer().ttft == [0.25, 0.25]
        assert session.run([[3]], 4).wall == 0.5
        assert session.memory_gib() > 0
        assert len(psutil.Process().children()) == 1
    assert not psutil.Process().children()


def test_last_words_of_a_program_that_ends(peers):
    with Session(engine("broken"), OPTIONS) as session:
        session.ask([[1]], 1)
        with pytest.raises(
            TenonryError, match="broken ended with status 1:\nthe peer has no such model"
        ):
            session.ready()


def test_preparation_that_fails(peers):
    with pytest.raises(TenonryError, match="no such model"):
        prepare(engine("broken"), OPTIONS)


def test_resident_memory_is_without_libraries():
    process = psutil.Process()
    before = resident_mib(process)
    block = bytearray(b"x" * (32 << 20))
    assert 24 < resident_mib(process) - before < 96
    del block
    rss = process.memory_info().rss / 2**20
    libraries = sum(each.rss for each in process.memory_maps() if ".so" in each.path) / 2**20
    assert libraries > 1
    assert resident_mib(process) <= rss - libraries / 2
