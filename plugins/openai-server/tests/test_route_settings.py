"""Settings that a third party's route brings: flags, variables, file, help and what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tenonry.cli import main, make_parser
from tenonry.errors import ConfigError
from tenonry_openai_server.hosting.settings import hosted_models
from tenonry_openai_server.settings import ServerConfig, configs_from_arguments
from tenonry_testkit.plugins import TmpPlugins

SOURCE = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router

from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings


class GreetSettings(PluginSettings):
    greet_word: str = setting("hello", alias="-G")
    \"\"\"Word of the greeting.\"\"\"
    greet_times: int = setting(1, ge=1, le=3)
    \"\"\"Number of greetings.\"\"\"


class EngineDeathSettings(PluginSettings):
    max_num_seqs: int = 1
    \"\"\"Taken.\"\"\"


def build(context):
    async def hello(request):
        word = context.settings.greet_word
        return PlainTextResponse(" ".join([word] * context.settings.greet_times))

    return Router([Route("/hello", hello)])


def taken(context):
    return Router()


build.Settings = GreetSettings
taken.Settings = EngineDeathSettings
"""
GREET = "route 'greet' (acme_greet:build, acme-greet 1.2)"
TAKEN = "route 'taken' (acme_greet:taken, acme-greet 1.2)"
Read = Callable[..., ServerConfig]


@pytest.fixture(autouse=True)
def _installed(tmp_path, no_outside_settings):
    points = {"greet": "acme_greet:build", "taken": "acme_greet:taken"}
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        plugins.distribution(
            "acme-greet",
            "1.2",
            requires=["tenonry>=0.1"],
            entry_points={"tenonry.routes": points},
            modules={"acme_greet": SOURCE},
        )
        yield


@pytest.fixture
def read(tmp_path) -> Read:
    def read(*words: str, file: str = "") -> ServerConfig:
        if file:
            path = tmp_path / "c.yaml"
            path.write_text(file)
            words = (*words, "--config", str(path))
        args = make_parser("serve")[0].parse_args(["demo", *words])
        config, settings = configs_from_arguments(args)
        assert not {"greet_word", "greet_times"} & (config.model_extra or {}).keys()
        return settings

    return read


def greeting(make_api, settings: ServerConfig) -> str:
    again = ServerConfig.model_validate_json(settings.model_dump_json())  # as API servers get it
    text: str = make_api(**again.model_dump()).get("/plugins/greet/hello").text
    return text


def test_flags_variables_and_file(make_api, read, monkeypatch):
    chosen = ("--route", "greet")
    assert greeting(make_api, read(*chosen)) == "hello"
    assert greeting(make_api, read(*chosen, "--greet-word", "hi", "--greet-times=2")) == "hi hi"
    assert greeting(make_api, read(file="route: [greet]\ngreet-word: oh\n")) == "oh"
    monkeypatch.setenv("TENONRY_GREET_WORD", "ahoy")
    assert greeting(make_api, read(*chosen, file="greet_word: oh\ngreet_times: 3\n")) == (
        "ahoy ahoy ahoy"
    )
    monkeypatch.setenv("TENONRY_ROUTE", "greet")
    assert greeting(make_api, read("-G", "yo")) == "yo"


def test_route_of_a_file(make_api, read, tmp_path):
    path = tmp_path / "greet.py"
    path.write_text(SOURCE)
    settings = read("--route", f"{path}:build", "--greet-word", "hi")
    assert greeting(make_api, settings) == "hi"


def test_help_has_a_heading_of_the_route(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "demo", "--route", "greet", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "route greet (acme-greet): --greet-word GREET_WORD, -G GREET_WORD Word of the" in text
    assert "--greet-times N Number of greetings. [default: 1; env: TENONRY_GREET_TIMES]" in text
    assert "--page" not in text  # a route that is not chosen


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--route", "greet", "--greet-times", "4"], "greet_times=4: "),
        (["--greet-word", "x"], f"--greet-word belongs to {GREET}; choose it with --route greet"),
        (["--route", "taken"], "both claim the setting 'max_num_seqs'; rename it, or choose another plugin"),
        (["--route", "nothing"], "no route is called 'nothing'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_at_the_start(words, text, capsys, monkeypatch):
    assert main(["serve", "demo", *words]) == 1
    assert text in capsys.readouterr().err


def test_keys_of_a_file_are_checked_alike(read):
    with pytest.raises(ConfigError, match="greet_word belongs to route 'greet'"):
        read(file="greet_word: x")
    with pytest.raises(ConfigError, match="unknown setting 'greet_wrd'; did you mean 'greet_word'"):
        read(file="route: [greet]\ngreet_wrd: x")


def test_unknown_settings_of_the_server_are_refused(make_api):
    with pytest.raises(ConfigError, match="unknown setting 'root_pth'; did you mean 'root_path'"):
        make_api(root_pth="/x")


def test_several_models_share_the_routes(make_api, read):
    args = make_parser("serve")[0].parse_args(
        ["demo", "smollm2", "--route", "greet", "--greet-word", "hi"]
    )
    hosted = hosted_models(args)
    assert hosted is not None
    for spec in hosted.specs:
        assert greeting(make_api, spec.settings) == "hi"
        assert "greet_word" not in (spec.config.model_extra or {})


def test_help_and_flags_of_own_routes_import_no_server():
    before = {name for name in sys.modules if name.startswith("tenonry_route")}
    make_parser("serve")[0].parse_args(["demo", "--no-page"])
    after = {name for name in sys.modules if name.startswith("tenonry_route")}
    assert after - before <= {"tenonry_route_page", "tenonry_route_page.settings"}
