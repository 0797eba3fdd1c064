"""The fakes detect the errors that they are made for, and behave as documented."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tenonry.errors import ModelError, RequestError, Unsupported
from tenonry.interfaces.io_processor import IOProcessorContext, read_prompt
from tenonry.outputs import FinishReason
from tenonry.sampling_params import SamplingParams
from tenonry.step import Adapter, SchedulerOutput
from tenonry_testkit.fakes import (
    ByteIOProcessor,
    FakeKVError,
    ReferenceScheduler,
    TokenModel,
    VirtualClock,
)
from tenonry_testkit.fakes.model import FakeModelHooks, fake_model
from tenonry_testkit.fakes.tokens import mix, mix_int, text_salt
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.spec import HarnessSpec, ready_fake_worker

PARAMS = SamplingParams(max_tokens=8)


class TestTokenModel:
    model = TokenModel(vocab_size=1_000_003)

    def test_one_number_is_mixed_as_arrays_are(self):
        numbers = [0, 1, 2**64 - 1, 123456789]
        assert mix(np.array(numbers, np.uint64)).tolist() == [mix_int(number) for number in numbers]

    def test_next_token_depends_on_every_token_and_on_their_order(self):
        base = [
            self.model.next_token(tokens, 3, PARAMS)
            for tokens in ([5, 6, 7], [7, 6, 5], [6, 6, 7], [5, 6, 7, 0])
        ]
        assert len(set(base)) == len(base)

    @pytest.mark.parametrize("windows", [(0,), (0, 3), (2, 0, 5)])
    def test_a_completion_is_made_of_next_tokens(self, windows):
        model, tokens = TokenModel(vocab_size=100, seed=3, windows=windows), [1, 2, 3]
        whole = model.complete(
            tokens, SamplingParams(max_tokens=20), max_model_len=64, adapter=Adapter("a", "1")
        ).token_ids
        for token in whole:
            assert model.next_token(tokens, 3, PARAMS, adapter=Adapter("a", "1")) == token
            tokens.append(token)
        assert len(whole) == 20

    def test_stop_ids_are_sampled_before_min_tokens_unless_held_back(self):
        free = self.model.complete([1, 2, 3], SamplingParams(max_tokens=8), max_model_len=64)
        params = SamplingParams(max_tokens=8, min_tokens=5)
        stop_ids = (free.token_ids[2],)
        early = TokenModel(vocab_size=1_000_003, holds_back_stop_ids=False)
        found = early.complete([1, 2, 3], params, max_model_len=64, stop_ids=stop_ids)
        assert found == free
        held = self.model.complete([1, 2, 3], params, max_model_len=64, stop_ids=stop_ids)
        assert held.token_ids[:2] == free.token_ids[:2]
        assert stop_ids[0] not in held.token_ids

    def test_next_token_depends_on_seed_adapter_and_output_index(self):
        tokens = [5, 6, 7, 8]
        found = {
            self.model.next_token(tokens, 4, PARAMS),
            self.model.next_token(tokens, 3, PARAMS),
            self.model.next_token(tokens, 4, SamplingParams(seed=1)),
            self.model.next_token(tokens, 4, PARAMS, adapter=Adapter("a", "1")),
            TokenModel(vocab_size=1_000_003, seed=1).next_token(tokens, 4, PARAMS),
        }
        assert len(found) == 5

    def test_going_on_gives_the_rest(self):
        whole = self.model.complete([1, 2, 3], PARAMS, max_model_len=64)
        rest = self.model.complete(
            [1, 2, 3], PARAMS, max_model_len=64, delivered=whole.token_ids[:3]
        )
        assert whole.token_ids[3:] == rest.token_ids
        assert whole.reason is rest.reason is FinishReason.LENGTH

    def test_stop_ids_end_it_and_min_tokens_hold_them_back(self):
        free = self.model.complete([1, 2], PARAMS, max_model_len=64).token_ids
        stopped = self.model.complete([1, 2], PARAMS, max_model_len=64, stop_ids=(free[2],))
        assert stopped == (free[:3], FinishReason.STOP, free[2])
        later = SamplingParams(max_tokens=8, min_tokens=6)
        held = self.model.complete([1, 2], later, max_model_len=64, stop_ids=(free[2],))
        assert free[2] not in held.token_ids[:6]

    def test_allowed_ids_are_kept_to_and_none_left_is_said(self):
        only = SamplingParams(max_tokens=8, allowed_token_ids=(3, 90))
        assert set(self.model.complete([1], only, max_model_len=64).token_ids) <= {3, 90}
        nothing = SamplingParams(max_tokens=8, min_tokens=8, allowed_token_ids=(3, 90))
        assert (
            self.model.complete([1], nothing, max_model_len=64, stop_ids=(3, 90)).reason
            is FinishReason.ERROR
        )

    def test_context_length_ends_it(self):
        assert len(self.model.complete([1] * 5, PARAMS, max_model_len=7).token_ids) == 2

    def test_contents_of_adapters_have_different_salts(self):
        adapters = (None, *(Adapter("x", digest) for digest in ("a", "b", "ab", "ba")))
        assert len({text_salt(adapter) for adapter in adapters}) == 5


class TestFakeWorker:
    """Errors in a scheduler's messages are detected in the step where they happen."""

    def steps(self, change=None, *, num_steps=4, **spec):
        """Steps of one long request, `change`d; a FakeKVError passes through."""
        harness = SchedulerHarness(ReferenceScheduler, HarnessSpec(**spec))
        for number in range(3):
            harness.add([number + 1] * 6, 20)
        worker = ready_fake_worker(harness.spec)
        for _ in range(num_steps):
            harness.launch()
            output = harness.outputs[-1]
            if change is not None:
                change(output)
            worker.execute_model(output)
            harness.deliver()

    def test_honest_steps_pass(self):
        self.steps()

    def test_block_that_holds_something_else_is_found(self):
        def confuse(output):
            output.new_block_id = np.array([2, *output.new_block_id.tolist()[1:]], np.int32)[
                : len(output.new_block_id)
            ]

        with pytest.raises(
            FakeKVError,
            match=r"handle 2\) reads position 0 from slot 8 .* but position 8 of handle 1",
        ):
            self.steps(confuse, max_num_batched_tokens=18, num_blocks=20, num_steps=6)

    def test_wrong_prefix_hit_is_found(self):
        def pretend(output):
            for new in output.new:
                new.num_computed = 4
            output.num_tokens = np.where(
                output.num_tokens > 4, output.num_tokens - 4, output.num_tokens
            )

        with pytest.raises(FakeKVError, match="does not hold its prefix but nothing"):
            self.steps(pretend, max_num_batched_tokens=18, num_blocks=20)

    def test_wrong_token_is_found(self):
        def lie(output):
            output.next_token = np.where(
                output.next_token >= 0, output.next_token ^ 1, output.next_token
            )

        with pytest.raises(FakeKVError, match="next_token is"):
            self.steps(lie)

    def test_shared_slot_is_found(self):
        def share(output):
            for new in output.new:
                new.block_ids = output.new[0].block_ids

        with pytest.raises(FakeKVError, match="in one step"):
            self.steps(share)

    def test_unknown_token_is_found(self):
        def withhold(output):
            output.next_token = np.full_like(output.next_token, -1)

        with pytest.raises(FakeKVError, match="neither the scheduler sent nor"):
            self.steps(withhold, feeds_back=False)

    def test_faults_on_order(self):
        worker = ready_fake_worker(HarnessSpec())
        worker.fail_steps[0] = RuntimeError("as told")
        seen = []
        worker.on_step = seen.append
        with pytest.raises(RuntimeError, match="as told"):
            worker.execute_model(SchedulerOutput(step_id=0))
        assert len(worker.execute_model(SchedulerOutput(step_id=1)).row) == 0
        assert [output.step_id for output in seen] == [0, 1]
        failing = type(worker)(
            dataclasses.replace(worker.context, options=type(worker).Options(fail_load="no disk"))
        )
        with pytest.raises(ModelError, match="no disk"):
            failing.load()

    def test_calls(self):
        worker = ready_fake_worker(HarnessSpec())
        assert worker.call("echo", [1]) == [0, 1]
        with pytest.raises(Unsupported):
            worker.call("load")

    def test_sliding_windows_need_only_their_last_positions(self):
        harness = SchedulerHarness(ReferenceScheduler, HarnessSpec(windows=(0, 6), num_blocks=24))
        for number in range(5):
            harness.add([number] * 9, 12)
        harness.drain()
        assert harness.ledger.summary()["length"] == 5


class TestByteIOProcessor:
    processor = ByteIOProcessor(IOProcessorContext(None, fake_model()))

    def test_special_ids_are_skipped_or_shown(self):
        ids = [*b"ab", 256, *b"c"]
        assert self.processor.decode(ids, skip_special_tokens=True) == "abc"
        assert self.processor.decode(ids) == "ab<256>c"

    def test_half_character_at_the_end_is_marked(self):
        assert self.processor.decode(list("é".encode())[:1]) == "\N{REPLACEMENT CHARACTER}"

    def test_chat_is_rendered(self):
        chat = [{"role": "user", "content": "hello"}]
        assert self.processor.render_chat(chat) == "user: hello\nassistant:"

    def test_bad_prompts_say_what_was_given(self):
        with pytest.raises(RequestError, match=r"TextPrompt.* is empty"):
            self.processor.process_prompt(read_prompt(""), PARAMS)


def test_clock_moves_only_when_told_and_never_back():
    clock = VirtualClock(5.0)
    assert (clock(), clock.advance(2.5), clock()) == (5.0, 7.5, 7.5)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_hooks_know_one_model():
    class Config:
        model = "fake"

    assert FakeModelHooks(max_model_len=9).tenonry_resolve_model(Config).max_model_len == 9
    Config.model = "other"
    assert FakeModelHooks().tenonry_resolve_model(Config) is None
