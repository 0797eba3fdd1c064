"""The text under a setting is its description."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tenonry.config import EngineConfig
from tenonry_commands.setting_texts import setting_texts


class Described(BaseModel):
    """A class whose texts pydantic reads."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    one: int = 1
    """What one is."""
    two: int = 2
    three: tuple[int, ...] = (1, 2)
    """Of several
        lines.
    """

    def four(self) -> int:
        """No setting."""
        return 4


def test_the_texts_are_those_that_pydantic_reads():
    theirs = {name: field.description for name, field in Described.model_fields.items()}
    assert setting_texts(Described) == {
        name: text for name, text in theirs.items() if text is not None
    }
    assert setting_texts(Described)["one"] == "What one is."
    assert "two" not in setting_texts(Described)


class Derived(Described):
    five: int = 5
    """Five."""


def test_texts_of_a_class_above_count():
    assert setting_texts(Derived) == {**setting_texts(Described), "five": "Five."}


def test_every_setting_of_an_engine_has_a_text():
    texts = setting_texts(EngineConfig)
    assert set(texts) == set(EngineConfig.model_fields)
    assert all(texts.values())
