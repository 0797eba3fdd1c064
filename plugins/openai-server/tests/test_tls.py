"""HTTPS on a real socket: the operator's certificate, and clients that must show one."""

from __future__ import annotations

import ssl

import httpx
import pytest

from tenonry.errors import ConfigError
from tenonry_openai_server.http_server import make_server
from tenonry_openai_server.settings import ServerConfig

# Made for these tests only: a key and its own certificate, for localhost, to the year 2120.
PASSWORD = "sesame"
KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiYOQyNT8yJpQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEEPNjfNbLC9zAjJdsXARDsDkEgZDk
K0Y3QozGKYP2ku+4oWJvNMn5kKjIt3QjWP9IqoEJrvm9F/cNieGmMFaGSSgsFK0F
B6GEBHWUbi8xC5RiQpXT/5nwFJHt+JZzakN08aekk1tLqHuf3WrvbLF11qixZTU7
ulLxxNpnpkNNbIO5ofFU9C5jcxzZcE8pzy+BDbF1oAE2xMHATgVTgDAW88gQxgc=
-----END ENCRYPTED PRIVATE KEY-----
"""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBZzCCAQ2gAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhv
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQBgNVBAMM
CWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABMk+/ESTmajTGZLH
pNvgR1TYmKrqvGPSZVtvTRr8HVuw9uZIotVrPEVPLOKidQSDlwyPiv4cNbmqHhaQ
uJ0a5dKjTjBMMA8GA1UdEwEB/wQFMAMBAf8wHQYDVR0OBBYEFJWeq9FjQnOZvoB3
DRX572NwdIQMMBoGA1UdEQQTMBGCCWxvY2FsaG9zdIcEfwAAATAKBggqhkjOPQQD
AgNIADBFAiEAo0u0ZqzmJ3201WBN6YheQuo6LdXij1DNcvIohOZd9DsCIDFC7xpq
yT2j5TvhTazekfn6nlftF3q6YS4Mmqy87uTV
-----END CERTIFICATE-----
"""


@pytest.fixture
def files(tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    return {
        "ssl_certfile": str(certificate),
        "ssl_keyfile": str(key),
        "ssl_keyfile_password": PASSWORD,
    }


def ask(live, files, *, known: bool) -> httpx.Response:
    """A request of a client that trusts the certificate, and if `known` shows it as its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files["ssl_certfile"])
    if known:
        context.load_cert_chain(files["ssl_certfile"], files["ssl_keyfile"], PASSWORD)
    return httpx.get(f"https://127.0.0.1:{live.port}/version", verify=context, timeout=20)


def test_clients_that_trust_the_certificate_are_served(make_live, files):
    live = make_live(**files)
    assert live.settings.url.startswith("https://")
    assert ask(live, files, known=False).status_code == 200


def test_clients_must_show_a_certificate_where_authorities_are_named(make_live, files):
    live = make_live(**files, ssl_ca_certs=files["ssl_certfile"])
    assert ask(live, files, known=True).status_code == 200
    with pytest.raises(httpx.HTTPError):
        ask(live, files, known=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"ssl_certfile": "/nowhere/certificate.pem"},
        {"ssl_keyfile": "/nowhere/key.pem"},
        {"ssl_keyfile_password": "wrong"},
        {"ssl_ca_certs": "/nowhere/authorities.pem"},
    ],
)
def test_certificates_that_cannot_be_used_stop_the_start(files, changes):
    settings = ServerConfig(**{**files, **changes})
    with pytest.raises(ConfigError) as caught:
        make_server(nobody, settings)
    assert [
        name
        for name, file in changes.items()
        if "/" in file and f"{name}={file}" not in str(caught.value)
    ] == []
    assert "sesame" not in str(caught.value)


def test_settings_reach_the_http_server():
    config = make_server(
        nobody, ServerConfig(keep_alive_timeout=9, backlog=7, disable_access_log=True)
    ).config
    assert (config.timeout_keep_alive, config.backlog, config.access_log) == (9, 7, False)
    assert make_server(nobody, ServerConfig()).config.access_log


async def nobody(scope, receive, send) -> None:
    """No application."""
