"""Ends of streams: stop strings, aborts, errors of the engine, faults of the IO processor (AF-5, AF-11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tenonry.errors import EngineDeadError, EngineGenerateError, PluginFault
from tenonry.interfaces.io_processor import ProcessedPrompt
from tenonry.messages import ScheduledOutput
from tenonry.outputs import FinishReason
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_testkit.fakes import ByteIOProcessor
from tenonry_testkit.fakes.io_processor import ByteDetokenizer
from tenonry_testkit.kernel.output_frames import (
    IO_CONTEXT,
    EnginelessFrontEnd,
    end,
    frame,
    logprobs,
    take,
    take_first,
)


class TestEndings:
    def test_a_stop_string_ends_the_request_here_and_in_the_engine(self):
        """AF-5."""
        front = EnginelessFrontEnd()
        stream = front.open(stop=["END"])
        assert front.receive({1: "abcENDxyz"}) == [1]
        output = take_first(stream)
        assert output.text == "abc"
        assert output.finish_reason == "stop"
        assert output.stop_reason == "END"
        assert output.token_ids == list(b"abcEND")
        assert front.receive({1: "more"}, [end(1, FinishReason.ABORT)]) == []
        assert stream.take() is None

    def test_a_stop_string_across_frames(self):
        front = EnginelessFrontEnd()
        stream = front.open(stop="END", include_stop_str_in_output=True)
        for piece, aborted in (("abE", []), ("N", []), ("Dz", [1])):
            assert front.receive({1: piece}) == aborted
        assert take_first(stream).text == "abEND"

    def test_no_abort_for_what_the_engine_has_ended(self):
        front = EnginelessFrontEnd()
        stream = front.open(stop="END")
        assert front.receive({1: "aEND"}, [end(1)]) == []
        assert take_first(stream).stop_reason == "END"

    @pytest.mark.parametrize(
        ("stop_token_ids", "stop_reason"), [([65], 65), (None, None), ([66], None)]
    )
    def test_a_stop_id_is_a_reason_if_the_caller_named_it(self, stop_token_ids, stop_reason):
        front = EnginelessFrontEnd()
        stream = front.open(stop_token_ids=stop_token_ids)
        front.receive({1: "A"}, [end(1, FinishReason.STOP, stop_token_id=65)])
        output = take_first(stream)
        assert (output.finish_reason, output.stop_reason) == ("stop", stop_reason)

    def test_an_error_ends_the_one_request(self):
        front = EnginelessFrontEnd()
        bad, good = front.open("bad"), front.open("good")
        front.receive({1: "a", 2: "b"}, [end(1, FinishReason.ERROR, error="NaN logits")])
        assert take_first(bad).finish_reason == "error"
        assert isinstance(bad.error, EngineGenerateError)
        assert str(bad.error) == "request bad failed: NaN logits"
        assert (good.error, take_first(good).text) == (None, "b")

    def test_an_error_without_words_gets_some(self):
        front = EnginelessFrontEnd()
        stream = front.open()
        front.receive({}, [end(1, FinishReason.ERROR)])
        assert "the engine gave no reason" in str(take(stream).error)

    @pytest.mark.parametrize("tokens", ["a", "aEND"])
    def test_a_request_ends_once(self, tokens):
        """Tokens that came before it failed are worked on after that."""
        front = EnginelessFrontEnd()
        front.open(stop="END")
        front.outputs.absorb(frame({1: tokens}))
        front.outputs.fail([1], EngineDeadError("killed"))
        front.outputs.flush()
        assert front.ended == ["r"]

    def test_outputs_of_unknown_requests_are_ignored(self):
        front = EnginelessFrontEnd()
        assert (
            front.receive({77: "x", 78: "yz"}, [end(79)], scheduled=[ScheduledOutput(80, 0.0, 0)])
            == []
        )

    def test_transfer_parameters_reach_the_caller(self):
        front = EnginelessFrontEnd()
        stream = front.open()
        front.receive({}, [end(1, kv_transfer_params={"block": 3})])
        assert take(stream).kv_transfer_params == {"block": 3}


class TestAbort:
    """AF-11."""

    def test_what_was_generated_is_kept(self):
        front = EnginelessFrontEnd()
        stream = front.open()
        front.receive({1: "ab"})
        assert front.outputs.abort(["r", "unknown"]) == [1]
        output = take(stream)
        assert output.finished is True
        assert output.outputs[0].text == "ab"
        assert output.outputs[0].finish_reason == "abort"
        assert front.outputs.abort(["r"]) == []

    def test_between_arrival_and_detokenisation(self):
        front = EnginelessFrontEnd()
        stream = front.open()
        front.outputs.absorb(frame({1: "ab"}))
        front.outputs.abort(["r"])
        assert take_first(stream).text == "ab"
        assert front.outputs.flush() == []

    def test_a_stop_string_that_was_there_already_wins(self):
        """With two endings the stream could never end."""
        front = EnginelessFrontEnd()
        stream = front.open(stop="END")
        front.outputs.absorb(frame({1: "abEND"}))
        assert front.outputs.abort(["r"]) == [1]
        output = take(stream)
        assert output.finished
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("ab", "stop")
        assert len(front.outputs) == 0

    def test_an_engine_that_dies_ends_every_stream(self):
        front = EnginelessFrontEnd()
        streams = [front.open(f"{i}") for i in range(3)]
        front.receive({1: "a"})
        error = EngineDeadError("gone")
        front.outputs.fail(front.outputs.live_handles(), error)
        assert take_first(streams[0]).text == "a"  # what came before is still there
        for stream in streams:
            with pytest.raises(EngineDeadError, match="gone"):
                stream.take()
        assert len(front.outputs) == len(front.outputs.live_handles()) == 0

    def test_a_final_output_is_whole_or_not_at_all(self):
        front = EnginelessFrontEnd()
        stream = front.open(output_kind=OutputKind.FINAL)
        front.receive({1: "a"})
        front.outputs.fail(front.outputs.live_handles(), EngineDeadError("gone"))
        with pytest.raises(EngineDeadError):
            stream.take()

    def test_live_handles_are_those_that_the_engine_still_runs(self):
        front = EnginelessFrontEnd()
        front.open("a", n=2, seed=1)
        front.open("b", stop="END")
        front.receive({3: "END"}, [end(1)])
        assert front.outputs.live_handles() == [2]


class BrokenIO(ByteIOProcessor):
    """Fails in the call named by `fails`."""

    fails = ""
    error: BaseException = ValueError("on purpose")

    def make_detokenizer(
        self, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> ByteDetokenizer | None:
        if self.fails == "make_detokenizer":
            raise self.error
        made = super().make_detokenizer(prompt_token_ids, params)
        if (
            made is not None
            and self.fails in {"push", "finish"}
            and "bad" in bytes(prompt_token_ids).decode()
        ):
            setattr(made, self.fails, self._raise)
        return made

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        if self.fails == "token_texts":
            raise self.error
        return super().token_texts(token_ids)

    def process_prompt(self, prompt: Any, params: SamplingParams, **options: Any) -> Any:
        if self.fails == "process_prompt":
            raise KeyError("on purpose")
        return super().process_prompt(prompt, params, **options)

    def _raise(self, *_: Any) -> str:
        raise self.error


class TestFaultsOfTheIOProcessor:
    """An IO processor that raises fails the one request; the plugin is named; the others continue."""

    def front(self, fails: str, error: BaseException | None = None) -> EnginelessFrontEnd:
        io = BrokenIO(IO_CONTEXT)
        io.fails = fails
        io.error = error or io.error
        return EnginelessFrontEnd(io)

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), GeneratorExit()])
    @pytest.mark.parametrize("call", ["push", "finish", "token_texts"])
    def test_while_a_request_runs(self, call, error):
        front = self.front(call, error)
        bad, good = front.open("b", "bad", logprobs=0), front.open("g", "good")
        aborts = front.receive({1: "x", 2: "y"}, logprobs=logprobs([0], [[120]]))
        assert aborts == ([] if call == "finish" else [1])
        front.receive({2: "z"}, [end(1), end(2)])
        assert take(good).outputs[0].text == "yz"
        assert isinstance(bad.error, EngineGenerateError)
        assert take(bad).outputs[0].finish_reason == "error"
        fault = bad.error.__cause__
        assert isinstance(fault, PluginFault)
        assert fault.call == call
        assert "BrokenIO" in fault.plugin
        assert "request b failed: plugin" in str(bad.error)
        assert len(front.outputs) == len(front.outputs.live_handles()) == 0

    def test_when_a_request_is_aborted(self):
        front = self.front("finish")
        front.open("b", "bad")
        assert front.outputs.abort(["b"]) == [1]
        assert len(front.outputs) == 0

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
    def test_before_a_request_is_accepted(self, error):
        front = self.front("make_detokenizer", error)
        with pytest.raises(
            EngineGenerateError, match=r"request r failed: plugin .*BrokenIO.* in make_detokenizer"
        ):
            front.open(n=2, seed=1)
        assert len(front.outputs) == len(front.outputs.live_handles()) == 0

    @pytest.mark.parametrize(
        ("call", "result", "kind"),
        [
            ("process_prompt", None, "ProcessedPrompt"),
            ("process_prompt", [1, 2], "ProcessedPrompt"),
            ("make_detokenizer", "text", "Detokenizer"),
        ],
    )
    def test_a_result_of_another_type_before_a_request_is_accepted(
        self, call, result, kind, monkeypatch
    ):
        front = self.front("")
        monkeypatch.setattr(BrokenIO, call, lambda *_, **__: result)
        text = (
            rf"request r failed: plugin .*BrokenIO at .*:\d+ .* {call}: .*must be of type {kind}$"
        )
        with pytest.raises(EngineGenerateError, match=text):
            front.open()
        assert len(front.outputs) == 0

    def test_token_ids_of_another_type_name_the_line(self, monkeypatch):
        monkeypatch.setattr(
            BrokenIO, "process_prompt", lambda *_, **__: ProcessedPrompt(token_ids=[1])
        )
        with pytest.raises(EngineGenerateError, match=rf"must be a numpy array \({__file__}:\d+\)"):
            self.front("").open()

    @pytest.mark.parametrize("call", ["push", "finish"])
    def test_a_detokenizer_without_text_fails_one_request(self, call, monkeypatch):
        front = self.front("")
        bad = front.open("b", "bad")
        monkeypatch.setattr(ByteDetokenizer, call, lambda *_: None)
        front.receive({1: "x"}, [end(1)])
        assert f"failed in {call}: TypeError: the result is None; it must be of type str" in str(
            bad.error
        )
        assert len(front.outputs) == 0

    def test_texts_of_tokens_are_a_list(self, monkeypatch):
        front = self.front("")
        bad = front.open("b", "bad", logprobs=0)
        monkeypatch.setattr(BrokenIO, "token_texts", lambda *_: None)
        front.receive({1: "x"}, logprobs=logprobs([0], [[120]]))
        assert (
            "failed in token_texts: TypeError: the result is None; it must be of type list"
            in str(bad.error)
        )

    def test_while_a_prompt_is_processed(self):
        with pytest.raises(
            EngineGenerateError, match=r"request r failed: plugin .* in process_prompt: KeyError"
        ):
            self.front("process_prompt").open()
