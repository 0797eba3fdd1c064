"""Checks that a specification can be served: compiles it, and follows it for some tokens. In the checking process.

Some grammars compile but then allow nothing, or reach a limit immediately; a few walks through the grammar detect those
before a request runs.
"""

from __future__ import annotations

import random

import numpy as np

from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.base import Grammar, GrammarBackend, GrammarError
from tenonry_grammars.bits import allowed_ids, forbid
from tenonry_grammars.schema import (
    check_depth,
    embedded_schemas,
    failing_part,
    parse_schema,
    part_at,
)

WALKS = 3
TOKENS_PER_WALK = 24
TOO_COMPLEX = (
    "it is too complex to follow; use smaller bounds, fewer optional properties, or only one of a length and an "
    "expression"
)


def check_spec(backend: GrammarBackend, spec: StructuredOutput) -> None:
    """Raises GrammarError with what is wrong, and for a schema with the path of the part."""
    for schema in embedded_schemas(spec.grammar or ""):
        check_depth(schema)
    if spec.json is None:
        walk(backend, backend.compile(spec))
        return
    schema = parse_schema(spec.json)
    check_depth(schema)
    try:
        grammar = backend.compile(spec)
    except GrammarError as error:
        where = error.path
        if where is None:
            where = failing_part(schema, lambda text: _compiles(backend, text))
        raise _located(error, where, error.keyword) from None
    try:
        walk(backend, grammar)
    except GrammarError as error:
        where = failing_part(schema, lambda text: not _is_too_complex(backend, text))
        part = part_at(schema, where)
        is_bounded = isinstance(part, dict) and {"pattern", "maxLength"} <= set(part)
        raise _located(error, where, "maxLength" if is_bounded else None) from None


def _located(error: GrammarError, path: str, keyword: str | None) -> GrammarError:
    """The error of a schema with the path in its text."""
    return GrammarError(f"{path or 'the schema'}: {error}", path, keyword)


def _compiles(backend: GrammarBackend, schema: str) -> bool:
    try:
        backend.compile(StructuredOutput(json=schema))
    except GrammarError:
        return False
    return True


def _is_too_complex(backend: GrammarBackend, schema: str) -> bool:
    """Return True if the schema compiles but cannot be followed; a part unsatisfiable by itself is not at fault."""
    try:
        grammar = backend.compile(StructuredOutput(json=schema))
    except GrammarError:
        return False
    try:
        walk(backend, grammar, walks=1)
    except GrammarError:
        return True
    return False


def walk(
    backend: GrammarBackend, grammar: Grammar, walks: int = WALKS, tokens: int = TOKENS_PER_WALK
) -> None:
    """Follow tokens that the grammar allows, chosen by a fixed seed. Raises GrammarError where it leads nowhere."""
    context = backend.context
    mask = np.zeros((1, context.num_words), np.int32)
    ends = [token_id for token_id in context.end_ids if token_id < context.vocab_size]
    for seed in range(walks):
        chance = random.Random(seed)  # noqa: S311 - no secrets
        matcher = grammar.matcher(context.end_ids)
        for place in range(tokens):
            backend.fill_masks([matcher], mask)
            if not mask.any():
                what = "nothing satisfies it" if place == 0 else TOO_COMPLEX
                raise GrammarError(f"{what}: after {place} tokens no token is left")
            forbid(mask[0], ends)
            goes_on = allowed_ids(mask[0])
            if not len(goes_on):
                break
            matcher.accept([int(goes_on[chance.randrange(len(goes_on))])])
