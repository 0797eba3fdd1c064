"""The conformance suite of IO processors: text to tokens and back, in pieces of any size. Test process.

from tenonry_testkit.io_processor import IOProcessorContract

class TestMine(IOProcessorContract):
    io_processor = "my_package:MyIOProcessor"

    def model(self):
        return ModelInfo(...)          # with a tokenizer_path, if it needs one
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase

from tenonry.config import EngineConfig
from tenonry.errors import RequestError
from tenonry.info import ModelInfo
from tenonry.interfaces.io_processor import (
    Detokenizer,
    IOProcessor,
    IOProcessorContext,
    OtherPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    read_prompt,
)
from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry.sampling_params import SamplingParams
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.search import PHASES, search
from tenonry_testkit.targets import resolve_target

HALF = "\N{REPLACEMENT CHARACTER}"
PLAIN = SamplingParams()


class IOProcessorContract:
    """Subclass in a test module and name the `io_processor`; `options` are its own, `config` fields of EngineConfig.

    `texts` must be texts that the tokenizer decodes unchanged. Processors without text set it to ().
    """

    io_processor: ClassVar[str | type[IOProcessor] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    texts: ClassVar[tuple[str, ...]] = (
        "Once upon a time",
        "a  b\n\nc\t.",
        "naïve café, 12 + 30 = 42!",
        "日本語 and 🙂🙃 emoji",
    )
    effort: ClassVar[float] = 1.0
    phases: ClassVar[Sequence[Phase]] = PHASES
    _processor: ClassVar[IOProcessor]

    def model(self) -> ModelInfo:
        """Facts of the model."""
        return fake_model(vocab_size=257)

    @property
    def processor(self) -> IOProcessor:
        """Return the processor of the whole class: reading a tokenizer can take a while."""
        cls = type(self)
        if "_processor" not in cls.__dict__:
            config = EngineConfig(model="fake", **self.config)
            plugin, options, _ = resolve_target(
                "io_processor", self.io_processor, self.options, config
            )
            cls._processor = plugin(IOProcessorContext(config, self.model(), options=options))
        return cls._processor

    @classmethod
    def teardown_class(cls) -> None:
        """Release it."""
        if "_processor" in cls.__dict__:
            cls._processor.shutdown()
            del cls._processor

    def _search(self, strategy: st.SearchStrategy[Any], check: Any, examples: int = 30) -> None:
        search(strategy, check, max(1, round(examples * self.effort)), self.phases)

    def _cut(self) -> st.SearchStrategy[tuple[str, list[int]]]:
        """(text, sizes of the pieces in which its tokens arrive)."""
        return st.tuples(st.sampled_from(self.texts), st.lists(st.integers(1, 4), max_size=40))

    def stream(
        self, text: str, sizes: Sequence[int], params: SamplingParams = PLAIN
    ) -> tuple[list[str], Detokenizer]:
        """Return (output pieces of the text's tokens in chunks of these sizes, the detokenizer)."""
        ids = self.processor.encode(text, add_special_tokens=False)
        detokenizer = self.processor.make_detokenizer([], params)
        assert detokenizer is not None
        pieces = []
        at = 0
        for size in [*sizes, len(ids)]:
            given = ids[at : at + size]
            if not given:
                break
            pieces.append(detokenizer.push(given))
            assert 0 <= detokenizer.consumed <= len(given)
            at += detokenizer.consumed
            if detokenizer.stop_reason is not None:
                return pieces, detokenizer
            assert detokenizer.consumed == len(given), (
                "ids were left over, but no stop string was found"
            )
        return [*pieces, detokenizer.finish()], detokenizer

    def consumed(self, text: str, sizes: Sequence[int], params: SamplingParams) -> int:
        """Number of the text's ids in the output, by the detokenizer's `consumed`."""
        ids = self.processor.encode(text, add_special_tokens=False)
        detokenizer = self.processor.make_detokenizer([], params)
        assert detokenizer is not None
        at = 0
        for size in [*sizes, len(ids)]:
            given = ids[at : at + size]
            if not given or detokenizer.stop_reason is not None:
                break
            detokenizer.push(given)
            at += detokenizer.consumed
        return at

    # ------------------------------------------------------------------ prompts
    def test_text_becomes_tokens(self) -> None:
        """Decoding the tokens restores the text; ids are i32."""
        for text in self.texts:
            plain = self.processor.process_prompt(read_prompt(text), PLAIN)
            wrapped = self.processor.process_prompt(read_prompt({"prompt": text}), PLAIN)
            given = self.processor.process_prompt(
                read_prompt({"prompt_token_ids": plain.token_ids.tolist()}), PLAIN
            )
            assert plain.token_ids.dtype == given.token_ids.dtype == np.int32
            assert plain.token_ids.ndim == 1
            assert (
                plain.token_ids.tolist() == wrapped.token_ids.tolist() == given.token_ids.tolist()
            )
            assert plain.token_ids.tolist() == self.processor.encode(text)
            assert plain.text == wrapped.text == text

    def test_a_prompt_is_left_as_it_was(self) -> None:
        """Callers reuse prompts, also for several completions."""
        for text in self.texts:
            ids = np.array(self.processor.encode(text), np.int32)
            for prompt in (TextPrompt(text), TokenPrompt(ids, text)):
                before = copy.deepcopy(prompt)
                self.processor.process_prompt(prompt, PLAIN)
                assert repr(prompt) == repr(before), "process_prompt changed the prompt"

    @pytest.mark.parametrize(
        "prompt",
        [TextPrompt(""), TokenPrompt(np.empty(0, np.int32)), OtherPrompt({"made": "up"})],
        ids=["no text", "no tokens", "of another kind"],
    )
    def test_what_is_no_prompt_is_refused(self, prompt: Prompt) -> None:
        """It raises RequestError, and no other error."""
        with pytest.raises(RequestError):
            self.processor.process_prompt(prompt, PLAIN)

    def test_bad_words_become_token_ids(self) -> None:
        """Each bad word becomes ids for the worker, in at least one form."""
        if self.texts:
            prompt = self.processor.process_prompt(
                read_prompt(self.texts[0]), SamplingParams(bad_words=("time", "café"))
            )
            assert len(prompt.bad_words) >= 2
            assert all(word and all(isinstance(i, int) for i in word) for word in prompt.bad_words)

    # ------------------------------------------------------------------ text
    def test_texts_come_back(self) -> None:
        """Decoding the encoded ids restores the text."""
        for text in self.texts:
            ids = self.processor.encode(text, add_special_tokens=False)
            assert self.processor.decode(ids, skip_special_tokens=True) == text

    def test_pieces_add_up(self) -> None:
        """For any chunks, the pieces are the text; none holds half a character."""

        def check(drawn: tuple[str, list[int]]) -> None:
            text, sizes = drawn
            pieces, _ = self.stream(text, sizes)
            assert "".join(pieces) == text
            assert not [piece for piece in pieces if HALF in piece]

        if self.texts:
            self._search(self._cut(), check)

    def test_streams_do_not_share_state(self) -> None:
        """Interleaved completions: each detokenizer holds the state of its own text only."""
        for text in self.texts:
            ids = self.processor.encode(text, add_special_tokens=False)
            detokenizers = [self.processor.make_detokenizer([], PLAIN) for _ in range(2)]
            found = ["", ""]
            for token_id in ids:
                for index, detokenizer in enumerate(detokenizers):
                    assert detokenizer is not None
                    found[index] += detokenizer.push([token_id])
            for index, detokenizer in enumerate(detokenizers):
                assert detokenizer is not None
                found[index] += detokenizer.finish()
            for number, streamed in enumerate(found):
                assert streamed == text, (
                    f"stream {number} of two became {streamed!r}, expected {text!r}; make_detokenizer must return a "
                    "fresh object with state of its own"
                )

    def test_any_ids_can_be_detokenised(self) -> None:
        """A model may sample any ids: the pieces add up to the result of `decode`, without an error."""
        ids = st.lists(st.integers(0, self.model().vocab_size - 1), min_size=1, max_size=24)

        def check(given: list[int]) -> None:
            detokenizer = self.processor.make_detokenizer([], PLAIN)
            if detokenizer is not None:
                text = (
                    "".join([detokenizer.push([token_id]) for token_id in given])
                    + detokenizer.finish()
                )
                assert isinstance(text, str)
                assert detokenizer.stop_reason is None

        self._search(ids, check)

    @pytest.mark.parametrize("include", [False, True])
    def test_stop_strings_end_the_text(self, include: bool) -> None:
        """A stop string is found at any position, across token borders too; exactly the preceding text is returned."""

        def check(drawn: tuple[tuple[str, list[int]], int, int]) -> None:
            (text, sizes), start, length = drawn
            start %= len(text)
            stop = text[start : start + length]
            params = SamplingParams(
                stop=("not in any text", stop), include_stop_str_in_output=include
            )
            pieces, detokenizer = self.stream(text, sizes, params)
            at = text.find(stop)
            assert detokenizer.stop_reason == stop
            assert "".join(pieces) == text[: at + len(stop) * include]
            one_by_one = self.consumed(text, [1] * 999, params)
            consumed = self.consumed(text, sizes, params)
            assert consumed == one_by_one, (
                f"stop string {stop!r}: `consumed` adds up to {consumed} ids when tokens arrive in pieces of {sizes}; "
                f"expected {one_by_one}, the ids up to the one that completes the stop string"
            )

        if self.texts:
            self._search(st.tuples(self._cut(), st.integers(0, 40), st.integers(1, 6)), check)

    def test_what_looks_like_a_stop_string_is_released(self) -> None:
        """The beginning of a stop string is withheld, and released when it is none."""

        def check(drawn: tuple[str, list[int]]) -> None:
            text, sizes = drawn
            pieces, detokenizer = self.stream(text, sizes, SamplingParams(stop=(f"{text[-3:]}~~",)))
            assert "".join(pieces) == text
            assert detokenizer.stop_reason is None

        if self.texts:
            self._search(self._cut(), check, 12)

    def test_no_text_is_made_when_none_is_wanted(self) -> None:
        """With detokenize off there is no detokenizer."""
        assert self.processor.make_detokenizer([1], SamplingParams(detokenize=False)) is None

    def test_each_id_has_a_text(self) -> None:
        """For log-probabilities every id has one."""
        ids = list(range(0, self.model().vocab_size, max(1, self.model().vocab_size // 50)))
        texts = self.processor.token_texts(ids)
        assert len(texts) == len(ids)
        assert all(isinstance(text, str) for text in texts)

    # ------------------------------------------------------------------ the rest
    def test_helper_threads_may_call_it(self) -> None:
        """Concurrent threads receive the same results as one."""

        def both(text: str) -> tuple[list[int], str]:
            ids = self.processor.process_prompt(read_prompt(text), PLAIN).token_ids.tolist()
            return ids, "".join(self.stream(text, [1] * len(ids))[0])

        many = [text for text in self.texts for _ in range(8)]
        alone = [both(text) for text in many]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(both, many)) == alone

    def test_outputs_are_handed_on(self) -> None:
        """`post_process` returns an output of the same request."""
        output = RequestOutput(
            "r1", "prompt", [1], [CompletionOutput(0, "text", [2], "stop")], finished=True
        )
        processed = self.processor.post_process(output)
        assert isinstance(processed, RequestOutput)
        assert processed.request_id == "r1"
        assert processed.finished, "post_process returned an unfinished output for a finished one"
        (completion,) = processed.outputs
        assert (completion.index, completion.finish_reason) == (0, "stop")
