"""The connector `peer` under the conformance suite of its kind: alone, it changes nothing."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.kv_connector import KVConnectorRole
from tenonry.transport.keys import CurveKeys
from tenonry_kv_connectors.peer.connector import PeerConnector, PeerOptions
from tenonry_testkit.kv_connector import KVConnectorContract


@pytest.fixture(scope="module")
def key_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(CurveKeys.generate().encode())
    path.chmod(0o600)
    return str(path)


class TestPeer(KVConnectorContract):
    kv_connector = "peer"
    brings_hits = False  # a prompt is fetched where a request says so
    effort = 0.4
    config: ClassVar = {}

    @pytest.fixture(autouse=True)
    def _keys(self, key_file, monkeypatch):
        monkeypatch.setattr(type(self), "config", {"auth_key_file": key_file})

    def test_halves_name_what_they_lack(self, tmp_path):
        with pytest.raises(RuntimeError, match="worker half"):
            self.build(KVConnectorRole.WORKER, tmp_path).build_metadata()
        with pytest.raises(RuntimeError, match="bind"):
            self.build(KVConnectorRole.SCHEDULER, tmp_path).poll()


def test_it_is_refused_without_keys_and_with_keys_that_others_can_read(tmp_path):
    with pytest.raises(ConfigError, match="tenonry keys FILE"):
        PeerConnector.check(EngineConfig(model="fake"), PeerOptions())
    path = tmp_path / "keys"
    path.write_text(CurveKeys.generate().encode())
    path.chmod(0o644)
    config = EngineConfig(model="fake", auth_key_file=str(path))
    with pytest.raises(ConfigError, match="chmod 600"):
        PeerConnector.check(config, PeerOptions())
