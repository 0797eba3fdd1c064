"""The IO processor `text`: the model's tokenizer and chat template. Front end; light until it is built."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tenonry.errors import ConfigError, RequestError
from tenonry.interfaces.io_processor import (
    Detokenizer,
    IOProcessor,
    IOProcessorContext,
    ProcessedPrompt,
    Prompt,
)
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import I32
from tenonry_io_text.beginning import beginning
from tenonry_io_text.grammar_check import GrammarCheck
from tenonry_io_text.options import TextOptions, TextSettings
from tenonry_io_text.pairs import joined
from tenonry_io_text.prompt import ParsedPrompt, checked_ids, parse_prompt

if TYPE_CHECKING:
    from tenonry_io_text.chat import ChatRenderer
    from tenonry_io_text.codec import Codec
    from tenonry_io_text.images import PromptImages
    from tenonry_io_text.long_texts import LongTexts

logger = logging.getLogger("tenonry.io")

# Twice the longest run of spaces that any published tokenizer has as one token.
CHARS_PER_TOKEN = 256
OPENING = threading.Lock()  # transformers cannot be imported by several threads concurrently
MIN_CHARS = 4096


class TextIOProcessor(IOProcessor):
    """Text and chats to token ids with the model's tokenizer, and back. Safe to use from several threads."""

    Options = TextOptions
    Settings = TextSettings

    def __init__(self, context: IOProcessorContext) -> None:
        super().__init__(context)
        config, model = context.config, context.model
        options = context.options if isinstance(context.options, TextOptions) else TextOptions()
        self._vocab_size = model.vocab_size
        self._max_model_len = min(config.max_model_len or model.max_model_len, model.max_model_len)
        self._max_chars = options.max_prompt_chars or max(
            MIN_CHARS, CHARS_PER_TOKEN * self._max_model_len
        )
        self._report = partial(context.submit, "record_extra") if context.submit else None
        self._grammars = GrammarCheck(config, model, options.grammar_seconds, self._report)
        self._codec: Codec | None = None
        self._long_texts: LongTexts | None = None
        self._transformers_tokenizer: Any = None
        self._folder: Path | None = None
        self._images: PromptImages | None = None
        if not config.skip_tokenizer_init:
            self._open_tokenizer(options.text_seconds)
        template = config.section(TextSettings).chat_template
        self._chat: ChatRenderer | None = self._operator_chat(template) if template else None
        if config.max_images:
            self._open_images(options)

    def _open_images(self, options: TextOptions) -> None:
        from tenonry_images.base import ImageLimits
        from tenonry_io_text.images import PromptImages

        self._need_codec("max_images")
        config = self.context.config
        others = config.max_num_seqs - 1  # requests that may decode in the same step
        self._images = PromptImages(
            self.context.model.path,
            processor=options.image_processor,
            limits=ImageLimits(
                options.max_image_bytes, options.max_image_pixels, options.image_seconds
            ),
            hosts=options.image_hosts,
            most=config.max_images,
            max_piece=config.step_token_budget - others,
            report=self._report,
        )

    def _open_tokenizer(self, seconds: float) -> None:
        from tenonry_io_text.fit import check_fit
        from tenonry_io_text.loading import load_codec
        from tenonry_io_text.long_texts import LongTexts

        self._folder = _tokenizer_folder(self.context)
        self._codec = load_codec(self._folder)
        check_fit(self._codec, self._folder, self._vocab_size)
        self._long_texts = LongTexts(self._codec, self._folder, seconds, self._report)

    # ------------------------------------------------------------------------------------------------- prompts

    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> ProcessedPrompt:
        """Tokenise a text, or check token ids.

        Options: `truncate_prompt_tokens` keeps the last n tokens (-1: as many as fit), and of a pooled
        prompt the first n, including tokens that the tokenizer appends, such as [SEP]; `truncation=True` with
        `max_length` means the same, and without it -1; `add_special_tokens` overrides the argument: `render_chat` uses
        it to mark its text as complete; `text_pair` is the second text of a pair to be scored: see `pairs.joined`.
        """
        is_pooled = params.pooling is not None
        parsed = parse_prompt(prompt, max_model_len=self._max_model_len, is_pooled=is_pooled)
        if parsed.text_pair is not None:
            return self._pair(parsed.text or "", parsed.text_pair, parsed.truncate)
        if params.structured_output is not None:
            self._grammars.check(params, self._need_codec("structured_output"))
        token_ids = self._token_ids(self._with_images(parsed), add_special_tokens)
        media = None
        if parsed.images and self._images is not None:
            is_cut = parsed.truncate is not None
            token_ids, media = self._images.put(token_ids, parsed.images, is_cut=is_cut)
        if parsed.truncate is not None and len(token_ids) > parsed.truncate:
            if is_pooled:
                token_ids = beginning(token_ids, self._plain_ids(parsed), parsed.truncate)
            else:
                token_ids = token_ids[-parsed.truncate :]
        return ProcessedPrompt(
            token_ids=token_ids, text=parsed.text, bad_words=self._bad_words(params), media=media
        )

    def relaxed_output(self, spec: StructuredOutput) -> tuple[StructuredOutput, tuple[str, ...]]:
        """See `GrammarCheck.relaxed`."""
        return self._grammars.relaxed(spec, self._need_codec("structured_output"))

    def _with_images(self, parsed: ParsedPrompt) -> ParsedPrompt:
        """Add the text around its images to the prompt's text."""
        if not parsed.images or self._images is None or parsed.text is None:
            return parsed
        codec = self._need_codec("prompt")
        return parsed._replace(text=self._images.surrounded(codec, parsed.text, parsed.images))

    def _token_ids(self, parsed: ParsedPrompt, add_special_tokens: bool) -> I32:
        if parsed.token_ids is not None:
            return checked_ids(parsed.token_ids, self._vocab_size)
        text = parsed.text or ""
        if parsed.add_special_tokens is not None:
            add_special_tokens = parsed.add_special_tokens
        ids = self._encoded(text, add_special_tokens)
        try:
            return checked_ids(ids, self._vocab_size)
        except RequestError:
            self._refuse_tokens_without_row(ids)
            raise

    def _pair(self, first: str, second: str, keep: int | None) -> ProcessedPrompt:
        from tenonry_io_text.codec import check_unicode

        self._need_codec("text_1")
        for name, text in (("text_1", first), ("text_2", second)):
            self._check_chars(text, name)
            check_unicode(text)
        token_ids, start = joined(self.get_tokenizer(), (first, second), keep)
        features = {"pair_start": np.array(start)}
        return ProcessedPrompt(
            token_ids=checked_ids(token_ids, self._vocab_size), features=features
        )

    def _plain_ids(self, parsed: ParsedPrompt) -> I32:
        """The tokens of the text alone; token ids are taken as they are."""
        if parsed.token_ids is not None:
            return checked_ids(parsed.token_ids, self._vocab_size)
        plain = parsed._replace(add_special_tokens=False)
        return self._token_ids(plain, add_special_tokens=False)

    def _refuse_tokens_without_row(self, token_ids: list[int] | NDArray[np.int64]) -> None:
        """Raise RequestError for a token of the text that the tokenizer has and the model lacks."""
        beyond = next((int(each) for each in token_ids if each >= self._vocab_size), None)
        if beyond is not None:
            token = self._need_codec("prompt").token_text(beyond)
            raise RequestError(
                f"the text holds the token {token!r}, which is id {beyond}: the tokenizer has it, and the model's "
                f"embedding has {self._vocab_size} rows, ids 0 to {self._vocab_size - 1}; leave it out",
                "prompt",
            )

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        if not params.bad_words:
            return ()
        from tenonry_io_text.bad_words import bad_word_ids

        return bad_word_ids(params.bad_words, self._need_codec("bad_words"), self._vocab_size)

    # ---------------------------------------------------------------------------------------------------- text

    def make_detokenizer(
        self, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> Detokenizer | None:
        if self._codec is None or not params.detokenize:
            return None
        from tenonry_io_text.codec import make_detokenizer

        return make_detokenizer(
            self._codec.stream(prompt_token_ids, skip_special_tokens=params.skip_special_tokens),
            params.stop_strings,
            include=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = self._encoded(text, add_special_tokens)
        return ids if isinstance(ids, list) else ids.tolist()

    def _encoded(self, text: str, add_special_tokens: bool) -> list[int] | NDArray[np.int64]:
        self._check_chars(text, "prompt")
        tokenizer = self._long_texts or self._need_codec("prompt")
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _check_chars(self, text: str, param: str) -> None:
        if len(text) > self._max_chars:
            raise RequestError(
                f"the text has {len(text)} characters; more than {self._max_chars} cannot fit into "
                f"max_model_len={self._max_model_len} tokens",
                param,
            )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._need_codec("tokens").decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as it reads inside a text, for logprobs: leading space kept, U+FFFD for a part of a character."""
        codec = self._need_codec("tokens")
        return [codec.token_text(token_id) for token_id in token_ids]

    def token_bytes(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False
    ) -> list[bytes]:
        codec = self._need_codec("tokens")
        return [
            codec.token_bytes(token_id, skip_special_tokens=skip_special_tokens)
            for token_id in token_ids
        ]

    def _need_codec(self, param: str) -> Codec:
        if self._codec is None:
            raise RequestError(
                "this engine was started with skip_tokenizer_init: it reads and writes token ids only; send "
                "prompt_token_ids",
                param,
            )
        return self._codec

    # --------------------------------------------------------------------------------------------------- chats

    def render_chat(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """A chat as a prompt for `process_prompt`: {"prompt": text, "add_special_tokens": False}, and "images" if it
        holds some, which are read and decoded here: call it in a thread that may block for seconds.

        Keyword arguments: `tools` and `documents` (lists of objects), `add_generation_prompt` (default: unless the last
        message is to be continued), `continue_final_message`, `chat_template_kwargs` (values for names that the
        template reads, such as enable_thinking). A template never comes from a request. Raises RequestError.
        """
        unknown = sorted(set(kwargs) - _CHAT_ARGUMENTS)
        if unknown:
            raise RequestError(
                f"unknown chat settings: {', '.join(unknown)}; known are {', '.join(sorted(_CHAT_ARGUMENTS))}",
                unknown[0],
            )
        images = None
        if self._images is not None:
            images = self._images.of_chat(self._need_codec("messages"))
        text = self._chats().render(messages, images=images, **kwargs)
        prompt: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        if self._images is not None and images is not None and images.found:
            prompt["images"] = self._images.read(images)
        return prompt

    def chat_template(self) -> str | None:
        if self._chat is None and self._codec is None:
            return None
        return self._chats().source

    def _chats(self) -> ChatRenderer:
        if self._chat is None:
            self._need_codec("messages")
            self._chat = self._model_chat()
        return self._chat

    def _model_chat(self) -> ChatRenderer:
        from tenonry_io_text.chat import find_templates

        folders = [
            Path(folder)
            for folder in dict.fromkeys([str(self._folder), self.context.model.path])
            if folder
        ]
        return self._renderer(find_templates(folders))

    def _operator_chat(self, setting: str) -> ChatRenderer:
        """The operator's template; a broken one stops the start, not the first request."""
        from tenonry_io_text.chat import DEFAULT, compile_template, operator_template

        source = operator_template(setting)
        try:
            compile_template(source)
        except RequestError as error:
            raise ConfigError(f"chat_template: {error}") from None
        return self._renderer({DEFAULT: source})

    def _renderer(self, sources: dict[str, str]) -> ChatRenderer:
        from tenonry_io_text.chat import ChatRenderer
        from tenonry_io_text.loading import special_tokens, tokenizer_settings

        special = special_tokens(tokenizer_settings(self._folder)) if self._folder else {}
        return ChatRenderer(
            sources, special, max_chars=self._max_chars, max_messages=max(1024, self._max_model_len)
        )

    # --------------------------------------------------------------------------------------------------- others

    def get_tokenizer(self) -> Any:
        """The model's tokenizer as a transformers object; loaded on the first call."""
        if self._folder is None:
            raise ValueError(
                "this engine was started with skip_tokenizer_init: there is no tokenizer"
            )
        with OPENING:
            if self._transformers_tokenizer is None:
                from tenonry_io_text.loading import load_with_transformers

                self._transformers_tokenizer = load_with_transformers(self._folder)
        return self._transformers_tokenizer

    def reset_mm_cache(self) -> None:
        if self._images is not None:
            self._images.reset()

    def shutdown(self) -> None:
        self._grammars.shutdown()
        if self._long_texts is not None:
            self._long_texts.shutdown()
            self._long_texts = None
        if self._images is not None:
            self._images.shutdown()
        self._codec = None
        self._chat = None
        self._transformers_tokenizer = None


_CHAT_ARGUMENTS = frozenset(
    {
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
    }
)


def _tokenizer_folder(context: IOProcessorContext) -> Path:
    """Folder of the tokenizer: resolved with the model, or here when another plugin resolved the model."""
    config, model = context.config, context.model
    if model.tokenizer_path:
        return Path(model.tokenizer_path)
    if config.tokenizer:
        from tenonry_hf_hub import Located, locate_tokenizer

        return locate_tokenizer(config, Located(Path(model.path))).path
    return Path(model.path)
