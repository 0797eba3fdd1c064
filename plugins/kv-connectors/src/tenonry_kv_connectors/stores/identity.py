"""Dependencies of K and V besides the tokens: for names of blocks that outlive the engine. Engine process.

Equal identities mean equal K/V for equal tokens, up to the rounding by which two runs of one engine may differ.
Anything not known to be equal counts as different, so an error costs a recomputed block, never a wrong token.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from tenonry.interfaces.kv_connector import KVConnectorContext
from tenonry.version import __version__

FORMAT = (
    1  # another number whenever the bytes of a block, or what is named here, mean something else
)
DIGEST_BYTES = 16
WHOLE_BYTES = 1 << 20  # files up to here count with every byte
NUM_SAMPLES = (
    64  # of larger ones: so many places, spread evenly, the first and the last bytes among them
)
SAMPLE_BYTES = 4096
# Settings of workers on which the numbers in blocks depend; those that were not given are the default.
NUMERIC = ("attention_backend", "enforce_eager", "quantization", "kv_cache_dtype")


def model_identity(context: KVConnectorContext) -> bytes:
    """A digest of weights, their data type, the engine's division into ranks, the KV cache's layout and this version.

    Weights count by content, size and time of change of the files in the model's folder; large ones by samples.
    """
    config = context.config
    model = context.model
    facts = {
        "format": FORMAT,
        "version": __version__,
        "model": (model.name, model.commit, model.architecture, model.dtype),
        "ranks": (config.tensor_parallel_size, config.pipeline_parallel_size),
        "worker": config.worker.model_dump(),
        "settings": {name: str(getattr(config, name, None)) for name in NUMERIC},
        "max_model_len": config.max_model_len,
        "weights": (config.load_format, config.seed if config.load_format == "dummy" else 0),
        "cache": None,
        "files": weight_files(model.path),
    }
    if context.kv_cache is not None:
        facts["cache"] = (context.kv_cache.block_size, context.kv_cache.groups)
    text = msgspec.json.encode(facts, order="deterministic")
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def weight_files(path: str) -> list[tuple[str, int, int, str]]:
    """(name, size, time of change, digest) of each file of a model; nothing where it has none."""
    place = Path(path)
    if not path or not place.exists():
        return []
    files = [place] if place.is_file() else sorted(file for file in place.iterdir())
    return [_facts_of(file) for file in files if file.is_file() and not _is_of_text(file.name)]


def _is_of_text(name: str) -> bool:
    """Files that change which tokens a prompt has, not what K/V tokens have."""
    return name.startswith(("tokenizer", "chat_template", "README", "."))


def _facts_of(file: Path) -> tuple[str, int, int, str]:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with file.open("rb") as stream:
        status = os.fstat(stream.fileno())
        if status.st_size <= WHOLE_BYTES:
            digest.update(stream.read())
            return file.name, status.st_size, 0, digest.hexdigest()
        last = status.st_size - SAMPLE_BYTES
        for number in range(NUM_SAMPLES):
            stream.seek(last * number // (NUM_SAMPLES - 1))
            digest.update(stream.read(SAMPLE_BYTES))
    return file.name, status.st_size, status.st_mtime_ns, digest.hexdigest()
