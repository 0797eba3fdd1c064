"""The conformance suite of grammar backends: each line of their contract is a test. Test process.

from tenonry_testkit.grammar import GrammarContract

class TestMine(GrammarContract):
    backend = "my_package:MyBackend"
"""

from __future__ import annotations

import json
import random
from typing import Any, ClassVar

import numpy as np
import pytest

from tenonry.plugin.manager import resolve_point
from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.base import Grammar, GrammarBackend, GrammarContext, GrammarError, Matcher
from tenonry_grammars.bits import allowed_ids, num_words
from tenonry_grammars.points import GRAMMARS
from tenonry_testkit.fakes.tokenizer import (
    END,
    OTHER_END,
    PIECES,
    SPECIAL_NAMES,
    TOKENIZER_JSON,
    tokenizer_json,
)
from tenonry_testkit.grammar_cases import CASES, TEXT_FORMS, WRONG, Case

__all__ = ["CASES", "Case", "GrammarContract", "tokens_of"]
VOCAB_SIZE = 300  # larger than the tokenizer
MAX_WALK = 120
WALKS = 12


def tokens_of(text: str) -> list[int]:
    """Tokenise by the longest pieces from the left."""
    rest = text.encode()
    found = []
    while rest:
        piece = max((one for one in PIECES if rest.startswith(one)), key=len)
        found.append(PIECES[piece])
        rest = rest[len(piece) :]
    return found


class GrammarContract:
    """Subclass in a test module and name the `backend`; `cases` may omit forms that it rejects by name.

    `choice` is the form that every backend supports.
    """

    backend: ClassVar[str | type[GrammarBackend] | None] = None
    cases: ClassVar[dict[str, Case]] = CASES
    end_ids: ClassVar[tuple[int, ...]] = (END,)

    def open(self, **fields: Any) -> GrammarBackend:
        """The backend for the suite's tokenizer."""
        found: Any = self.backend
        if found is None:
            raise TypeError(
                'this suite names nothing to test; add the line:  backend = "my_package:MyBackend"'
            )
        if isinstance(found, str):
            found, _ = resolve_point(GRAMMARS, found)
        values = {
            "tokenizer_json": TOKENIZER_JSON,
            "vocab_size": VOCAB_SIZE,
            "end_ids": self.end_ids,
        }
        backend: GrammarBackend = found(GrammarContext(**{**values, **fields}))
        return backend

    def masks(self, backend: GrammarBackend, *matchers: Matcher) -> list[set[int]]:
        """Ids allowed next by each matcher."""
        out = np.full((len(matchers), num_words(backend.context.vocab_size)), 0x5A5A5A5A, np.int32)
        backend.fill_masks(matchers, out)
        return [set(allowed_ids(line).tolist()) for line in out]

    def compiled(self, backend: GrammarBackend) -> list[tuple[str, Case, Grammar]]:
        """Every case with its grammar."""
        return [(name, case, backend.compile(case.spec)) for name, case in self.cases.items()]

    def walk(
        self, backend: GrammarBackend, grammar: Grammar, seed: int
    ) -> tuple[list[int], list[set[int]], bool]:
        """Follow random allowed tokens; returns them, the masks on the way, and True at an end."""
        chance = random.Random(seed)
        matcher = grammar.matcher(self.end_ids)
        tokens: list[int] = []
        seen = []
        for _ in range(MAX_WALK):
            (allowed,) = self.masks(backend, matcher)
            seen.append(allowed)
            assert allowed, "a grammar that was followed leads nowhere"
            ends = allowed & set(self.end_ids)
            if ends and (allowed == ends or chance.random() < 0.3):
                return tokens, seen, True
            token = chance.choice(sorted(allowed - ends))
            assert matcher.accept([token]) == 1, "a token that the mask allows is refused"
            tokens.append(token)
        return tokens, seen, False

    # ------------------------------------------------------------------ what is allowed
    def test_every_right_text_is_allowed(self):
        backend = self.open()
        for name, case, grammar in self.compiled(backend):
            for text in case.texts:
                matcher = grammar.matcher(self.end_ids)
                for token in tokens_of(text):
                    (allowed,) = self.masks(backend, matcher)
                    assert token in allowed, (name, text)
                    assert matcher.accept([token]) == 1, (name, text)
                (allowed,) = self.masks(backend, matcher)
                assert allowed >= set(self.end_ids), (name, text)

    def test_every_way_to_an_end_is_right(self):
        backend = self.open()
        bytes_of = {token: piece for piece, token in PIECES.items()}
        for name, case, grammar in self.compiled(backend):
            ended = 0
            for seed in range(WALKS):
                tokens, _, is_complete = self.walk(backend, grammar, seed)
                if is_complete:
                    ended += 1
                    text = b"".join(bytes_of[token] for token in tokens).decode()
                    assert case.is_right(text), (name, text)
            assert ended, f"no walk through {name} came to an end"

    def test_the_end_is_allowed_where_the_text_is_complete_and_only_there(self):
        backend = self.open()
        flat = {"regex", "choice", "lark"}
        for name in flat & set(self.cases):
            case = self.cases[name]
            grammar = backend.compile(case.spec)
            for text in case.texts:
                if not text.isascii():
                    continue
                matcher = grammar.matcher(self.end_ids)
                for end in range(len(text) + 1):
                    (allowed,) = self.masks(backend, matcher)
                    is_end = bool(allowed & set(self.end_ids))
                    assert is_end == case.is_right(text[:end]), (name, text[:end])
                    following = text[end : end + 1]
                    tokens = [PIECES[char.encode()] for char in following]
                    matcher.accept(tokens)

    def test_after_the_end_nothing_but_end_ids(self):
        backend = self.open()
        grammar = backend.compile(StructuredOutput(choice=("yes", "no")))
        matcher = grammar.matcher(self.end_ids)
        assert matcher.accept(tokens_of("yes")) == len(tokens_of("yes"))
        assert self.masks(backend, matcher) == [set(self.end_ids)]

    def test_ids_that_the_tokenizer_lacks_are_never_allowed(self):
        backend = self.open()
        known = set(PIECES.values()) | set(self.end_ids)
        for name, _, grammar in self.compiled(backend):
            _, seen, _ = self.walk(backend, grammar, 1)
            assert all(allowed <= known for allowed in seen), name

    def test_a_model_with_fewer_logits_than_tokens(self):
        backend = self.open(vocab_size=END + 1)
        grammar = backend.compile(StructuredOutput(choice=("xz",)))
        (allowed,) = self.masks(backend, grammar.matcher(self.end_ids))
        assert allowed == {PIECES[b"x"]}

    # ------------------------------------------------------------------ text as given
    def written(self, backend: GrammarBackend, spec: StructuredOutput) -> str:
        """The single text allowed by a specification, made of ordinary tokens."""
        bytes_of = {token: piece for piece, token in PIECES.items()}
        matcher = backend.compile(spec).matcher(self.end_ids)
        text = b""
        for _ in range(MAX_WALK):
            (allowed,) = self.masks(backend, matcher)
            assert allowed <= {*PIECES.values(), *self.end_ids}, f"after {text!r}"
            if allowed & set(self.end_ids):
                break
            assert allowed, f"nothing follows {text!r}"
            token = max(allowed)
            assert matcher.accept([token]) == 1, f"{token} after {text!r}"
            text += bytes_of[token]
        return text.decode()

    @pytest.mark.parametrize("name", SPECIAL_NAMES.values())
    @pytest.mark.parametrize("form", TEXT_FORMS)
    def test_text_is_never_a_special_token(self, form, name):
        """Text equal to the name of a special token consists of ordinary tokens."""
        if form not in self.cases:
            pytest.skip(f"the backend does not have {form}")
        backend = self.open()
        for text in (name, f"a{name}b", name * 2):
            spec = TEXT_FORMS[form](text)
            found = self.written(backend, spec)
            assert found == (json.dumps(text) if form == "json" else text)

    @pytest.mark.parametrize(
        "changes", [{"normalizer": "NFC"}, {"normalizer": "Lowercase"}, {"add_prefix_space": True}]
    )
    def test_text_stays_as_given_where_the_tokenizer_changes_texts(self, changes):
        backend = self.open(tokenizer_json=tokenizer_json(**changes))
        for text in ("Ae\u0301b", "\u00e9B", " a"):
            assert self.written(backend, StructuredOutput(choice=(text,))) == text

    @pytest.mark.parametrize(
        "rest", [{}, {"additionalProperties": True}, {"patternProperties": {"^x": {}}}]
    )
    def test_a_name_written_with_escapes_does_not_pass_by_its_rule(self, rest):
        if "json" not in self.cases:
            pytest.skip("the backend does not have json")
        backend = self.open()
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, **rest}
        try:
            grammar = backend.compile(StructuredOutput(json=json.dumps(schema)))
        except GrammarError:
            pytest.skip("the backend refuses the schema")
        for text in ('{"\\u0061":"b"}', '{"\\u0061":true}', '{"a":1,"\\u0061":[]}'):
            tokens = tokens_of(text)
            assert grammar.matcher(self.end_ids).accept(tokens) < len(tokens), text

    # ------------------------------------------------------------------ end ids
    def test_a_request_has_end_ids_of_its_own(self):
        backend = self.open()
        grammar = backend.compile(StructuredOutput(choice=("a", "abb")))
        both = grammar.matcher([END, OTHER_END])
        other = grammar.matcher([OTHER_END])
        usual = grammar.matcher(self.end_ids)
        ends = {END, OTHER_END}
        for mask in self.masks(backend, both, other, usual):
            assert not mask & ends
        for matcher in (both, other, usual):
            assert matcher.accept(tokens_of("a")) == 1
        masks = self.masks(backend, both, other, usual)
        found = [mask & ends for mask in masks]
        assert found == [ends, {OTHER_END}, {END}]

    def test_end_with_a_text_is_not_shown_behind_an_answer(self) -> None:
        """Stop ids of a request may be ordinary tokens: the answer would be `ab!`."""
        backend = self.open()
        grammar = backend.compile(StructuredOutput(choice=("ab",)))
        text = PIECES[b"!"]
        both = grammar.matcher([END, text])
        alone = grammar.matcher([text])
        for matcher in (both, alone):
            assert matcher.accept(tokens_of("ab")) == len(tokens_of("ab"))
        assert self.masks(backend, both, alone) == [{END}, {text}]

    # ------------------------------------------------------------------ moving
    def test_accept_stops_before_the_first_wrong_token(self):
        backend = self.open()
        grammar = backend.compile(StructuredOutput(choice=("aaaa", "aabb")))
        matcher = grammar.matcher(self.end_ids)
        a = PIECES[b"a"]
        z = PIECES[b"z"]
        assert matcher.accept([a, a, z, a]) == 2

    def test_what_was_taken_at_once_is_what_was_taken_one_by_one(self):
        backend = self.open()
        for name, _, grammar in self.compiled(backend):
            tokens, seen, _ = self.walk(backend, grammar, 2)
            lengths = {0, 1, len(tokens) // 2, len(tokens) - 1}
            for length in lengths:
                if 0 <= length < len(seen):
                    fresh = grammar.matcher(self.end_ids)
                    assert fresh.accept(tokens[:length]) == length, name
                    assert self.masks(backend, fresh) == [seen[length]], name

    def test_rollback_takes_tokens_back(self):
        backend = self.open()
        for name, _, grammar in self.compiled(backend):
            tokens, seen, _ = self.walk(backend, grammar, 3)
            matcher = grammar.matcher(self.end_ids)
            matcher.accept(tokens)
            for back in (1, 2):
                if len(tokens) >= back:
                    matcher.rollback(back)
                    expected = seen[len(tokens) - back]
                    assert self.masks(backend, matcher) == [expected], name
                    matcher.accept(tokens[len(tokens) - back :])
            matcher.rollback(len(tokens))
            assert self.masks(backend, matcher) == [seen[0]], name
            matcher.rollback(0)
            assert self.masks(backend, matcher) == [seen[0]], name

    def test_matchers_of_one_grammar_do_not_know_each_other(self):
        backend = self.open()
        grammar = backend.compile(StructuredOutput(choice=("ax", "by")))
        one = grammar.matcher(self.end_ids)
        other = grammar.matcher(self.end_ids)
        one.accept([PIECES[b"a"]])
        assert self.masks(backend, one, other) == [{PIECES[b"x"]}, {PIECES[b"a"], PIECES[b"b"]}]

    def test_many_masks_are_those_of_each(self):
        backend = self.open()
        matchers = []
        for place, (_, case, grammar) in enumerate(self.compiled(backend) * 6):
            matcher = grammar.matcher(self.end_ids)
            matcher.accept(tokens_of(case.texts[0])[: place % 3])
            matchers.append(matcher)
        together = self.masks(backend, *matchers)
        alone = [self.masks(backend, matcher)[0] for matcher in matchers]
        assert together == alone

    def test_one_token_for_each_of_many_is_that_token_alone(self):
        backend = self.open()
        grammar = backend.compile(StructuredOutput(choice=("ax", "by", "bz")))
        matchers = [grammar.matcher(self.end_ids) for _ in range(48)]
        a = PIECES[b"a"]
        b = PIECES[b"b"]
        z = PIECES[b"z"]
        answers = backend.accept_each(matchers, [a, b, z] * 16)
        assert list(answers) == [True, True, False] * 16
        after_a = {PIECES[b"x"]}
        after_b = {PIECES[b"y"], PIECES[b"z"]}
        masks_of_a = self.masks(backend, *matchers[0::3])
        masks_of_b = self.masks(backend, *matchers[1::3])
        assert masks_of_a == [after_a] * 16
        assert masks_of_b == [after_b] * 16

    # ------------------------------------------------------------------ refusals
    @pytest.mark.parametrize("what", WRONG)
    def test_what_cannot_be_compiled_is_refused(self, what):
        backend = self.open()
        with pytest.raises(GrammarError) as caught:
            backend.compile(WRONG[what])
        assert str(caught.value).strip()

    def test_a_tokenizer_that_cannot_be_read_is_refused(self):
        with pytest.raises(GrammarError):
            self.open(tokenizer_json='{"model": 1}')

    def test_nothing_follows_a_limit_or_a_contradiction(self):
        """A grammar without any text is rejected, or allows no token."""
        backend = self.open()
        try:
            grammar = backend.compile(StructuredOutput(regex="[a&&b]c"))
        except GrammarError:
            return
        assert self.masks(backend, grammar.matcher(self.end_ids)) == [set()]
