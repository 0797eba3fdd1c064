"""Checking in processes that can be killed: once each, within the limit, a bomb alone (EC-6; reliability F)."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tenonry.errors import DrainingError, QueueFullError, RequestError
from tenonry.sampling_params import StructuredOutput
from tenonry_grammars import checker as checker_module
from tenonry_grammars.base import GrammarContext
from tenonry_grammars.checker import GrammarChecker
from tenonry_helper_pool import turns
from tenonry_helper_pool.background import FIRST_NICE
from tenonry_helper_pool.client import as_client
from tenonry_testkit.fakes.tokenizer import END, TOKENIZER_JSON

pytestmark = pytest.mark.integration

CONTEXT = GrammarContext(TOKENIZER_JSON, 300, (END,))
# Its compilation takes ten seconds; many parts have to be tried.
BOMB = StructuredOutput(
    json=json.dumps(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(6000)}}
    )
)


def spec(**fields) -> StructuredOutput:
    return StructuredOutput(**fields)


@pytest.fixture
def checker():
    made = GrammarChecker(None, CONTEXT, 10.0)
    yield made
    made.shutdown()


def schema(**values) -> StructuredOutput:
    return StructuredOutput(json=json.dumps(values))


GOOD = [
    spec(json_object=True),
    spec(regex="(a+)+$"),
    spec(choice=("yes", "no")),
    spec(grammar='root ::= "a"+'),
    schema(
        type="object", properties={"a": {"$ref": "#/$defs/n"}}, **{"$defs": {"n": {"type": "null"}}}
    ),
    schema(**{"$defs": {"n": {"properties": {"c": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}),
    schema(
        properties={
            "a": {
                "markdownDescription": "d",
                "ui:widget": "w",
                "errorMessage": {"type": "no"},
                "maxLenght": 3,
            }
        }
    ),
    spec(
        grammar='start: "a" one\none: %json {"type": "null", "x-order": 1, "enumDescriptions": []}'
    ),
    schema(type="object", properties={f"p{i}": {"type": "string"} for i in range(50)}),
]
BAD = [
    (
        schema(type="object", properties={"a": {"items": {"type": "array", "uniqueItems": True}}}),
        r"/properties/a/items: .*uniqueItems",
    ),
    (schema(properties={"a": {"$ref": "#/$defs/n"}}), r"/properties/a: .*does not exist"),
    (schema(properties={"a": {"$ref": "http://169.254.169.254/"}}), "/properties/a: .*retriev"),
    (
        schema(properties={"a": {"type": "string", "pattern": "(?=a)"}}),
        "/properties/a: .*look-around",
    ),
    (
        schema(**{"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}),
        "nothing satisfies it",
    ),
    (spec(json="{" * 2000), "no JSON"),
    (spec(regex=r"(a)\1"), "backreferences are not supported"),
    (spec(regex="[a&&b]"), "nothing satisfies it"),
    (spec(grammar="start: foo"), "unknown name"),
    (spec(grammar='start: a{1000000}\na: "a"'), "too complex to follow"),
    (
        schema(
            type="object",
            properties={"a": {"type": "string", "pattern": r"^(?:\S+\s+)*\S+$", "maxLength": 5000}},
            additionalProperties=False,
        ),
        "/properties/a: .*only one of a length and an expression",
    ),
    (spec(regex="\ud800"), "lone surrogate"),
]


def test_what_can_be_served_passes(checker):
    for good in GOOD:
        checker.check(good)


def test_what_cannot_is_refused_with_the_place(checker):
    for bad, message in BAD:
        with pytest.raises(RequestError, match=message) as caught:
            checker.check(bad)
        assert caught.value.param == "structured_output"


def test_what_breaks_the_check_or_its_answer_is_refused_in_few_words(checker):
    chain = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "a"'
    for bad, message in (
        (spec(json='{"const":' + "[" * 900 + "]" * 900 + "}"), "nested more than 64 deep"),
        (spec(json='{"properties": {"\\ud800": {"not": {}}}}'), "surrogate"),
        (spec(json=json.dumps({"properties": {"x" * 200_000: {"type": "x"}}})), "type"),
        (spec(grammar=chain), "nested too deeply"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            checker.check(bad)
        assert len(str(caught.value)) < 800
    checker.check(spec(regex="a"))


def test_a_relaxed_specification_passes_and_names_what_it_lacks(checker):
    strict = schema(type="array", maxItems=3, uniqueItems=True)
    with pytest.raises(RequestError, match="uniqueItems"):
        checker.check(strict)
    relaxed, left_out = checker.relaxed(strict)
    assert left_out == ("/uniqueItems",)
    assert json.loads(relaxed.json) == {"type": "array", "maxItems": 3}
    checker.check(relaxed)
    for same in (spec(regex="a"), schema(type="null")):
        assert checker.relaxed(same) == (same, ())
    with pytest.raises(RequestError, match="nothing satisfies"):
        checker.relaxed(schema(enum=[1], type="null"))


def num_checked(checker) -> int:
    return checker.pool.stats.num_jobs


class TestOnce:
    def test_equal_ones_are_checked_once_also_at_the_same_time(self, checker):
        same = [spec(regex="a+b", start_after=(place,)) for place in range(6)]
        threads = [threading.Thread(target=checker.check, args=(one,)) for one in same]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(2):
            with pytest.raises(RequestError, match="unclosed group"):
                checker.check(spec(regex="(a"))
        assert num_checked(checker) == 2

    def test_what_is_remembered_is_bounded(self, checker, monkeypatch):
        monkeypatch.setattr(checker_module, "MAX_KNOWN", 2)
        for regex in ("a", "b", "c", "a", "c"):
            checker.check(spec(regex=regex))
        assert num_checked(checker) == 4

    def test_a_client_with_too_many_is_refused_and_known_ones_pass(self, checker, monkeypatch):
        checker.check(spec(regex="a"))
        monkeypatch.setattr(turns, "MAX_PER_CLIENT", 0)
        with as_client("one"):
            for _ in range(2):
                with pytest.raises(QueueFullError, match="of this client wait for 'grammar_check'"):
                    checker.check(spec(regex="b"))
            checker.check(spec(regex="a"))
        monkeypatch.undo()
        checker.check(spec(regex="b"))


class TestBombs:
    """Reliability, fault 22."""

    def test_one_is_refused_within_the_limit_and_others_go_on(self):
        checker = GrammarChecker(None, CONTEXT, 0.5)
        checker.check(spec(regex="a"))
        refused = []

        def drop() -> None:
            with pytest.raises(
                RequestError, match=r"not compiled within 0.5 s.*grammar_seconds"
            ) as caught:
                checker.check(BOMB)
            refused.append(caught.value)

        thread = threading.Thread(target=drop)
        thread.start()
        checker.check(spec(regex="b"))  # in another process
        thread.join()
        assert refused
        assert checker.pool.stats.num_timeouts == 1
        with pytest.raises(RequestError, match="not compiled within"):  # not remembered
            checker.check(BOMB)
        assert checker.pool.stats.num_timeouts == 2
        checker.shutdown()

    def test_many_of_one_client_do_not_hold_up_a_small_one_of_another(self):
        """Eight heavy schemas hold one slot; the other one is free, whatever they take."""
        checker = GrammarChecker(None, CONTEXT, 600.0, size=2)
        checker.check(spec(regex="a"))

        def drop(number: int) -> None:
            heavy = {f"{number} {place}": {"type": "string"} for place in range(6500)}
            with as_client("many"), pytest.raises(DrainingError):
                checker.check(schema(type="object", properties=heavy))

        threads = [threading.Thread(target=drop, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while checker.pool.stats.num_waiting < 7:
            time.sleep(0.01)
        with as_client("another"):
            for number in range(5):
                checker.check(schema(type="object", properties={f"q{number}": {"type": "null"}}))
        assert checker.pool.stats.num_waiting > 0
        assert checker.pool.stats.num_running == 1
        checker.shutdown()
        for thread in threads:
            thread.join()

    @pytest.mark.skipif(
        sys.platform != "linux", reason="elsewhere threads have no priority of their own"
    )
    def test_it_never_had_the_usual_priority(self):
        others = psutil.Process().children(recursive=True)
        checker = GrammarChecker(None, CONTEXT, 10.0)
        checker.check(spec(regex="a"))
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        helpers = set(psutil.Process().children(recursive=True)) - set(others)
        assert len(helpers) >= 2
        for helper in helpers:
            threads = [int(path.name) for path in Path(f"/proc/{helper.pid}/task").iterdir()]
            found = [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]
            assert min(found) == max(usual, FIRST_NICE)
        checker.shutdown()


class TestSetup:
    def test_a_backend_that_is_not_installed_is_named(self):
        checker = GrammarChecker("llguidence", CONTEXT, 1.0)
        with pytest.raises(RequestError, match="did you mean 'llguidance'"):
            checker.check(spec(regex="a"))
        with pytest.raises(RequestError, match="not available"):  # not remembered
            checker.check(spec(regex="a"))
        checker.shutdown()

    def test_a_tokenizer_that_it_cannot_read_is_refused(self):
        checker = GrammarChecker(None, GrammarContext("{}", 300, (END,)), 1.0)
        with pytest.raises(RequestError, match="cannot read the tokenizer"):
            checker.check(spec(regex="a"))
        checker.shutdown()

    def test_after_the_shutdown_what_comes_is_refused_and_no_process_is_left(self):
        checker = GrammarChecker(None, CONTEXT, 1.0)
        checker.check(spec(regex="a"))
        checker.shutdown()
        with pytest.raises(DrainingError, match="takes no more"):
            checker.check(spec(regex="b"))
        psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)
        assert psutil.Process().children(recursive=True) == []
