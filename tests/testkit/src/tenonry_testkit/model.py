"""The conformance suite of models: a name for a folder of files. Test process.

from tenonry_testkit.model import ModelContract

class TestMine(ModelContract):
    model = "my-model"

Needs a reader of the folder: install `tenonry-hf-hub`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tenonry.config import EngineConfig
from tenonry.errors import ModelError
from tenonry.info import ModelInfo
from tenonry_hf_hub.hooks import tenonry_resolve_model
from tenonry_hf_hub.located import MODELS, Located
from tenonry_testkit.effects import watched
from tenonry_testkit.functions import given, resolve_function


class ModelContract:
    """Subclass in a test module and name the `model`. `has_weights`: False for a folder without weights, which only
    `--load-format dummy` serves.
    """

    model: ClassVar[str | Callable[[], Any] | None] = None
    has_weights: ClassVar[bool] = True

    # ------------------------------------------------------------------ tools, for tests of your own
    def folder(self) -> Path:
        """Return the folder, or GGUF file, of the name."""
        found = self._answer()
        if isinstance(found, Located):
            return found.path
        assert isinstance(found, str | os.PathLike), f"it returns {found!r}, which is no path"
        return Path(found)

    def info(self, **fields: Any) -> ModelInfo:
        """Facts as every engine learns them."""
        formats = {} if self.has_weights else {"load_format": "dummy"}
        config = EngineConfig(model=str(self.folder()), **{**formats, **fields})
        return tenonry_resolve_model(config)

    def _answer(self) -> Any:
        found = resolve_function(MODELS, given(self.model))
        return found() if callable(found) else found

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_model_that_the_hub_finds(self) -> None:
        """It is a function without arguments, or a folder."""
        found = resolve_function(MODELS, given(self.model))
        if callable(found):
            inspect.signature(found).bind()

    def test_it_is_a_folder_that_exists(self) -> None:
        """It is a folder or GGUF file. An absolute path: commands run in any folder."""
        folder = self.folder()
        assert folder.is_absolute(), f"{folder} is relative"
        is_file = folder.suffix == ".gguf" and folder.is_file()
        assert is_file or folder.is_dir(), f"{folder} is no folder and no GGUF file"

    def test_it_is_the_same_each_time(self) -> None:
        """Front end and engines resolve it independently."""
        assert self.folder() == self.folder() == self.folder()

    def test_asking_has_no_effects(self) -> None:
        """Nothing is downloaded or written; the package's build does that."""
        found = resolve_function(MODELS, given(self.model))
        with watched() as effects:
            _ = found() if callable(found) else found
        assert not effects, effects

    def test_facts_can_be_read(self) -> None:
        """config.json names the architecture, lengths and sizes."""
        info = self.info()
        assert info.architecture, "config.json names no architecture"
        assert info.max_model_len > 0
        assert info.vocab_size > 0

    def test_end_tokens_are_in_the_vocabulary(self) -> None:
        """End token ids can be sampled."""
        info = self.info()
        assert all(0 <= token < info.vocab_size for token in info.eos_token_ids)

    def test_weights_are_there_where_they_are_promised(self) -> None:
        """A folder without weights declares it."""
        try:
            self.info(load_format="auto")
        except ModelError:
            assert not self.has_weights, (
                f"{self.folder()} has no weights; write has_weights = False"
            )

    def test_reading_leaves_the_folder_as_it_was(self) -> None:
        """Packages may be installed in read-only folders."""
        before = _listing(self.folder())
        self.info()
        assert _listing(self.folder()) == before

    def test_files_are_readable_by_all(self) -> None:
        """The server's user may differ from the installing one."""
        for file in self.folder().rglob("*"):
            if file.is_file():
                assert file.stat().st_mode & 0o044, f"{file} can only be read by its owner"


def _listing(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*")}
