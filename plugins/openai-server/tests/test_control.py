"""Operator routes exist only if enabled, require a key, and read listed sources only."""

from __future__ import annotations

import pytest

from tenonry_openai_server.errors import APIError
from tenonry_openai_server.routes.control import allowed_source
from tenonry_openai_server.settings import ServerConfig


def test_they_need_a_key_and_a_flag():
    with pytest.raises(ValueError, match="enable_operator_routes needs an api_key"):
        ServerConfig(enable_operator_routes=True)
    with pytest.raises(ValueError, match="weight_source is for /update_weights"):
        ServerConfig(weight_source=("/tmp",))
    assert ServerConfig(enable_operator_routes=True, api_key=("k",)).enable_operator_routes


def test_profiles_of_the_server_need_these_routes_and_one_server():
    with pytest.raises(ValueError, match="front_end_profile_dir is for /start_profile"):
        ServerConfig(front_end_profile_dir="x")
    with pytest.raises(ValueError, match="front_end_profile_gzip needs a front_end_profile_dir"):
        ServerConfig(front_end_profile_gzip=True)
    served = {"enable_operator_routes": True, "api_key": ("k",), "front_end_profile_dir": "x"}
    with pytest.raises(
        ValueError, match=r"api_server_count=2 API servers, .* give api_server_count=1"
    ):
        ServerConfig(**served, api_server_count=2)
    assert ServerConfig(**served).front_end_profile_dir == "x"


def test_without_the_flag_there_is_no_such_route(make_api):
    api = make_api(api_key=("right",))
    answer = api.post("/sleep", {}, headers={"authorization": "Bearer right"})
    assert answer.status_code == 404


class TestSources:
    @pytest.fixture
    def settings(self, tmp_path):
        (tmp_path / "in").mkdir()
        return ServerConfig(
            enable_operator_routes=True,
            api_key=("k",),
            weight_source=(str(tmp_path / "in"), "shm:rl-"),
        )

    def test_a_file_and_a_folder_inside_and_listed_memory(self, settings, tmp_path):
        file = tmp_path / "in" / "a.safetensors"
        file.write_bytes(b"")
        assert allowed_source(str(file), settings) == str(file)
        assert allowed_source(str(tmp_path / "in"), settings) == str(tmp_path / "in")
        assert allowed_source("shm:rl-1", settings) == "shm:rl-1"

    def test_a_folder_with_a_link_that_leaves_it(self, settings, tmp_path):
        (tmp_path / "out.safetensors").write_bytes(b"")
        (tmp_path / "in" / "b.safetensors").symlink_to(tmp_path / "out.safetensors")
        with pytest.raises(APIError, match="not in what the operator listed"):
            allowed_source(str(tmp_path / "in"), settings)

    @pytest.mark.parametrize(
        "source", ["/etc/passwd", "missing", "shm:other", "shm:rl-/../x", "in\0x", ""]
    )
    def test_all_others(self, settings, source):
        with pytest.raises(APIError):
            allowed_source(source, settings)
