"""Checking in processes that can be killed: once each, within the limit, a bomb alone (EC-6; reliability F)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tenonry.errors import DrainingError, QueueFullError, RequestError
from tenonry.sampling_params import StructuredOutput
from tenonry_grammars import check_start
from tenonry_grammars import checker as checker_module
from tenonry_grammars.background import FIRST_NICE
from tenonry_grammars.base import GrammarContext
from tenonry_grammars.checker import GrammarChecker
from tenonry_testkit.fakes.tokenizer import END, TOKENIZER_JSON

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
    schema(type="object", properties={f"p{i}": {"type": "string"} for i in range(50)}),
]
BAD = [
    (
        schema(type="object", properties={"a": {"items": {"not": {}}}}),
        r"/properties/a/items: .*not",
    ),
    (schema(properties={"a": {"maxLenght": 3}}), "/properties/a: unknown keyword 'maxLenght'"),
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
    (spec(grammar='start: "a" one\none: %json {"typ": 1}'), "unknown keyword 'typ'"),
    (spec(grammar='start: a{1000000}\na: "a"'), "too complex to follow"),
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
        (spec(json='{"const":' + "[" * 900 + "]" * 900 + "}"), "RecursionError"),
        (spec(json='{"properties": {"\\ud800": {"typ": 1}}}'), "unknown keyword"),
        (spec(json=json.dumps({"properties": {"x" * 200_000: {"typ": 1}}})), "unknown keyword"),
        (spec(grammar=chain), "nested too deeply"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            checker.check(bad)
        assert len(str(caught.value)) < 800
    checker.check(spec(regex="a"))


class Counting(checker_module._CheckProcess):
    """Counts what is asked."""

    asked: list = []  # noqa: RUF012

    def send(self, message):
        if isinstance(message, StructuredOutput):
            self.asked.append(message)
        super().send(message)


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(checker_module, "_CheckProcess", Counting)
    Counting.asked = []
    return Counting.asked


class TestOnce:
    def test_equal_ones_are_checked_once_also_at_the_same_time(self, asked):
        checker = GrammarChecker(None, CONTEXT, 10.0)
        same = [spec(regex="a+b", start_after=(place,)) for place in range(6)]
        threads = [threading.Thread(target=checker.check, args=(one,)) for one in same]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(2):
            with pytest.raises(RequestError, match="unclosed group"):
                checker.check(spec(regex="(a"))
        assert len(asked) == 2
        checker.shutdown()

    def test_what_is_remembered_is_bounded(self, asked, monkeypatch):
        monkeypatch.setattr(checker_module, "MAX_KNOWN", 2)
        checker = GrammarChecker(None, CONTEXT, 10.0)
        for regex in ("a", "b", "c", "a", "c"):
            checker.check(spec(regex=regex))
        assert [one.regex for one in asked] == ["a", "b", "c", "a"]
        checker.shutdown()


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
        checker.check(spec(regex="c"))
        checker.shutdown()

    def test_the_process_ends_by_itself_when_its_front_end_is_gone(self):
        checker = GrammarChecker(None, CONTEXT, 0.5)
        checker.check(spec(regex="a"))
        (process,) = checker._idle
        checker_module.write_message(process._process.stdin, BOMB)
        process._process.stdin.close()
        process._process.stdout.close()
        assert process._process.wait(20) != 0
        process.close()

    def test_it_ends_without_a_word_when_its_answer_is_read_no_more(self, capfd):
        checker = GrammarChecker(None, CONTEXT, 10.0)
        checker.check(spec(regex="a"))
        (process,) = checker._idle
        process._process.stdout.close()
        process.send(spec(regex="b"))
        assert process._process.wait(20) == 0
        process._process.stdin.close()
        assert capfd.readouterr().err == ""

    def test_a_process_that_was_killed_while_it_waited_costs_no_request(self):
        checker = GrammarChecker(None, CONTEXT, 10.0)
        checker.check(spec(regex="a"))
        (process,) = checker._idle
        process._process.kill()
        process._process.wait(20)
        checker.check(spec(regex="b"))
        checker.shutdown()

    @pytest.mark.skipif(
        sys.platform != "linux", reason="elsewhere threads have no priority of their own"
    )
    def test_it_starts_with_a_low_priority_and_answers_with_a_higher_one(self):
        checker = GrammarChecker(None, CONTEXT, 10.0)
        checker.check(spec(regex="a"))
        (process,) = checker._idle
        pid = process._process.pid
        threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        others = [thread for thread in threads if thread != pid]
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == max(usual, check_start.NICE)
        found = [os.getpriority(os.PRIO_PROCESS, thread) for thread in others]
        assert min(found) == max(usual, FIRST_NICE)  # none of its threads ever had the usual one
        assert os.getpriority(os.PRIO_PROCESS, 0) == usual
        checker.shutdown()

    def test_a_limit_is_of_processor_time(self):
        """A process that gets no processor for longer than the limit still finishes."""
        checker = GrammarChecker(None, CONTEXT, 1.0)
        checker.check(spec(regex="a"))
        (process,) = checker._idle
        pid = process._process.pid
        os.kill(pid, signal.SIGSTOP)
        wake = threading.Timer(2.0, os.kill, (pid, signal.SIGCONT))
        wake.start()
        checker.check(spec(regex="b"))
        wake.join()
        checker.shutdown()

    def test_many_that_wait_are_refused_and_known_ones_pass(self, monkeypatch):
        monkeypatch.setattr(checker_module, "MAX_WAITING", 2)
        checker = GrammarChecker(None, CONTEXT, 10.0)
        checker.check(spec(regex="a"))
        for _ in range(checker_module.MAX_PROCESSES):
            checker._free.acquire()
        waiting = [threading.Thread(target=checker.check, args=(spec(regex="b"),)) for _ in "12"]
        for thread in waiting:
            thread.start()
        while checker._num_waiting < 2:
            time.sleep(0.01)
        for regex in ("b", "c"):
            with pytest.raises(QueueFullError, match="of 2 requests are being checked"):
                checker.check(spec(regex=regex))
        checker.check(spec(regex="a"))
        for _ in range(checker_module.MAX_PROCESSES):
            checker._free.release()
        for thread in waiting:
            thread.join()
        checker.check(spec(regex="c"))
        assert checker._num_waiting == 0
        checker.shutdown()


class TestSetup:
    def test_a_backend_that_is_not_installed_is_named(self):
        checker = GrammarChecker("llguidence", CONTEXT, 1.0)
        with pytest.raises(RequestError, match="did you mean 'llguidance'"):
            checker.check(spec(regex="a"))
        with pytest.raises(RequestError, match="not available"):  # not remembered
            checker.check(spec(regex="a"))

    def test_a_tokenizer_that_it_cannot_read_is_refused(self):
        checker = GrammarChecker(None, GrammarContext("{}", 300, (END,)), 1.0)
        with pytest.raises(RequestError, match="cannot read the tokenizer"):
            checker.check(spec(regex="a"))

    def test_after_the_shutdown_what_waits_is_refused_and_no_process_is_kept(self):
        checker = GrammarChecker(None, CONTEXT, 1.0)
        checker.check(spec(regex="a"))
        checker.shutdown()
        with pytest.raises(DrainingError, match="checks no more"):
            checker.check(spec(regex="b"))
        assert checker._idle == []
