"""Random texts that the grammar of a schema allows, checked by a validator; and the number of accepted schemas.

    python tests/public/schemas/draws.py FOLDER... --draws 3

prints both numbers for the schemas (*.json) of some folders, each refusal with its reason, and each invalid text.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np
from tokenizers import Tokenizer

from tenonry.errors import RequestError
from tenonry.sampling_params import StructuredOutput
from tenonry_demo_model import model_path
from tenonry_grammar_llguidance.backend import LLGuidance
from tenonry_grammars.base import Grammar, GrammarBackend, GrammarContext, GrammarError
from tenonry_grammars.bits import allowed_ids
from tenonry_grammars.points import find_backend
from tenonry_grammars.probing import check_spec

END = "<|im_end|>"
MAX_TOKENS = 400
LENGTHS = (10, 40, 80, 150)  # tokens after which a text is brought to its end
CLOSING = set('"}], ')


class Draw(NamedTuple):
    """`is_complete`: the text ended by itself; `is_stuck`: no token was left."""

    text: str
    is_complete: bool
    is_stuck: bool = False


class Drawer:
    """Draws with the tokenizer of the demo model, over a backend for it."""

    def __init__(self, backend: type[GrammarBackend] = LLGuidance) -> None:
        self._cls = backend
        source = Path(model_path(), "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = Tokenizer.from_str(source)
        self._end = self._tokenizer.token_to_id(END)
        self.context = GrammarContext(source, self._tokenizer.get_vocab_size(), (self._end,))
        self._mask = np.zeros((1, self.context.num_words), np.int32)

    @cached_property
    def backend(self) -> GrammarBackend:
        """The backend under test."""
        return self._cls(self.context)

    @cached_property
    def _closing(self) -> set[int]:
        """Tokens that close a text, a list or an object, or separate their elements."""
        texts = {
            token_id: self._tokenizer.decode([token_id], skip_special_tokens=False)
            for token_id in range(self.context.vocab_size)
        }
        return {token_id for token_id, text in texts.items() if text and set(text) <= CLOSING}

    def grammar(self, schema: Any) -> Grammar:
        """After the check that a server makes of a request.

        Raises GrammarError for a schema that is not served, and RequestError for one that is too large.
        """
        spec = StructuredOutput(json=json.dumps(schema))
        check_spec(self.backend, spec)
        return self.backend.compile(spec)

    def accepts(self, grammar: Grammar, text: str) -> bool:
        """Return True if a whole text is allowed, and may end there."""
        matcher = grammar.matcher((self._end,))
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        if matcher.accept(tokens) < len(tokens):
            return False
        self.backend.fill_masks([matcher], self._mask)
        return self._end in allowed_ids(self._mask[0])

    def draw(self, grammar: Grammar, chance: random.Random) -> Draw:
        """A random way through a grammar."""
        matcher = grammar.matcher((self._end,))
        length = chance.choice(LENGTHS)
        tokens: list[int] = []
        for place in range(MAX_TOKENS):
            self.backend.fill_masks([matcher], self._mask)
            allowed = {int(token_id) for token_id in allowed_ids(self._mask[0])}
            if not allowed:
                return Draw(self._text(tokens), is_complete=False, is_stuck=True)
            if self._end in allowed and (allowed == {self._end} or chance.random() < 0.5):
                return Draw(self._text(tokens), is_complete=True)
            token = self._chosen(allowed - {self._end}, chance, is_long=place > length)
            if matcher.accept([token]) != 1:
                return Draw(self._text(tokens), is_complete=False, is_stuck=True)
            tokens.append(token)
        return Draw(self._text(tokens), is_complete=False)

    def _chosen(self, allowed: set[int], chance: random.Random, *, is_long: bool) -> int:
        closing = allowed & self._closing
        is_closed = closing and chance.random() < (0.95 if is_long else 0.3)
        return chance.choice(sorted(closing if is_closed else allowed))

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


class Tally:
    """Counts of many schemas and their draws. `refused`: reasons by name; `wrong`: texts that are invalid, or ended
    without an allowed token.
    """

    def __init__(self, drawer: Drawer) -> None:
        self._drawer = drawer
        self.num_accepted = self.num_complete = 0
        self.refused: dict[str, str] = {}
        self.wrong: list[str] = []

    def add(self, name: str, schema: Any, draws: int) -> None:
        """Compile a schema, and validate random texts that its grammar allows."""
        try:
            grammar = self._drawer.grammar(schema)
        except (GrammarError, RequestError) as error:
            self.refused[name] = str(error)
            return
        self.num_accepted += 1
        validator = validator_of(schema)
        for number in range(draws):
            found = self._drawer.draw(grammar, random.Random(f"{name} {number}"))
            if found.is_stuck:
                self.wrong.append(f"{name}: no token is left after {found.text!r:.200}")
            elif found.is_complete:
                self.num_complete += 1
                self.wrong += [f"{name}: {why}" for why in judged(validator, found.text)]

    def __str__(self) -> str:
        num_schemas = self.num_accepted + len(self.refused)
        share = 100 * self.num_accepted / num_schemas if num_schemas else 100
        return (
            f"accepted {self.num_accepted} of {num_schemas} schemas ({share:.2f} %); "
            f"{len(self.wrong)} of {self.num_complete} complete draws invalid or stuck"
        )


def validator_of(schema: Any) -> jsonschema.protocols.Validator:
    """The validator of the draft that a schema names, which checks formats."""
    cls = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return cls(schema, format_checker=cls.FORMAT_CHECKER)


def judged(validator: jsonschema.protocols.Validator, text: str) -> Iterable[str]:
    """Defects of a text, if any."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return [f"no JSON ({error}): {text!r:.200}"]
    try:
        found = next(iter(validator.iter_errors(value)), None)
    except (jsonschema.exceptions.UnknownType, RecursionError, ValueError):
        return []  # the validator cannot read the schema
    return [] if found is None else [f"{found.message:.200} in {text!r:.200}"]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=1, help="texts per schema")
    parser.add_argument("--backend", default="llguidance", help="grammar backend, by name")
    options = parser.parse_args()
    found = find_backend(options.backend)
    if found is None:
        parser.error(f"no grammar backend is called {options.backend}")
    tally = Tally(Drawer(found[0]))
    for folder in options.folders:
        for file in sorted(folder.rglob("*.json")):
            schema = json.loads(file.read_text(encoding="utf-8"))
            tally.add(f"{file.parent.name}/{file.name}", schema, options.draws)
    for name, reason in tally.refused.items():
        print(f"refused {name}: {reason}")
    for line in tally.wrong:
        print(line)
    print(tally)


if __name__ == "__main__":
    main()
