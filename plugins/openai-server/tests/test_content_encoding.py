"""Bodies in gzip, deflate and zstd: decoded within bounds, or rejected by name."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenonry_openai_server.content_encoding import FREE_BYTES, decode, zstd_module
from tenonry_openai_server.errors import APIError

zstd = zstd_module()
BODY = {"prompt": "ab"}


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


ENCODE = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": raw_deflate,
    "zstd": zstd.compress,
}


def send(api: Any, coding: str, content: Any, path: str = "/v1/completions", **headers: str) -> Any:
    headers = {"content-type": "application/json", "content-encoding": coding, **headers}
    return api.request("POST", path, content=content, headers=headers)


@pytest.mark.parametrize("coding", ENCODE)
@pytest.mark.parametrize("size", [10, 100_000])
def test_encoded_body_is_read_as_the_plain_one(coding, size, make_api):
    api = make_api()
    body = {**BODY, "user": "".join(chr(97 + i * i % 26) for i in range(size))}
    plain = api.post("/v1/completions", body)
    encoded = send(api, coding, ENCODE[coding](json.dumps(body).encode()))
    assert encoded.status_code == 200, encoded.text
    assert encoded.json()["choices"] == plain.json()["choices"]


def test_routes_of_packages_read_them_too(make_api):
    api = make_api(route=("messages", "responses", "pooling"))
    for path, body in (
        ("/v1/responses", {"input": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
    ):
        assert send(api, "zstd", zstd.compress(json.dumps(body).encode()), path).status_code == 200


def test_body_may_come_in_pieces(api):
    content = gzip.compress(json.dumps(BODY).encode())

    async def pieces() -> Any:
        for place in range(len(content)):
            yield content[place : place + 1]

    assert send(api, "gzip", pieces()).status_code == 200


def test_identity_is_no_coding(api):
    assert send(api, "identity", json.dumps(BODY).encode()).status_code == 200
    assert send(api, "", json.dumps(BODY).encode()).status_code == 200


@pytest.mark.parametrize(
    "coding", ["br", "compress", "gzip, gzip", "gzip,zstd", "identity, gzip", "x" * 1000]
)
def test_other_codings_are_refused_with_those_that_are_read(coding, api):
    response = send(api, coding, b"x")
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "gzip, deflate, zstd"
    error = response.json()["error"]
    assert error["code"] == "unsupported_encoding"
    assert f"'{coding[:64]}'" in error["message"]
    assert "gzip, deflate, zstd" in error["message"]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_damaged_bodies_are_refused(coding, api):
    whole = ENCODE[coding](json.dumps({**BODY, "user": "abcdefgh"}).encode())
    for content in (whole[:-5], whole[:3], b"x" * 50, whole[:12] + b"\xff" + whole[13:]):
        response = send(api, coding, content)
        assert response.status_code == 400, content
        assert response.json()["error"]["code"] in {"invalid_encoding", "invalid_json"}
    assert "its end is missing" in send(api, coding, whole[:-5]).text


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
@pytest.mark.slow
def test_a_small_body_does_not_become_a_large_one(coding, make_api):
    """16 KiB that decode to 16 MiB would keep the server busy at no cost to the client."""
    api = make_api()
    bomb = ENCODE[coding](b"0" * (200 << 20))
    response = send(api, coding, bomb)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    ratio = send(api, coding, ENCODE[coding](b"0" * (8 << 20)))
    assert ratio.status_code == 413
    assert "256-fold" in ratio.text or "max-body-bytes" in ratio.text


def test_decoded_size_has_the_bound_of_any_body(make_api):
    api = make_api(max_body_bytes=10_000)
    fits = json.dumps({**BODY, "user": "x" * 9000}).encode()
    assert send(api, "gzip", gzip.compress(fits)).status_code == 200
    above = send(api, "gzip", gzip.compress(fits + b" " * 2000))
    assert (above.status_code, "10000 bytes" in above.text) == (413, True)


def test_encoded_size_has_it_too(make_api):
    api = make_api(max_body_bytes=2000)
    assert send(api, "gzip", b"x" * 3000).status_code == 413


def test_members_of_gzip_and_frames_of_zstd_follow_one_another():
    for coding in ("gzip", "zstd"):
        data = b"".join(ENCODE[coding](part) for part in (b"ab", b"", b"cd"))
        assert decode(coding, data, 1000) == b"abcd"


def test_nothing_may_follow_deflate():
    with pytest.raises(APIError, match="something follows"):
        decode("deflate", zlib.compress(b"ab") + b"x", 1000)


def test_large_windows_are_refused():
    """RFC 9659: a decoder of web content need not hold more than 8 MiB."""
    options = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    compressor = zstd.ZstdCompressor(options=options)
    data = compressor.compress(b"ab" * 100) + compressor.flush()
    with pytest.raises(APIError, match="not valid zstd"):
        decode("zstd", data, 1000)


@given(st.binary(max_size=3000), st.sampled_from(["gzip", "deflate", "Deflate", "zstd"]))
def test_decoding_undoes_encoding(data, coding):
    assert decode(coding.lower(), ENCODE[coding](data), FREE_BYTES) == data


@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate", "zstd"]))
def test_any_bytes_decode_or_are_refused(data, coding):
    with contextlib.suppress(APIError):
        decode(coding, data, 1000)
