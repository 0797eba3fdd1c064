"""The parameter for the cache: its name in each version of transformers, and calls by that name."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from tenonry_torch_base.cache_argument import cache_argument, cache_argument_of, cache_arguments


def renamed(function):
    """Accepts the former name, as transformers 5.24 does."""

    @functools.wraps(function)
    def wrapper(*arguments, **named):
        assert "past_key_values" not in named
        return function(*arguments, **named)

    return wrapper


class Older(nn.Module):
    def forward(self, hidden, past_key_values=None):
        return past_key_values


class Recurrent(nn.Module):
    def forward(self, hidden, cache_params=None):
        return cache_params


class Newer(nn.Module):
    @renamed
    def forward(self, hidden, cache=None):
        return cache


class Open(nn.Module):
    def forward(self, hidden, **named):
        return named["past_key_values"]


@pytest.mark.parametrize("kind", [Older, Recurrent, Newer, Open])
def test_the_cache_arrives_under_the_name_of_the_signature(kind):
    module, cache = kind(), object()
    assert module(0, **{cache_argument(module.forward): cache}) is cache
    assert module(0, **{cache_argument_of(kind): cache}) is cache


def test_a_function_without_a_cache_has_none():
    assert cache_arguments(Open().forward) == []
    assert cache_arguments(Newer().forward) == ["cache"]
