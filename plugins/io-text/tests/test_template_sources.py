"""Sources of chat templates: the operator, or the model's folder."""

from __future__ import annotations

import json

import pytest
from chat_templates import CHAT, CHATML, TOOL, text_of

from tenonry.errors import ConfigError, ModelError, RequestError
from tenonry_io_text.chat import find_templates


class TestWhereTemplatesComeFrom:
    def test_none(self, tokenizer_folders, make_processor):
        with pytest.raises(
            RequestError, match=r"no chat template; use a plain prompt .*--chat-template"
        ) as caught:
            make_processor(tokenizer_folders["llama"]).render_chat(CHAT)
        assert caught.value.param == "messages"

    def test_operators_file_and_text(self, chat, tmp_path):
        (tmp_path / "t.jinja").write_text(CHATML)
        assert text_of(chat(str(tmp_path / "t.jinja")), CHAT) == text_of(chat(CHATML), CHAT)

    def test_operators_mistakes_stop_the_start(self, chat, tmp_path):
        with pytest.raises(ConfigError, match=r"nowhere\.jinja does not exist"):
            chat(str(tmp_path / "nowhere.jinja"))
        with pytest.raises(ConfigError, match=r"not valid Jinja: .* \(line 2\)"):
            chat("{{ 1 }}\n{% for %}")

    def test_the_models_own_are_searched_in_order(self, tmp_path):
        config = tmp_path / "tokenizer_config.json"
        assert find_templates([tmp_path]) == {}
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "legacy"}))
        assert find_templates([tmp_path]) == {"default": "legacy"}
        config.write_text(json.dumps({"chat_template": "entry"}))
        assert find_templates([tmp_path]) == {"default": "entry"}
        config.write_text(
            json.dumps(
                {
                    "chat_template": [
                        {"name": "default", "template": "a"},
                        {"name": "rag", "template": "b"},
                    ]
                }
            )
        )
        assert find_templates([tmp_path]) == {"default": "a", "rag": "b"}
        (tmp_path / "chat_template.jinja").write_text("file")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
        assert find_templates([tmp_path / "other", tmp_path]) == {
            "default": "file",
            "tool_use": "tools",
        }

    def test_malformed_entry(self, tmp_path):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": [{"template": "a"}]})
        )
        with pytest.raises(ModelError, match="name and template"):
            find_templates([tmp_path])

    @pytest.fixture
    def named(self, tokenizer_folders, make_processor, tmp_path):
        def make(**templates):
            entries = [{"name": name, "template": text} for name, text in templates.items()]
            folder = tmp_path / "named"
            folder.mkdir()
            for path in tokenizer_folders["llama"].iterdir():
                (folder / path.name).write_bytes(path.read_bytes())
            config = json.loads((folder / "tokenizer_config.json").read_text())
            (folder / "tokenizer_config.json").write_text(
                json.dumps(config | {"chat_template": entries})
            )
            return make_processor(folder)

        return make

    def test_named_templates(self, named):
        processor = named(
            default="plain {{ eos_token }}", tool_use="with {{ tools | length }} tools"
        )
        assert text_of(processor, CHAT) == "plain </s>"
        assert text_of(processor, CHAT, tools=[TOOL]) == "with 1 tools"
        assert processor.chat_template() == "with {{ tools | length }} tools"
        assert text_of(processor, CHAT, tools=[]) == "plain </s>"

    def test_no_default_among_the_named(self, named):
        with pytest.raises(RequestError, match="templates named rag, but no default"):
            named(rag="x").render_chat(CHAT)

    def test_broken_template_of_the_model(self, named):
        with pytest.raises(RequestError, match="not valid Jinja"):
            named(default="{% for %}").render_chat(CHAT)
