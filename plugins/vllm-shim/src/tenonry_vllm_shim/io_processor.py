"""The IO processor `vllm`: text, and prompts `{"data": …}` that a class written for vLLM reads and answers."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel, Field

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, RequestError
from tenonry.interfaces.io_processor import (
    IOProcessorContext,
    OtherPrompt,
    ProcessedPrompt,
    Prompt,
    read_prompt,
)
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import SamplingParams
from tenonry_io_text.processor import TextIOProcessor, TextOptions
from tenonry_vllm_shim.config import VllmConfig
from tenonry_vllm_shim.load import IO_PROCESSORS, load_class
from tenonry_vllm_shim.modules import stand_ins
from tenonry_vllm_shim.shapes import PoolingOutput, PoolingRequestOutput

METHODS = ("pre_process", "post_process")


class VllmIOProcessorOptions(TextOptions):
    """Options of the IO processor `vllm`: those of `text`, and the class."""

    plugin: str = Field(
        description=f"IO processor written for vLLM: module:Class, or an entry point of {IO_PROCESSORS.group}."
    )


class VllmIOProcessor(TextIOProcessor):
    """Text, with the class in front of prompts that have `data`, and behind every vector of a pooling model.

    Its result is what `encode` returns as `data`. The synchronous methods are called: `parse_data` (or `parse_request`,
    its earlier name), `pre_process` and `post_process`.
    """

    Options = VllmIOProcessorOptions

    def __init__(self, context: IOProcessorContext) -> None:
        super().__init__(context)
        found = load_class(_class_name(context.options), IO_PROCESSORS)
        with stand_ins():
            self._plugin = _build(found, VllmConfig(context.config))

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        """Refuse a class that is missing or has not the two methods."""
        super().check(config, options)
        name = _class_name(options)
        found = load_class(name, IO_PROCESSORS)
        for method in METHODS:
            if not callable(getattr(found, method, None)):
                raise ConfigError(
                    f"plugin={name!r} has no method {method}; name a subclass of vLLM's IOProcessor"
                )

    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> ProcessedPrompt:
        if isinstance(prompt, OtherPrompt) and set(prompt.options) == {"data"}:
            prompt = self._read_data(prompt.options["data"])
        return super().process_prompt(prompt, params, add_special_tokens=add_special_tokens)

    def post_process(self, output: RequestOutput) -> RequestOutput:
        output = super().post_process(output)
        if output.pooled is None or not output.finished:
            return output
        answer = PoolingRequestOutput(
            request_id=output.request_id,
            outputs=PoolingOutput(output.pooled),
            prompt_token_ids=output.prompt_token_ids,
            num_cached_tokens=output.num_cached_tokens,
        )
        output.pooled = self._plugin.post_process([answer], request_id=output.request_id)
        return output

    def _read_data(self, data: Any) -> Prompt:
        """Return the one prompt that the class makes of the data. A ValueError or TypeError is the caller's fault."""
        parse = getattr(self._plugin, "parse_request", None) or self._plugin.parse_data
        try:
            found = self._plugin.pre_process(prompt=parse(data), request_id=None)
        except (TypeError, ValueError) as error:
            raise RequestError(f"data: {error}", "data") from error
        if isinstance(found, list | tuple) and not all(isinstance(each, int) for each in found):
            if len(found) != 1:
                raise RequestError(
                    f"data: the IO processor made {len(found)} prompts; one request has one prompt: "
                    "send the data in parts",
                    "data",
                )
            [found] = found
        return read_prompt(found)


def _class_name(options: BaseModel) -> str:
    if not isinstance(options, VllmIOProcessorOptions):
        raise ConfigError("the IO processor 'vllm' needs the option plugin=module:Class")
    return options.plugin


def _build(cls: type[Any], config: VllmConfig) -> Any:
    """Return an instance. Newer classes have a second argument, vLLM's renderer, which does not exist here."""
    parameters = inspect.signature(cls).parameters
    return cls(config, None) if "renderer" in parameters else cls(config)
