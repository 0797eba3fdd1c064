"""The model calls of transformers' `generate`, one at a time. Worker process.

The state before a request's first step (inputs, cache object, encoder states, the rules of the model's generation
config) is prepared by `generate` itself, which passes it on instead of continuing. So a family with its own cache, or
without one, needs no code here.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.rope_lengths import depends_on_length, reset_tables
from tenonry_worker_transformers.module_states import KEY, ModuleStates

if TYPE_CHECKING:
    from transformers import LogitsProcessorList, PreTrainedModel

    from tenonry_worker_transformers.pieces import Piece

# Fields of a generation config that choose how tokens are drawn, or what else to return: the engine decides those.
NEUTRAL: dict[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": None,
    "guidance_scale": None,
    "prompt_lookup_num_tokens": None,
    "penalty_alpha": None,
    "dola_layers": None,
    "constraints": None,
    "force_words_ids": None,
    "assistant_early_exit": None,
    "is_assistant": False,
    "watermarking_config": None,
    "remove_invalid_values": None,
    "renormalize_logits": None,
    "stop_strings": None,
    "token_healing": None,
    "max_time": None,
    "max_length": None,
    "max_new_tokens": None,
    "cache_implementation": None,
    "cache_config": None,
    "prefill_chunk_size": None,
    "return_dict_in_generate": None,
    "output_attentions": None,
    "output_hidden_states": None,
    "output_scores": None,
    "output_logits": None,
}
# Fields that change logits. A causal model is served without them, whichever worker runs it: what a request wants of
# these it says in its sampling parameters. An encoder-decoder model is not usable without them.
RULES = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "sequence_bias",
    "suppress_tokens",
)
ENGINES_OWN = ("stopping_criteria", "generation_config")
ALL_LOGITS = {"logits_to_keep": 0}


class Prepared:
    """State of a request before its first step, as prepared by `generate`.

    `input_ids` i64[1, L] are the prompt, or, for an encoder-decoder model, the first ids of its decoder. `kwargs`
    accompany them from call to call; `processors` are the rules of the model's generation config.
    """

    __slots__ = ("input_ids", "kwargs", "processors")

    def __init__(
        self, input_ids: torch.Tensor, kwargs: dict[str, Any], processors: LogitsProcessorList
    ) -> None:
        self.input_ids = input_ids
        self.kwargs = kwargs
        self.processors = processors


class GenerateCalls:
    """A model and the calls of `generate` on it."""

    def __init__(self, module: PreTrainedModel) -> None:
        self.module = module
        self.states = ModuleStates(module)
        # Whether a call depends on the longest sequence in it, and on those of the calls before.
        self.follows_length = depends_on_length(module)
        self.is_encoder_decoder = bool(module.config.is_encoder_decoder)
        self.mask_name = "decoder_attention_mask" if self.is_encoder_decoder else "attention_mask"
        accepted = inspect.signature(module.forward).parameters
        self._takes_mask = "attention_mask" in accepted
        self._takes_decoder_mask = self.mask_name in accepted
        self._keeps_logits = "logits_to_keep" in accepted
        fields = NEUTRAL | ({} if self.is_encoder_decoder else dict.fromkeys(RULES))
        for name, value in fields.items():
            if hasattr(module.generation_config, name):
                setattr(module.generation_config, name, value)

    @property
    def takes_padding(self) -> bool:
        """True if the model accepts a mask for padding of the generated part."""
        return self._takes_decoder_mask

    def prepare(self, prompt: torch.Tensor, max_new_tokens: int) -> Prepared:
        """`prompt` i64[1, P]. Every token of it counts, the padding token as well."""
        found: list[Prepared] = []

        def keep(
            _model: PreTrainedModel,
            input_ids: torch.Tensor,
            *,
            logits_processor: LogitsProcessorList,
            **kwargs: Any,
        ) -> torch.Tensor:
            for name in ENGINES_OWN:
                kwargs.pop(name, None)
            found.append(Prepared(input_ids, kwargs, logits_processor))
            return input_ids

        self.generate(prompt, max_new_tokens=max_new_tokens, custom_generate=keep)
        return found[0]

    def generate(self, prompt: torch.Tensor, **options: Any) -> Any:
        """The model's `generate`; it warns of lengths that the engine has checked."""
        self.states.put(None)
        self._begin()
        mask = {"attention_mask": torch.ones_like(prompt)} if self._takes_mask else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.module.generate(prompt, **mask, **options)

    def start(
        self, prepared: Prepared, count: int, *, all_logits: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Run the first `count` of the prepared tokens: their ids, their logits [1, K, V], and the state to keep."""
        length = prepared.input_ids.shape[1]
        ids = prepared.input_ids[:, :count]
        kwargs = prepared.kwargs
        if count < length:
            kwargs = {name: _first(value, length, count) for name, value in kwargs.items()}
        self.states.put(None)
        self._begin()
        inputs = self.module.prepare_inputs_for_generation(
            ids,
            next_sequence_length=None,
            is_first_iteration=True,
            **self._wanting(kwargs, all_logits=all_logits),
        )
        outputs = self.module(**inputs, return_dict=True)
        return (ids, outputs.logits, self._after(outputs, kwargs, 1))

    def feed(
        self, piece: Piece, token_ids: torch.Tensor, *, all_logits: bool = False
    ) -> torch.Tensor:
        """Run `token_ids` i64[B, N] after the piece's tokens; logits [B, K, V], the last position's at the end."""
        count = token_ids.shape[1]
        self.states.put(piece.kwargs.get(KEY))
        self._begin()
        if count > 1:
            piece.kwargs = self._after({}, piece.kwargs, count - 1)
        piece.input_ids = torch.cat([piece.input_ids, token_ids], 1)
        inputs = self.module.prepare_inputs_for_generation(
            piece.input_ids,
            next_sequence_length=count if piece.kwargs.get("use_cache") else None,
            **self._wanting(piece.kwargs, all_logits=all_logits),
        )
        outputs = self.module(**inputs, return_dict=True)
        piece.kwargs = self._after(outputs, piece.kwargs, 1)
        return outputs.logits

    def _begin(self) -> None:
        if self.follows_length:
            reset_tables(self.module)

    def _wanting(self, kwargs: dict[str, Any], *, all_logits: bool) -> dict[str, Any]:
        """As `kwargs`, with logits of every position where the model can leave some out."""
        if self.states.places:
            kwargs = {name: value for name, value in kwargs.items() if name != KEY}
        return kwargs | ALL_LOGITS if all_logits and self._keeps_logits else kwargs

    def _after(self, outputs: Any, kwargs: dict[str, Any], count: int) -> dict[str, Any]:
        """Arguments of the next call, when `count` more tokens will have been chosen."""
        made: dict[str, Any] = self.module._update_model_kwargs_for_generation(  # noqa: SLF001 - as `generate` does after each step
            outputs, dict(kwargs), is_encoder_decoder=self.is_encoder_decoder, num_new_tokens=count
        )
        if self.states.places:
            made[KEY] = self.states.taken()
        return made


def _first(value: Any, length: int, count: int) -> Any:
    """Positions, masks and token types of the first `count` of `length` tokens; all else as it is."""
    is_by_token = (
        isinstance(value, torch.Tensor)
        and not value.is_floating_point()
        and value.dim() > 1
        and value.shape[-1] == length
    )
    return value[..., :count] if is_by_token else value
