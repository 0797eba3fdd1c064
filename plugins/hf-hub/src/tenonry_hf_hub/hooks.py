"""The hook module `hf-hub`: answers the kernel's question about the model. Front end, once, before anything is started.

Light: msgspec and the standard library, until a hub id has to be looked up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenonry.config import EngineConfig
from tenonry.errors import ModelError
from tenonry.info import ModelInfo
from tenonry.plugin.hookspecs import hookimpl
from tenonry_hf_hub import facts
from tenonry_hf_hub.experts import check_rendezvous, is_spread
from tenonry_hf_hub.files import read_json, read_json_if_there
from tenonry_hf_hub.locate import locate_model, locate_tokenizer
from tenonry_hf_hub.located import Located
from tenonry_hf_hub.sampling_defaults import default_sampling
from tenonry_hf_hub.sizes import check_sizes
from tenonry_hf_hub.weights import find_weights


# Called last: another plugin may resolve names of its own; this one answers for every name, if only with an error.
@hookimpl(trylast=True)
def tenonry_resolve_model(config: EngineConfig) -> ModelInfo:
    """Facts of a registered name, a folder or a hub id. Raises ModelError with the accepted forms."""
    check_rendezvous(config)
    located = locate_model(config)
    folder = located.path
    if not (folder / "config.json").exists():
        raise ModelError(
            f"model '{config.model}': {folder} has no config.json; it holds a tokenizer, but no model"
        )
    if config.load_format != "dummy":
        find_weights(folder)  # the worker decides which of them the model needs
    return read_facts(config, located, _tokenizer_folder(config, located))


def read_facts(config: EngineConfig, located: Located, tokenizer: Path | None) -> ModelInfo:
    """Read the facts in the JSON files of a folder. Raises ModelError for missing or malformed files."""
    folder = located.path
    model = read_json(folder / "config.json")
    check_sizes(model, folder / "config.json")
    generation = {**located.generation, **read_json_if_there(folder / "generation_config.json")}
    tokenizer_config = read_json_if_there((tokenizer or folder) / "tokenizer_config.json")
    vocab = facts.vocab_size(model, folder)
    ends = facts.eos_token_ids(model, generation, tokenizer_config, vocab)
    if not ends and tokenizer is not None:  # clients that send token ids define the stop ids
        facts.check_end_tokens(model, generation, vocab, folder)
    return ModelInfo(
        name=config.model,
        path=str(folder),
        commit=located.commit,
        tokenizer_path=str(tokenizer or ""),
        architecture=facts.architecture(model, folder / "config.json"),
        max_model_len=_max_model_len(folder, model, tokenizer_config),
        vocab_size=vocab,
        eos_token_ids=ends,
        default_sampling=default_sampling(
            generation,
            vocab_size=vocab,
            end_ids=ends,
            own_rules=model.get("is_encoder_decoder") is True,
        ),
        dtype=facts.dtype(model),
        needs_lockstep=is_spread(config),
    )


def _max_model_len(folder: Path, model: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    longest = facts.max_model_len(model, tokenizer)
    if not (folder / "modules.json").exists():
        return longest
    transformer = read_json_if_there(folder / "sentence_bert_config.json")
    return facts.length_of_texts(longest, transformer, tokenizer)


def _tokenizer_folder(config: EngineConfig, model: Located) -> Path | None:
    return None if config.skip_tokenizer_init else locate_tokenizer(config, model).path
