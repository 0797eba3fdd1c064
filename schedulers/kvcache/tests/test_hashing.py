"""Block digests: their coverage, and incremental construction of chains."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest

from tenonry.kv_cache import LengthClasses
from tenonry.messages import EngineCoreRequest
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams
from tenonry.step import Adapter, Media
from tenonry_kvcache import BlockHasher


def make_request(prompt: int = 4, **fields) -> Request:
    source = EngineCoreRequest(
        handle=1,
        request_id="r",
        prompt_token_ids=np.arange(prompt, dtype=np.int32),
        sampling_params=SamplingParams(),
        **fields,
    )
    return Request(source, 1, 0.0, 100)


def tokens(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


def chain_of(hasher: BlockHasher, request: Request, data: bytes) -> list[bytes]:
    chain = [hasher.seed(request)]
    hasher.extend(chain, data, 0, len(data) // hasher.block_bytes)
    return chain


def test_a_digest_covers_its_tokens_and_all_before_them():
    hasher, request = BlockHasher(2), make_request()
    one = chain_of(hasher, request, tokens(1, 2, 3, 4, 5, 6))
    other = chain_of(hasher, request, tokens(1, 2, 9, 4, 5, 6))
    assert len(one) == 4
    assert one[:2] == other[:2]
    assert len(set(one[2:]) | set(other[2:])) == 4
    assert one[2] == sha256(one[1] + tokens(3, 4)).digest()


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_salt": "tenant"},
        {"adapter": Adapter("tenant", "tenant")},
        {"features": {"tenant": np.ones(1)}},
        {"cache_salt": "a", "adapter": Adapter("x", "b")},
        {"cache_salt": "b", "adapter": Adapter("x", "a")},
        {"features": {"image": np.zeros((2, 3), np.float32)}},
        {"features": {"image": np.zeros((3, 2), np.float32)}},
        {"features": {"image": np.zeros(6, np.int32)}},
    ],
)
def test_what_kv_depends_on_and_who_may_share_it_is_in_the_seed(fields):
    hasher = BlockHasher(2)
    others = [{}, {"cache_salt": "tenant 2"}, {"features": {"image": np.ones((2, 3), np.float32)}}]
    seed = hasher.seed(make_request(**fields))
    assert seed == hasher.seed(make_request(**fields))
    assert all(seed != hasher.seed(make_request(**other)) for other in others)


@pytest.mark.parametrize(
    ("rule", "shared"),
    [
        (LengthClasses(4), [{0, 1, 2}, {3, 4}]),
        (LengthClasses(4, grows=True), [{0, 1, 2}, {3}, {4}]),
        (LengthClasses(4, restarts=True), [{0, 1}, {2, 3, 4}]),
    ],
)
def test_prompts_share_blocks_where_keys_do_not_depend_on_their_length(rule, shared):
    hasher = BlockHasher(2, "seed", rule)
    requests = [
        make_request(prompt=2),
        make_request(prompt=4),
        make_request(prompt=4, output_token_ids=[7, 8]),
        make_request(prompt=5),
        make_request(prompt=6),
    ]
    groups: dict[bytes, set[int]] = {}
    for place, request in enumerate(requests):
        groups.setdefault(hasher.seed(request), set()).add(place)
    assert list(groups.values()) == shared
    assert hasher.seed(requests[0]) == BlockHasher(2, "seed").seed(requests[0])


def test_all_seeds_of_the_cases_above_differ():
    hasher = BlockHasher(2)
    mark = test_what_kv_depends_on_and_who_may_share_it_is_in_the_seed.pytestmark[0]
    seeds = [hasher.seed(make_request(**fields)) for fields in mark.args[1]]
    assert len(set(seeds)) == len(seeds)


def test_the_order_of_features_means_nothing():
    hasher = BlockHasher(2)
    one, two = np.ones(1), np.ones(2)
    assert hasher.seed(make_request(features={"a": one, "b": two})) == hasher.seed(
        make_request(features={"b": two, "a": one})
    )


def test_the_content_of_an_adapter_decides_and_not_its_name():
    hasher = BlockHasher(2)
    seed = hasher.seed(make_request(adapter=Adapter("style", "1f")))
    assert seed != hasher.seed(make_request(adapter=Adapter("style", "2e")))
    assert seed == hasher.seed(make_request(adapter=Adapter("style", "1f")))
    assert seed == hasher.seed(make_request(adapter=Adapter("renamed", "1f")))


def test_processes_differ_unless_they_share_a_seed():
    request = make_request()
    assert BlockHasher(2).seed(request) != BlockHasher(2).seed(request)
    assert BlockHasher(2, "s").seed(request) == BlockHasher(2, "s").seed(request)
    assert BlockHasher(2, "s").seed(request) != BlockHasher(2, "t").seed(request)


def test_chains_do_not_depend_on_the_steps_in_which_they_are_made():
    hasher, request = BlockHasher(2), make_request()
    data = tokens(*range(12))
    whole = chain_of(hasher, request, data)
    parts = [hasher.seed(request)]
    hasher.extend(parts, data, 0, 2)
    hasher.extend(parts, data, 0, 2)  # known already
    hasher.extend(parts, data[2 * 8 :], 2, 4)
    others = [list(whole[:3]), parts]
    digests = hasher.extend_each(others, tokens(90, 91, 8, 9))
    assert digests == [chain[-1] for chain in others]
    assert parts == whole[:6]
    assert others[0] == chain_of(hasher, request, tokens(0, 1, 2, 3, 90, 91))


def test_images_that_were_computed_in_pieces_are_not_those_that_were_computed_whole():
    """Prompts with an image at the third token share only the tokens before it."""
    spans = np.array([[2, 3]])
    hasher = BlockHasher(2)
    chains = []
    for whole in (spans[:0], spans[:0], spans):
        media = Media(spans, np.zeros((1, 32), np.uint8), [{}], whole)
        chain = hasher.chain(make_request(media=media))
        hasher.extend(chain, tokens(1, 2, 3, 4, 5, 6), 0, 3)
        chains.append(list(chain))
    assert chains[0] == chains[1]
    assert chains[2][:2] == chains[0][:2]
    assert not set(chains[2][2:]) & set(chains[0][2:])
