"""Fetches a model from the Hugging Face Hub, or finds it in the hub's cache. Front end, at start-up, for hub ids only.

The revision is resolved to a commit once, and every file comes from that commit: a branch that moves while a model is
downloaded, or between the weights and the tokenizer, cannot mix two versions.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tenonry.errors import ModelError
from tenonry_hf_hub.located import Located, nearest
from tenonry_hf_hub.weights import list_weights

logger = logging.getLogger("tenonry.models")

TIMEOUT_S = 10.0
COMMIT = re.compile(r"^[0-9a-f]{40}$")
SMALL_FILES = (".json", ".jinja", ".model", ".txt", ".tiktoken")
TEMPLATES = "additional_chat_templates/"


def fetch(name: str, revision: str | None, *, weights: bool) -> Located:
    """The local snapshot of the hub model `name`; `weights=False` leaves the tensors out.

    Raises ModelError: unknown id or revision, access denied, or the hub is out of reach and the cache has no copy.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return _cached(name, revision, weights) or _give_up(
            name, "it is not in the local cache, and HF_HUB_OFFLINE forbids to look on the hub"
        )
    if (
        revision is not None
        and COMMIT.match(revision)
        and (found := _cached(name, revision, weights))
    ):
        return found  # a commit never changes: no query needed
    return _download(name, revision, weights)


def _download(name: str, revision: str | None, weights: bool) -> Located:
    from huggingface_hub import HfApi, errors, snapshot_download

    try:
        info = HfApi().model_info(name, revision=revision, timeout=TIMEOUT_S)
        names = wanted_files([item.rfilename for item in info.siblings or ()], weights)
        _require_weights(name, names, weights)
        patterns = [glob.escape(path) for path in names]
        with _quiet_unless_terminal():
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except errors.GatedRepoError:
        _give_up(
            name,
            "it is gated: accept its terms on the hub and set HF_TOKEN to a token of that account",
        )
    except errors.RevisionNotFoundError:
        _give_up(
            name,
            f"the hub has no revision '{revision}' of it; leave the revision out to get the main branch",
        )
    except errors.RepositoryNotFoundError:
        _give_up(name, "the hub has no such model, or it is private (then set HF_TOKEN)")
    except errors.HFValidationError as error:
        _give_up(name, f"the hub does not accept this id: {error}")
    except (_http_error(), OSError) as error:
        return _cached_after(name, revision, weights, error)
    return Located(folder, folder.name)


def _require_weights(name: str, names: list[str], weights: bool) -> None:
    if weights and not any(path.endswith(".safetensors") for path in names):
        _give_up(
            name,
            "its repository has no *.safetensors, and other formats (*.bin) are not loaded; choose a revision or a "
            "conversion that has them, download a *.gguf and give its path, or use load_format=dummy",
        )


def _cached_after(name: str, revision: str | None, weights: bool, error: Exception) -> Located:
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    found = _cached(name, revision, weights)
    if found is None:
        _give_up(
            name,
            f"the hub did not answer as it should ({reason}), and the local cache has no complete copy",
        )
    logger.warning(
        "The hub did not respond (%s); using commit %s of %s from the cache.",
        reason,
        found.commit,
        name,
    )
    return found


def _cached(name: str, revision: str | None, weights: bool) -> Located | None:
    """The snapshot in the hub's cache, if it is complete enough to be used."""
    from huggingface_hub import try_to_load_from_cache

    for file in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        found = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(found, str):
            break
    else:
        return None
    folder = Path(found).parent
    if weights:
        try:
            list_weights(folder)
        except ModelError as error:
            logger.warning("The cached copy of %s cannot be used: %s", name, error)
            return None
    return Located(folder, folder.name)


def wanted_files(names: Iterable[str], weights: bool) -> list[str]:
    """Files of a repository to download: top-level safetensors and small text files, and named chat templates."""
    names = sorted(filter(_is_inside, names))
    wanted = [name for name in names if "/" not in name and name.endswith(SMALL_FILES)]
    wanted += [name for name in names if name.startswith(TEMPLATES) and name.endswith(".jinja")]
    if weights:
        tensors = [name for name in names if "/" not in name and name.endswith(".safetensors")]
        plain = [name for name in tensors if not name.startswith(("adapter_", "consolidated"))]
        wanted += plain or tensors
    return wanted


def _is_inside(name: str) -> bool:
    """No name of a repository may lead out of its folder, on any system."""
    return "\\" not in name and not {"", ".", ".."} & set(name.split("/"))


def _give_up(name: str, reason: str) -> NoReturn:
    raise ModelError(
        f"model '{name}' is not a folder here, and as a hub id: {reason}. A local folder with config.json and "
        f"*.safetensors also works{nearest(name)}"
    )


def _http_error() -> type[Exception]:
    """The base of all errors of the HTTP library under huggingface_hub: httpx in some releases, a fork in others."""
    from huggingface_hub.errors import HfHubHTTPError

    bases = (
        base
        for base in HfHubHTTPError.__mro__[1:]
        if base.__name__ in {"HTTPError", "RequestException"}
    )
    return next(bases, HfHubHTTPError)


@contextlib.contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    """No progress bars in log files."""
    bars: Any = importlib.import_module("huggingface_hub.utils")

    silence = not sys.stderr.isatty() and not bars.are_progress_bars_disabled()
    if silence:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        if silence:
            bars.enable_progress_bars()
