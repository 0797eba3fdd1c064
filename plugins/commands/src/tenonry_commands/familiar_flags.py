"""Flags of vLLM's command line that are spelt otherwise here, or have no counterpart: data, and their treatment by the
parser and the file of `--config`. Front end; for every verb that runs a model.

For a command line copied from vLLM the error names the replacement: the nearest spelling may mean the opposite.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from tenonry.errors import ConfigError
from tenonry_commands.familiar_values import DONE_ANYWAY, KEYS, TRANSLATED, with_key

MEANS: dict[str, tuple[str, bool]] = {  # a flag without a value: the field that it sets
    "enable_log_requests": ("log_requests", True),
    "no_enable_log_requests": ("log_requests", False),
    "disable_log_requests": ("log_requests", False),
    "disable_log_stats": ("log_stats", False),
    "disable_uvicorn_access_log": ("disable_access_log", True),
}
SHORT = {"-O": "compilation_config", "-cc": "compilation_config"}
_REMEDIES: dict[str, tuple[str, ...]] = {
    "code that comes with a model is never run; leave it out": (
        "trust_remote_code",
        "code_revision",
    ),
    "preempted requests are recomputed, not swapped out; leave it out": (
        "swap_space",
        "preemption_mode",
    ),
    "weights stay on the device that computes with them; leave it out": ("cpu_offload_gb",),
    "--kv-cache-dtype measures a scale per token; leave it out": ("calculate_kv_scales",),
    "--max-loras and a number serves adapters; leave it out": ("enable_lora",),
    "give --worker-option max_cpu_loras=N": ("max_cpu_loras",),
    "give --output-parser module:Class": ("tool_parser_plugin", "reasoning_parser_plugin"),
    "the model's chat template says whether it does; leave it out": ("enable_reasoning",),
    "--drafter ngram drafts tokens, and so does --drafter model --drafter-option model=NAME": (
        "speculative_config",
        "speculative_model",
        "num_speculative_tokens",
        "num_lookahead_slots",
    ),
    "prompts are text, token ids and images": ("enable_prompt_embeds",),
    "the model's files say how images are processed; change preprocessor_config.json in a copy of its folder": (
        "mm_processor_kwargs",
    ),
    "images come as data: URLs, or by https from --io-processor-option image_hosts=HOST": (
        "allowed_local_media_path",
        "allowed_media_domains",
    ),
    "--mm-cache-mib 0 keeps no images": ("disable_mm_preprocessor_cache",),
    "the worker decides; --enforce-eager runs the model as it was loaded": (
        "compilation_config",
        "cuda_graph_sizes",
        "max_seq_len_to_capture",
    ),
    "blocks are hashed with SHA-256; leave it out": ("prefix_caching_hash_algo",),
    "there is nothing to switch off; leave it out": (
        "disable_custom_all_reduce",
        "disable_cascade_attn",
        "disable_hybrid_kv_cache_manager",
    ),
    "give --kv-connector NAME and --kv-connector-option KEY=VALUE": ("kv_transfer_config",),
    "give --io-processor NAME": ("io_processor_plugin",),
    "give --worker module:Class": ("worker_cls",),
    "give --worker-option logits_processors=[NAME]": ("logits_processors",),
    "give --scheduler-option long_prefill_token_threshold=N": ("long_prefill_token_threshold",),
    "give each plugin its own, such as --scheduler-option KEY=VALUE": ("additional_config",),
    "give --route NAME for routes of your own": ("middleware",),
    "give --launcher ray": ("data_parallel_backend",),
    "--data-parallel-rank alone says so": ("data_parallel_external_lb",),
    "--headless and --data-parallel-address let engines of other nodes join, --executor ray their ranks": (
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
    ),
    "--async-scheduling takes its place and is on; leave it out": (
        "num_scheduler_steps",
        "multi_step_stream_outputs",
    ),
    "it is always so; leave it out": (
        "use_v2_block_manager",
        "enable_request_id_headers",
        "disable_fastapi_docs",
        "enable_prompt_tokens_details",
    ),
    "an engine has a process of its own; leave it out": ("disable_frontend_multiprocessing",),
    "change generation_config.json in a copy of the model's folder; a request's own values win": (
        "generation_config",
        "override_generation_config",
    ),
    "change config.json in a copy of the model's folder": (
        "hf_overrides",
        "rope_scaling",
        "rope_theta",
    ),
    "models are read in Hugging Face's layout, or from GGUF files; leave it out": (
        "config_format",
        "model_loader_extra_config",
    ),
    "--worker torch and --worker transformers choose whose code runs a model; auto takes the first that serves it": (
        "model_impl",
    ),
    "it is found out from the model; leave it out": (
        "tokenizer_mode",
        "chat_template_content_format",
    ),
    "give a folder with that revision as --tokenizer": ("tokenizer_revision",),
    "set the variable HF_TOKEN": ("hf_token",),
    "set the variable HF_HOME": ("download_dir",),
    "set the variable TENONRY_LOG_LEVEL": ("uvicorn_log_level",),
    "prompts are not logged; leave it out": ("max_log_len",),
    "a request may ask for 64; leave it out": ("max_logprobs",),
    "a request asks for it with return_tokens_as_token_ids": ("return_tokens_as_token_ids",),
    "a request asks for it with stream_options": ("enable_force_include_usage",),
    "answers are the assistant's": ("response_role",),
    "only the operator's template counts: --chat-template": ("trust_request_chat_template",),
    "pages of --allowed-origins may send GET and POST with any header": (
        "allow_credentials",
        "allowed_methods",
        "allowed_headers",
    ),
    "--ssl-ca-certs requires certificates of clients": ("ssl_cert_reqs",),
    "engines can always sleep, and --enable-operator-routes has the routes; leave it out": (
        "enable_sleep_mode",
    ),
    "log-probabilities are those of the model's own logits; leave it out": ("logprobs_mode",),
    "/metrics has the running and waiting requests; leave it out": (
        "enable_server_load_tracking",
        "enable_mfu_metrics",
        "kv_cache_metrics",
        "cudagraph_metrics",
        "show_hidden_metrics_for_version",
    ),
    "--otlp-traces-endpoint traces each request with its times; leave it out": (
        "collect_detailed_traces",
        "enable_layerwise_nvtx_tracing",
        "ray_workers_use_nsight",
    ),
    "/tokenize and /detokenize are always served; leave it out": (
        "enable_tokenizer_info_endpoint",
    ),
    "any number of prompts share a step as far as its tokens reach; leave it out": (
        "max_num_partial_prefills",
        "max_long_partial_prefills",
        "scheduler_delay_factor",
        "scheduler_reserve_full_isl",
    ),
    "the model's files say how images are read, and the worker how they are encoded; leave it out": (
        "disable_chunked_mm_input",
        "interleave_mm_strings",
        "media_io_kwargs",
        "mm_encoder_attn_backend",
        "mm_encoder_tp_mode",
        "mm_shm_cache_max_object_size_mb",
        "skip_mm_profiling",
        "video_pruning_rate",
    ),
    "--max-images 0 loads no encoder, and nothing loads an encoder alone": (
        "language_model_only",
        "mm_encoder_only",
    ),
    "--mm-cache-mib sizes the only cache of images; leave it out": ("mm_processor_cache_type",),
    "a request sends chat_template_kwargs": ("default_chat_template_kwargs",),
    "tools are hidden from the template where tool_choice is none; leave it out": (
        "exclude_tools_when_tool_choice_none",
    ),
    "--log-requests logs each request, and TENONRY_LOG_LEVEL sets the level": (
        "log_config_file",
        "log_error_stack",
        "enable_log_outputs",
        "enable_log_deltas",
    ),
    "--disable-access-log leaves all of them out": ("disable_access_log_for_endpoints",),
    "give --max-header-bytes": ("h11_max_incomplete_event_size", "h11_max_header_count"),
    "give --worker pooling and --worker-option pooling=mean, cls or lasttoken": (
        "pooler_config",
        "override_pooler_config",
    ),
    "blocks send no events; leave it out": ("kv_events_config",),
    "give --kv-connector host or disk": ("kv_offloading_size", "kv_offloading_backend"),
    "only the files that a model needs are downloaded and read; leave it out": (
        "ignore_patterns",
        "pt_load_map_location",
        "safetensors_load_strategy",
        "max_parallel_loading_workers",
    ),
    "progress is shown on terminals alone; leave it out": ("use_tqdm_on_load",),
    "adapters have the model's data type and vocabulary, and are cut like its layers; leave it out": (
        "default_mm_loras",
        "enable_lora_bias",
        "fully_sharded_loras",
        "lora_dtype",
        "lora_extra_vocab_size",
        "long_lora_scaling_factors",
    ),
    "--load-balancer NAME chooses among the engines of a server": ("data_parallel_hybrid_lb",),
    "experts and contexts are cut by --enable-expert-parallel and --tensor-parallel-size alone; leave it out": (
        "all2all_backend",
        "decode_context_parallel_size",
        "enable_dbo",
        "enable_eplb",
        "eplb_config",
        "expert_placement_strategy",
        "num_redundant_experts",
        "prefill_context_parallel_size",
    ),
    "state has the model's data type, and --state-cache-memory-bytes bounds its snapshots; leave it out": (
        "mamba_block_size",
        "mamba_cache_dtype",
        "mamba_cache_mode",
        "mamba_ssm_cache_dtype",
    ),
    "the model's files say which layers have a window; leave it out": ("disable_sliding_window",),
    "functions are the only tools": ("tool_server",),
    "certificates are read at the start; leave it out": ("enable_ssl_refresh",),
}
TRANSLATIONS = (
    "_translations"  # in the namespace: field → the flag that was translated, and its value
)
INSTEAD = {name: remedy for remedy, names in _REMEDIES.items() for name in names}


class _Refuse(argparse.Action):
    """Stops the parsing with the alternative, unless the value requests the default behaviour."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if not (len(values) == 1 and values[0] in DONE_ANYWAY.get(self.dest, ())):
            parser.error(f"{option_string}: {self.const}")


class _Translate(argparse.Action):
    """Sets the equivalent setting. `const`: the flag's name, and its key for one such as --name.key."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        name, key = self.const
        try:
            settings = with_key(name, key, values) if key else TRANSLATED[name](values)
        except ValueError as error:
            parser.error(f"{option_string}: {error}")
        meant = getattr(namespace, TRANSLATIONS) or {}
        for field, value in settings.items():
            if not hasattr(namespace, field):
                parser.error(f"{option_string} means {_flag(field)}, which this command lacks")
            if getattr(namespace, field) not in (None, value):
                parser.error(_twice(str(option_string), field, value))
            setattr(namespace, field, value)
            meant[field] = (option_string, value)
        setattr(namespace, TRANSLATIONS, meant)


def check_translations(given: Mapping[str, Any]) -> None:
    """Raise ConfigError if a later flag overrides a translated one."""
    for field, (flag, value) in (given.get(TRANSLATIONS) or {}).items():
        if given[field] != value:
            raise ConfigError(_twice(flag, field, value))


def _twice(flag: str, field: str, value: Any) -> str:
    return f"{flag} means {_flag(field)} {value}, which is given otherwise; leave one out"


def add_familiar_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags that the parser accepts but does not show in its help. Server flags have no effect elsewhere."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": None}
    for name, (field, value) in MEANS.items():
        parser.add_argument(_flag(name), dest=field, action="store_const", const=value, **hidden)
    for name in TRANSLATED:
        for key in ("", *KEYS.get(name, ())):
            flag = f"{_flag(name)}.{key}" if key else _flag(name)
            parser.add_argument(
                flag, action=_Translate, const=(name, key), dest=TRANSLATIONS, **hidden
            )
    for name, remedy in INSTEAD.items():
        short: Sequence[str] = [flag for flag, meant in SHORT.items() if meant == name]
        parser.add_argument(_flag(name), *short, action=_Refuse, nargs="*", const=remedy, **hidden)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def translate(from_file: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file by the names that they have here. Raises ConfigError."""
    translated: dict[str, Any] = {}
    for name, value in from_file.items():
        if name in INSTEAD and value not in DONE_ANYWAY.get(name, ()):
            raise ConfigError(f"{name}: {INSTEAD[name]}")
        for field, meant in _meaning(name, value).items():
            if translated.get(field) not in (None, meant):
                raise ConfigError(
                    f"{name} means {field}: {meant}, which is given otherwise; leave one out"
                )
            translated[field] = meant
    return translated


def _meaning(name: str, value: Any) -> dict[str, Any]:
    """Equivalent settings for one setting of a file, by names of this engine. Raises ConfigError."""
    if name in INSTEAD:
        return {}
    if name in TRANSLATED:
        try:
            return TRANSLATED[name](value)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
    field, meant = MEANS.get(name, (name, True))
    return {field: (bool(value) is meant) if name in MEANS else value}
