"""Masks of grammars in the sampler: with other processors, replayed, started late, failing alone (SO-1)."""

from __future__ import annotations

import json
import math
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sampler_driver import SamplerDriver

from tenonry.config import EngineConfig
from tenonry.errors import PluginNotFound
from tenonry.info import ModelInfo
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import RowFailure, SchedulerOutput
from tenonry_grammar_llguidance.backend import LLGuidance, LLMatcher
from tenonry_grammars.base import GrammarError
from tenonry_grammars.bits import allowed_ids
from tenonry_testkit.fakes.tokenizer import END, OTHER_END, PIECES, TOKENIZER_JSON
from tenonry_testkit.grammar import tokens_of
from tenonry_torch_base.grammars import GrammarStore, open_grammars
from tenonry_torch_base.sampler import grammar as grammar_module
from tenonry_torch_base.sampler.grammar import GrammarMasks
from tenonry_torch_base.sampler.token_masks import best_on_host

VOCAB = 300
A, B, X, Y = (PIECES[letter] for letter in (b"a", b"b", b"x", b"y"))


@pytest.fixture
def model(tmp_path: Path) -> ModelInfo:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER_JSON)
    return ModelInfo(
        name="m", path=str(tmp_path), architecture="M", max_model_len=64, vocab_size=VOCAB, eos_token_ids=(END,)
    )  # fmt: skip


@pytest.fixture(params=["caller", "thread", "before"])
def driver(model, request, monkeypatch):
    """Masks made by the waiting caller; by a thread, as for many rows; or, for many rows, before the model."""
    if request.param != "caller":
        monkeypatch.setattr(grammar_module, "ROWS_FOR_A_THREAD", 1)
    is_beside = request.param == "thread"
    monkeypatch.setattr(grammar_module, "leaves_a_processor", lambda device: is_beside)
    store = GrammarStore(LLGuidance, model, VOCAB)
    made = SamplerDriver(VOCAB, extra=[partial(GrammarMasks, store=store)])
    yield made
    made.sampler.shutdown()


def params(start_after=(), temperature=0.0, **fields):
    forms = ("json", "json_object", "regex", "choice", "grammar")
    spec = {name: fields.pop(name) for name in forms if name in fields}
    bound = StructuredOutput(**spec, start_after=start_after) if spec else None
    return SamplingParams(temperature=temperature, structured_output=bound, **fields)


def logits(rows, *liked):
    """The same for each row: later ones of `liked` are less likely, all others much less."""
    values = torch.full((rows, VOCAB), -5.0)
    for place, token in enumerate(liked):
        values[:, token] = 10.0 - place
    return values


def run(driver, rows, values, steps):
    """The tokens of each row, or its failure code."""
    out = {row: [] for row in rows}
    failed = {}
    for _ in range(steps):
        sampled = driver.sample(values[: len(rows)], rows)
        for row, token, code in zip(
            rows, sampled.token_ids.tolist(), sampled.failure.tolist(), strict=True
        ):
            if code:
                failed.setdefault(row, code)
            out[row].append(token)
        driver.accept(rows, sampled)
    return out, failed


def test_only_rows_with_a_grammar_are_bound(driver):
    driver.enter(0, params(regex="ab*x"), stop=(END,))
    driver.enter(1, params())
    driver.enter(2, params(choice=("yx",)), stop=(END,))
    out, failed = run(driver, [0, 1, 2], logits(3, Y, B, X), 3)
    assert out == {0: [A, B, B], 1: [Y] * 3, 2: [Y, X, END]}
    assert not failed


def test_masks_are_made_ahead_and_once(driver, monkeypatch):
    calls = []
    original = LLGuidance.fill_masks
    monkeypatch.setattr(
        LLGuidance,
        "fill_masks",
        lambda self, rows, out: calls.append(len(rows)) or original(self, rows, out),
    )
    driver.enter(0, params(regex="a+"), stop=(END,))
    driver.enter(1, params(regex="b+"), stop=(END,))
    step = driver.step([0, 1])
    assert driver.sampler.prepares
    driver.sampler.prepare(step)
    sampled = driver.sampler.sample(logits(2, X, B, A), step)
    assert sampled.token_ids.tolist() == [A, B]
    assert calls[:1] == [2]


def test_masks_of_the_next_step_are_made_with_its_tokens(driver, monkeypatch):
    """If a thread makes them, nothing is left to do when that step starts, also for rows that join it."""
    monkeypatch.setattr(grammar_module, "ROWS_FOR_A_THREAD", 1)
    taken = []
    original = LLGuidance.accept_each
    monkeypatch.setattr(
        LLGuidance,
        "accept_each",
        lambda self, rows, tokens: taken.append(tokens) or original(self, rows, tokens),
    )
    driver.enter(0, params(regex="ab*x"), stop=(END,))
    out, _ = run(driver, [0], logits(1, B, A, END), 2)
    driver.enter(1, params(regex="x+"), stop=(END,))
    more, failed = run(driver, [0, 1], logits(2, B, X), 2)
    assert (out, more) == ({0: [A, B]}, {0: [B, B], 1: [X, X]})
    assert taken[:3] == [[A], [B], [B, X]]
    assert not failed


@pytest.mark.parametrize("num_free", [0, 1])
def test_no_thread_is_set_beside_a_model_that_computes_on_every_processor(
    model, monkeypatch, num_free
):
    """Threads of torch wait for each other many times a step, so a third one stops both."""
    monkeypatch.setattr(grammar_module, "ROWS_FOR_A_THREAD", 1)
    usable = set(range(torch.get_num_threads() + num_free))
    monkeypatch.setattr(grammar_module.os, "sched_getaffinity", lambda _: usable, raising=False)
    made_by = set()
    original = LLGuidance.fill_masks
    monkeypatch.setattr(
        LLGuidance,
        "fill_masks",
        lambda self, rows, out: (
            made_by.add(threading.current_thread().name.rpartition("_")[0])
            or original(self, rows, out)
        ),
    )
    store = GrammarStore(LLGuidance, model, VOCAB)
    driver = SamplerDriver(VOCAB, extra=[partial(GrammarMasks, store=store)])
    driver.enter(0, params(regex="ab*x"), stop=(END,))
    out, failed = run(driver, [0], logits(1, B, A, END), 3)
    driver.sampler.shutdown()
    assert (out, failed) == ({0: [A, B, B]}, {})
    assert made_by == ({"grammar-masks"} if num_free else {""})


@pytest.mark.parametrize("is_beside", [False, True])
def test_masks_are_ready_before_a_model_that_needs_every_processor(model, monkeypatch, is_beside):
    """A few rows; if a processor is free, the sampler fills them when the model is done."""
    monkeypatch.setattr(grammar_module, "leaves_a_processor", lambda device: is_beside)
    filled = []
    original = LLGuidance.fill_masks
    monkeypatch.setattr(
        LLGuidance,
        "fill_masks",
        lambda self, rows, out: filled.append(len(rows)) or original(self, rows, out),
    )
    store = GrammarStore(LLGuidance, model, VOCAB)
    driver = SamplerDriver(VOCAB, extra=[partial(GrammarMasks, store=store)])
    driver.enter(0, params(regex="ab*x"), stop=(END,))
    step = driver.step([0])
    driver.sampler.prepare(step)
    assert filled == ([] if is_beside else [1])
    assert driver.sampler.sample(logits(1, B, A), step).token_ids.tolist() == [A]
    assert filled == [1]
    driver.sampler.shutdown()


def test_a_kernel_looks_for_tokens_among_those_that_are_allowed(model):
    """Logits of a width that masks have, too."""
    width = 320
    given = []

    def kernel(logits, masks):
        given.append(masks)
        return best_on_host(logits, masks.numpy())

    store = GrammarStore(LLGuidance, model, width)
    driver = SamplerDriver(width, extra=[partial(GrammarMasks, store=store, kernel=kernel)])
    driver.enter(0, params(regex="ab*x"), stop=(END,))
    values = torch.zeros(1, width)
    values[0, [B, A]] = torch.tensor([2.0, 1.0])
    assert driver.sample(values, [0]).token_ids.tolist() == [A]
    (masks,) = given
    allowed = allowed_ids(masks.numpy()[0])
    assert A in allowed
    assert B not in allowed
    driver.sampler.shutdown()


def test_a_token_that_was_sampled_and_not_kept_is_taken_back(driver):
    driver.enter(0, params(regex="ax|by"), stop=(END,))
    assert driver.sample(logits(1, A), [0]).token_ids.tolist() == [A]
    out, failed = run(driver, [0], logits(1, B, Y), 2)
    assert out == {0: [B, Y]}
    assert not failed


def test_a_row_that_is_used_again_has_the_mask_of_its_request(driver):
    driver.enter(0, params(regex="a+"), stop=(END,))
    run(driver, [0], logits(1, A), 3)
    driver.enter(0, params(regex="bbbbb"), stop=(END,))
    out, failed = run(driver, [0], logits(1, A, B), 4)
    assert out == {0: [B] * 4}
    assert not failed


def test_a_backend_that_takes_no_tokens_fails_the_rows(driver, monkeypatch, caplog):
    def fail(self, *args):
        raise RuntimeError("broken")

    monkeypatch.setattr(LLGuidance, "accept_each", fail)
    monkeypatch.setattr(LLMatcher, "accept", fail)
    driver.enter(0, params(regex="a+"), stop=(END,))
    _, failed = run(driver, [0], logits(1, A), 2)
    assert failed == {0: RowFailure.GRAMMAR}
    assert "broken" in caplog.text


def test_without_a_grammar_nothing_is_prepared(driver):
    driver.enter(0, params(temperature=1.0))
    assert not driver.sampler.prepares
    driver.enter(1, params(regex="a"), stop=(END,))
    assert driver.sampler.prepares
    driver.sampler.leave(1)
    assert not driver.sampler.prepares


@pytest.mark.parametrize("known", range(5))
def test_a_row_that_comes_back_replays_its_output(driver, known):
    whole = [A, B, B, X, END]
    driver.enter(3, params(regex="abbx"), output=whole[:known], stop=(END,))
    out, failed = run(driver, [3], logits(1, Y, END, X), 5 - known)
    assert out[3] == whole[known:]
    assert not failed


def test_an_output_that_the_grammar_forbids_fails_the_row_alone(driver, caplog):
    driver.enter(0, params(regex="abbx"), output=[A, Y], stop=(END,))
    driver.enter(1, params(regex="a+"), stop=(END,))
    out, failed = run(driver, [0, 1], logits(2, A), 2)
    assert failed == {0: RowFailure.GRAMMAR}
    assert out[1] == [A, A]
    assert f"token {Y} of its output does not fit the grammar" in caplog.text


def test_a_token_that_is_not_known_yet_fails_the_row(driver, caplog):
    driver.enter(0, params(regex="a+"), output=[A], stop=(END,))
    driver.history[0, 3] = -1
    _, failed = run(driver, [0], logits(1, A), 1)
    assert failed == {0: RowFailure.GRAMMAR}
    assert "before the last token of the row was known" in caplog.text


class TestStartAfter:
    def test_it_holds_behind_the_tokens(self, driver):
        driver.enter(0, params(regex="ba", start_after=(X, Y)), output=[Y, X], stop=(END,))
        out, failed = run(driver, [0], logits(1, Y, X, END), 4)
        assert out[0] == [Y, B, A, END]
        assert not failed

    def test_before_it_every_token_but_the_end_is_allowed(self, driver):
        driver.enter(0, params(regex="ba", start_after=(X, Y)), stop=(END, OTHER_END))
        out, _ = run(driver, [0], logits(1, END, OTHER_END, B), 3)
        assert out[0] == [B, B, B]

    @pytest.mark.parametrize("output", [[X, Y], [X, X, Y], [B, X, Y, B], [X, Y, B]])
    def test_a_row_that_comes_back_finds_its_place(self, driver, output):
        driver.enter(0, params(regex="ba", start_after=(X, Y)), output=output, stop=(END,))
        out, _ = run(driver, [0], logits(1, Y, END), 1)
        assert out[0] == [A if output[-1] == B else B]

    def test_the_prompt_does_not_count(self, driver):
        driver.enter(0, params(regex="ba", start_after=(X,)), prompt=(1, X), stop=(END,))
        out, _ = run(driver, [0], logits(1, Y), 2)
        assert out[0] == [Y, Y]


class TestWithOtherProcessors:
    def test_a_bias_cannot_allow_what_the_grammar_forbids(self, driver):
        driver.enter(0, params(regex="[ab]+", logit_bias={Y: 100.0, B: 50.0}), stop=(END,))
        out, _ = run(driver, [0], logits(1, X, A), 2)
        assert out[0] == [B, B]

    def test_min_tokens_hold_the_end_back(self, driver):
        driver.enter(0, params(regex="a*", min_tokens=2), stop=(END,))
        out, failed = run(driver, [0], logits(1, END), 3)
        assert out[0] == [A, A, END]
        assert not failed

    def test_without_any_token_left_the_row_fails_by_its_grammar(self, driver):
        driver.enter(0, params(choice=("a",), min_tokens=5), stop=(END,))
        driver.enter(1, params(regex="a+"), bad=((A,),), stop=(END,))
        driver.enter(2, params(allowed_token_ids=[7], logit_bias={7: 1.0}), bad=((7,),))
        _, failed = run(driver, [0, 1, 2], logits(3, A), 2)
        assert failed == {0: RowFailure.GRAMMAR, 1: RowFailure.GRAMMAR, 2: RowFailure.SAMPLING}

    def test_penalties_choose_among_what_is_allowed(self, driver):
        driver.enter(0, params(regex="[ab]+", presence_penalty=2.0), stop=(END,))
        out, _ = run(driver, [0], logits(1, A, B), 4)
        assert out[0] == [A, B, A, A]

    def test_sampling_draws_only_what_is_allowed(self, driver):
        for row in range(8):
            driver.enter(
                row, params(regex="[ax]{3}", temperature=2.0, seed=row, top_p=0.9), stop=(END,)
            )
        out, _ = run(driver, list(range(8)), torch.randn(8, VOCAB), 3)
        assert {token for tokens in out.values() for token in tokens} == {A, X}

    def test_log_probabilities_are_those_of_the_model_without_the_mask(self, driver):
        """The sampler's convention: from the model's logits, before any processor."""
        driver.enter(0, params(regex="b", logprobs=1), stop=(END,))
        values = logits(1, Y, B)
        sampled = driver.sample(values, [0])
        ids, found, rank = sampled.logprobs.numpy()
        expected = torch.log_softmax(values, -1)[0]
        assert ids[0].tolist() == [B, Y]
        assert math.isclose(found[0][0], expected[B], abs_tol=1e-5)
        assert rank.tolist() == [2]

    def test_a_grammar_comes_after_processors_of_others(self, driver):
        kinds = [type(processor) for processor in driver.sampler.processors]
        assert kinds[-1] is GrammarMasks


class TestFaults:
    def test_a_backend_that_raises_fails_its_rows_alone(self, driver, monkeypatch, caplog):
        driver.enter(0, params(regex="a+"), stop=(END,))
        driver.enter(1, params())

        def fail(self, matchers, out):
            raise RuntimeError("broken")

        monkeypatch.setattr(LLGuidance, "fill_masks", fail)
        out, failed = run(driver, [0, 1], logits(2, Y), 1)
        assert failed == {0: RowFailure.GRAMMAR}
        assert out[1] == [Y]
        assert "broken" in caplog.text

    def test_what_cannot_be_compiled_fails_its_row(self, driver, caplog):
        driver.enter(0, params(regex="(a"), stop=(END,))
        _, failed = run(driver, [0], logits(1, Y), 1)
        assert failed == {0: RowFailure.GRAMMAR}
        assert "regex parse error" in caplog.text

    def test_without_a_backend_the_command_is_named(self, model, caplog):
        driver = SamplerDriver(
            VOCAB, extra=[partial(GrammarMasks, store=GrammarStore(None, model, VOCAB))]
        )
        driver.enter(0, params(regex="a"), stop=(END,))
        _, failed = run(driver, [0], logits(1, Y), 1)
        assert failed == {0: RowFailure.GRAMMAR}
        assert "pip install tenonry-grammar-llguidance" in caplog.text
        driver.sampler.shutdown()


def test_equal_specifications_are_compiled_once(model, monkeypatch):
    compiled = []
    original = LLGuidance.compile
    monkeypatch.setattr(
        LLGuidance, "compile", lambda self, spec: compiled.append(spec) or original(self, spec)
    )
    store = GrammarStore(LLGuidance, model, VOCAB)
    one = StructuredOutput(regex="a", start_after=(1,))
    other = StructuredOutput(regex="a")
    assert store.compiled(one).result() is store.compiled(other).result()
    store.compiled(StructuredOutput(regex="b")).result()
    assert compiled == [other, StructuredOutput(regex="b")]
    store.shutdown()


def test_a_spent_grammar_is_compiled_anew_for_rows_that_come(model):
    store = GrammarStore(LLGuidance, model, VOCAB)
    spec = StructuredOutput(choice=("ab",))
    first = store.compiled(spec)
    assert store.compiled(spec) is first
    grammar = first.result()
    grammar.__class__ = type("Spent", (type(grammar),), {"is_spent": True})
    second = store.compiled(spec)
    assert second is not first
    assert store.compiled(spec) is second
    assert not second.result().is_spent
    store.shutdown()


def test_running_rows_continue_when_another_spends_their_grammar(model, caplog):
    """All rows share the budget of a lexer; those that run are replayed on a grammar compiled anew (G34)."""
    schema = {"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500}
    spec = {"json": json.dumps(schema)}
    text = tokens_of('"word0 word1 word2 word3 word4 word5 word6 wo')
    many = tokens_of(f'"{" ".join(f"word{place}" for place in range(45))}"')
    store = GrammarStore(LLGuidance, model, VOCAB)
    driver = SamplerDriver(VOCAB, extra=[partial(GrammarMasks, store=store)])
    driver.enter(0, params(**spec), stop=(END,))
    driver.enter(1, params(start_after=(X,), **spec), output=(A, X), stop=(END,))
    for place, token in enumerate(text):
        if place == len(text) // 2:
            grammar = store.compiled(StructuredOutput(**spec)).result()
            assert grammar.matcher([END]).inner.try_consume_tokens(many) < len(many)
        out, failed = run(driver, [0, 1], logits(2, token), 1)
        assert out == {0: [token], 1: [token]}
        assert not failed
    assert grammar.is_spent
    assert caplog.text.count("recompiled its grammar") == 2
    driver.sampler.shutdown()


def test_the_choice_of_a_missing_backend_is_refused_at_the_start(model):
    context = SimpleNamespace(
        config=EngineConfig(model="m", grammar_backend="llguidence"), model=model
    )
    with pytest.raises(PluginNotFound, match="did you mean 'llguidance'"):
        open_grammars(context, VOCAB, {})


@pytest.mark.parametrize(("name", "num_built"), [("llguidance", 1), (None, 0)])
def test_a_backend_that_the_settings_name_is_built_at_the_start(
    model, monkeypatch, name, num_built
):
    """Reading a tokenizer stops all other requests; without a name, the first grammar pays for it."""
    built = []
    original = LLGuidance.__init__
    monkeypatch.setattr(
        LLGuidance,
        "__init__",
        lambda self, context: built.append(context.vocab_size) or original(self, context),
    )
    context = SimpleNamespace(config=EngineConfig(model="m", grammar_backend=name), model=model)
    store = open_grammars(context, VOCAB, {})
    assert built == [VOCAB] * num_built
    store.compiled(StructuredOutput(regex="a")).result()
    assert built == [VOCAB]
    store.shutdown()


def test_a_tokenizer_that_the_backend_cannot_read_is_told_with_a_request(model):
    (Path(model.path) / "tokenizer.json").write_text('{"model": 1}')
    context = SimpleNamespace(
        config=EngineConfig(model="m", grammar_backend="llguidance"), model=model
    )
    store = open_grammars(context, VOCAB, {})
    with pytest.raises(GrammarError, match="cannot read the tokenizer"):
        store.compiled(StructuredOutput(regex="a")).result()
    store.shutdown()


class TestCompiling:
    """Requests wait outside the queue until their grammar is ready (EC-6)."""

    def ask(self, driver, asked, num_rows=0):
        output = SchedulerOutput(step_id=0, row=np.zeros(num_rows, np.int32), prepare=asked)
        return driver.sampler.compile(output)

    @pytest.fixture
    def gate(self, monkeypatch):
        """Compiling waits for this event."""
        gate = threading.Event()
        original = LLGuidance.compile

        def compile_later(backend, spec):
            assert gate.wait(10)
            return original(backend, spec)

        monkeypatch.setattr(LLGuidance, "compile", compile_later)
        yield gate
        gate.set()

    def test_a_request_is_ready_when_its_grammar_is(self, driver, gate):
        spec = StructuredOutput(regex="a+")
        assert self.ask(driver, {7: spec}) == []
        assert self.ask(driver, {7: None}, num_rows=1) == []
        gate.set()
        deadline = time.monotonic() + 10
        while not (ready := self.ask(driver, {7: None})):
            assert time.monotonic() < deadline
        assert ready == [7]

    def test_one_that_cannot_be_compiled_is_ready_and_fails_its_row(self, driver):
        spec = StructuredOutput(regex="(")
        ready = self.ask(driver, {7: spec})
        while not ready:
            ready = self.ask(driver, {7: None})
        driver.enter(0, SamplingParams(structured_output=spec), stop=(END,))
        _, failed = run(driver, [0], logits(1, A), 1)
        assert failed == {0: RowFailure.GRAMMAR}

    def test_one_that_is_not_known_is_ready(self, driver):
        assert self.ask(driver, {7: None}) == [7]

    def test_nothing_asked_is_nothing_done(self, driver):
        assert self.ask(driver, {}) == []
