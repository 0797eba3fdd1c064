"""Chat messages to prompt text with the operator's or the model's template. Front end, in helper threads too."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from tenonry.errors import ConfigError, ModelError, RequestError
from tenonry_hf_hub import read_json, read_text
from tenonry_io_text.content import ChatImages, normalise_messages
from tenonry_io_text.forms import TemplateForms, find_forms
from tenonry_io_text.plain import plain
from tenonry_io_text.sandbox import ChatTemplate

DEFAULT, TOOL_USE = "default", "tool_use"
MAX_TEMPLATE_BYTES = 1 << 20
MAX_KWARGS = 64
NOTHING_TO_CONTINUE = (
    "continue_final_message is set, but the last message has no content to continue"
)
# What a request may not set through chat_template_kwargs, whatever the template reads.
RESERVED = frozenset({
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "conversation", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs",
    "raise_exception", "strftime_now", "namespace", "dict", "range", "lipsum", "cycler", "joiner",
})  # fmt: skip


def find_templates(folders: list[Path]) -> dict[str, str]:
    """Name → source of the templates in the first folder that has any: files of their own, then tokenizer_config.json.

    Raises ModelError for files that cannot be read.
    """
    for folder in folders:
        found = _template_files(folder) or _template_entries(folder)
        if found:
            return found
    return {}


def _template_files(folder: Path) -> dict[str, str]:
    files = {
        path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (folder / "chat_template.jinja").exists():
        files[DEFAULT] = folder / "chat_template.jinja"
    return {name: read_text(path, max_bytes=MAX_TEMPLATE_BYTES) for name, path in files.items()}


def _template_entries(folder: Path) -> dict[str, str]:
    for name in ("tokenizer_config.json", "chat_template.json"):
        entry = read_json(folder / name).get("chat_template") if (folder / name).exists() else None
        if isinstance(entry, str):
            return {DEFAULT: entry}
        if isinstance(entry, list):
            try:
                return {str(item["name"]): str(item["template"]) for item in entry}
            except (TypeError, KeyError):
                raise ModelError(
                    f"chat_template in {folder / name} must list objects with name and template"
                ) from None
    return {}


def operator_template(setting: str) -> str:
    """The source of `config.chat_template`: the text itself, or the file that it names. Raises ConfigError."""
    if "{" in setting or "\n" in setting:
        return setting
    try:
        return read_text(Path(setting).expanduser(), max_bytes=MAX_TEMPLATE_BYTES)
    except ModelError as error:
        raise ConfigError(
            f"chat_template: {error}; give the path of a Jinja file, or the template's text"
        ) from None


class ChatRenderer:
    """The templates of one model, compiled when first used, and the special tokens that they may print."""

    def __init__(
        self,
        sources: dict[str, str],
        special_tokens: dict[str, str],
        *,
        max_chars: int,
        max_messages: int,
    ) -> None:
        self._sources = sources
        self._special_tokens = special_tokens
        self._max_chars = max_chars
        self._max_messages = max_messages
        self._compiled: dict[str, ChatTemplate] = {}
        self._forms: dict[tuple[str, bool], TemplateForms] = {}  # of chats with tools, and without

    @property
    def source(self) -> str | None:
        """Template of chats with tools; None if there is no template."""
        return self._sources.get(TOOL_USE) or self._sources.get(DEFAULT)

    def render(
        self,
        messages: Any,
        *,
        tools: Any = None,
        documents: Any = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: dict[str, Any] | None = None,
        images: ChatImages | None = None,
    ) -> str:
        """The prompt's text; arguments as in `TextIOProcessor.render_chat`. Raises RequestError.

        `images` gets those of the messages; None where the model is shown none.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other: the last message is either "
                "continued or answered; set one of them to false",
                "continue_final_message",
            )
        name = TOOL_USE if tools and TOOL_USE in self._sources else DEFAULT
        template = self._template(name)
        if tools and "tools" not in template.variables:
            raise RequestError(
                "tools: the model's chat template does not show tools to the model; leave them out, or the operator "
                "can give another template with --chat-template",
                "tools",
            )
        forms = self._forms_of(name, template, with_tools=bool(tools))
        chat = normalise_messages(messages, forms, max_messages=self._max_messages, images=images)
        marker = ""
        if continue_final_message:
            _check_continued(plain(messages[-1]))
            marker = _mark_end(chat[-1])
        values = self._special_tokens | self._checked_kwargs(chat_template_kwargs, template)
        values |= {
            "messages": chat,
            "tools": _objects(tools, "tools"),
            "documents": _objects(documents, "documents"),
            "add_generation_prompt": not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
        }
        text = template.render(values, max_chars=self._max_chars)
        return _cut_at(text, marker) if marker else text

    def _template(self, name: str) -> ChatTemplate:
        if name not in self._sources:
            raise RequestError(_no_template(sorted(self._sources)), "messages")
        if name not in self._compiled:
            self._compiled[name] = compile_template(self._sources[name])
        return self._compiled[name]

    def _forms_of(self, name: str, template: ChatTemplate, *, with_tools: bool) -> TemplateForms:
        key = name, with_tools
        if key not in self._forms:
            self._forms[key] = find_forms(template, self._special_tokens, with_tools=with_tools)
        return self._forms[key]

    def _checked_kwargs(self, given: Any, template: ChatTemplate) -> dict[str, Any]:
        """Those that the template reads: others cannot matter, and clients send one set to many models."""
        if given is None:
            return {}
        if not isinstance(given, dict) or len(given) > MAX_KWARGS:
            raise RequestError(
                f"chat_template_kwargs must be an object of at most {MAX_KWARGS} entries",
                "chat_template_kwargs",
            )
        forbidden = sorted(
            name for name in given if name in RESERVED or name in self._special_tokens
        )
        if forbidden:
            raise RequestError(
                f"chat_template_kwargs must not set {', '.join(forbidden)}; use the request's own field instead",
                "chat_template_kwargs",
            )
        return {name: plain(value) for name, value in given.items() if name in template.variables}


def compile_template(source: str) -> ChatTemplate:
    """Raises RequestError if the model's template is none."""
    import jinja2

    try:
        return ChatTemplate(source)
    except jinja2.TemplateSyntaxError as error:
        raise RequestError(
            f"the chat template is not valid Jinja: {error} (line {error.lineno}); the operator can give another one "
            "with --chat-template",
            "messages",
        ) from None


def _no_template(names: list[str]) -> str:
    if names:
        return f"the model has chat templates named {', '.join(names)}, but no default one; give one with --chat-template"  # noqa: E501
    return (
        "the model has no chat template; use a plain prompt (/v1/completions), or the operator can give a template "
        "with --chat-template FILE"
    )


def _objects(values: Any, param: str) -> Any:
    if values is None:
        return None
    values = plain(values)
    if not isinstance(values, list) or not all(isinstance(item, dict) for item in values):
        raise RequestError(f"{param} must be a list of objects", param)
    return values


def _check_continued(message: dict[str, Any]) -> None:
    """Raises RequestError for a last message that cannot be continued."""
    if message.get("tool_calls"):
        raise RequestError(
            "continue_final_message is set, but the last message holds tool calls, which cannot be continued; "
            "add their results, or leave the calls out",
            "continue_final_message",
        )
    if message.get("content") in (None, []):
        raise RequestError(NOTHING_TO_CONTINUE, "messages")


def _mark_end(message: dict[str, Any]) -> str:
    """Put a random mark and a space at the end of a message; returns the mark."""
    mark = f"end{secrets.token_hex(8)}"
    content = message["content"]
    if isinstance(content, str):
        message["content"] = f"{content}{mark} "
    elif "text" in content[-1]:
        content[-1]["text"] += f"{mark} "
    else:
        raise RequestError(NOTHING_TO_CONTINUE, "messages")
    return mark


def _cut_at(text: str, mark: str) -> str:
    """The text up to the mark. A template that trims messages took the space after the mark: then trim here too."""
    at = text.rfind(mark)
    if at < 0:
        raise RequestError(
            "continue_final_message is set, but the model's chat template does not print the last message",
            "messages",
        )
    return text[:at] if text[at + len(mark) :].startswith(" ") else text[:at].rstrip()
