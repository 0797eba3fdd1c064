"""Allowed image sources: rejected URLs, and a real https server whose address a test may allow."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading

import pytest

from tenonry.errors import RequestError
from tenonry_images import sources
from tenonry_images.sources import CHUNK_BYTES, ImageSources, is_public


def encoded(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("url", "data"),
    [
        (encoded(b"\x00abc"), b"\x00abc"),
        ("data:,a%20b", b"a b"),
        ("DATA:image/png;BASE64,YQ==", b"a"),
        ("data:image/png;charset=utf-8; base64,YQ==", b"a"),
        ("data:image/png;base64,AGFi\r\n Yw==\n", b"\x00abc"),
        ("data:image/png;base64,AGFi%0AYw%3D%3D", b"\x00abc"),
        ("data:image/png;base64,%2B%2Fs=", b"\xfb\xfb"),
        ("data:image/png;base64,+/s=", b"\xfb\xfb"),
        ("data:image/png;base64,AGFiYw", b"\x00abc"),
        (" \ndata:image/png;base64, AGFiYw==\n", b"\x00abc"),
    ],
)
def test_a_data_url_gives_its_bytes(url, data):
    assert ImageSources((), 100).read(url, "here") == data


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (encoded(bytes(11)), "11 bytes; at most 10"),
        (encoded(bytes(100)), "136 characters; at most 10 bytes"),
        ("data:image/png;base64,!!", "no base64"),
        ("data:image/png;base64,YQ=Y", "no base64"),
        ("data:image/png;base64,YWFhY", "no base64"),
        ("data:image/png;base64,\u00e9\u00e9\u00e9\u00e9", "no base64"),
        ("data:image/png;base64,%20%0A", "empty"),
        ("", "data: URL, or an https: URL"),
        (" ", "data: URL, or an https: URL"),
        ("data:image/png;base64,", "empty"),
        ("data:image/png", "comma"),
        ("ftp://good.test/a", "data: URL, or an https: URL"),
        ("https://bad.test/a", "not read from 'bad.test'.*good.test"),
        ("https://good.test.bad.test/a", "not read from"),
        ("https://good.test:8443/a", "on port 443"),
        ("https://user@good.test/a", "not read from"),
        ("https://good.test@bad.test/a", "not read from 'bad.test'"),
        ("https://[::1/a", "no URL"),
        ("https://good.test/a b", "percent-encoded"),
        ("https://good.test/a\r\nHost: x", "percent-encoded"),
        ("https://good.test/" + "a" * 5000, "5018 characters; at most 4096"),
    ],
)
def test_what_cannot_be_read_is_refused_with_field_value_and_bound(url, reason):
    with pytest.raises(RequestError, match=reason) as raised:
        ImageSources(("good.test",), 10).read(url, "messages[0]")
    assert raised.value.param == "messages[0]"


@pytest.mark.parametrize("size", [CHUNK_BYTES // 4 * 3, 200_001, 200_002, 200_003])
def test_long_base64_is_decoded_whole(size):
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sources = ImageSources((), 1 << 20)
    for text in (base64.b64encode(data), base64.encodebytes(data)):
        assert sources.read(f"data:;base64,{text.decode()}", "image") == data
        assert sources.read(f"data:;base64,{text.decode().rstrip()}", "image") == data


@pytest.mark.parametrize("place", [CHUNK_BYTES - 2, CHUNK_BYTES - 1, CHUNK_BYTES])
def test_padding_before_the_end_is_no_base64_at_any_place(place):
    text = "A" * place + "==" + "A" * CHUNK_BYTES
    with pytest.raises(RequestError, match="no base64"):
        ImageSources((), 1 << 20).read(f"data:;base64,{text}", "image")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1",
     "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"],
)  # fmt: skip
def test_an_address_that_is_not_public_is_none(address):
    assert not is_public(address)


def test_a_public_address_is_one():
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], []])
def test_a_host_with_any_private_address_is_not_read(monkeypatch, addresses):
    found = [(0, 0, 0, "", (address, 443)) for address in addresses]
    monkeypatch.setattr(sources.socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(RequestError, match="address that is not public"):
        ImageSources(("good.test",), 10).read("https://good.test/a", "here")


class PlainTls(ssl.SSLContext):
    """Stands for TLS: the bytes go through a real socket as they are."""

    def wrap_socket(self, plain, *, server_hostname):
        assert server_hostname == "good.test"
        return plain


@contextlib.contextmanager
def answering(reply: bytes):
    """A server on this machine that answers once."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)

    def serve():
        with contextlib.suppress(OSError), listener.accept()[0] as peer:
            peer.settimeout(5)
            peer.recv(4096)
            peer.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(11), "at most 10 bytes"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n", "302; redirects are not followed"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "answered 404"),
        (b"nonsense\r\n\r\n", "could not be read from good.test: BadStatusLine"),
    ],
)  # fmt: skip
def test_what_an_allowed_host_answers(monkeypatch, reply, outcome):
    with answering(reply) as port:
        monkeypatch.setattr(sources, "HTTPS_PORT", port)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]
        monkeypatch.setattr(sources.socket, "getaddrinfo", lambda *_, **__: found)
        reader = ImageSources(
            ("good.test",), 10, is_allowed=lambda _: True, tls=PlainTls(ssl.PROTOCOL_TLS_CLIENT)
        )
        if isinstance(outcome, bytes):
            assert reader.read("https://good.test/a?b", "here") == outcome
        else:
            with pytest.raises(RequestError, match=outcome):
                reader.read("https://good.test/a?b", "here")
