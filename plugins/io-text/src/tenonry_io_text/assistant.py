"""Earlier answers in the form that a template reads: empty content with calls, and reasoning. Front end."""

from __future__ import annotations

from typing import Any

from tenonry_io_text.forms import REASONING, EmptyContent, TemplateForms, text_parts

PLAN = "tool_plan"  # reasoning before calls, in Cohere's templates
Message = dict[str, Any]


def without_thinking(message: Message) -> Message:
    """The message with parts of thinking moved out of its content, unless it has reasoning already."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    thoughts = [
        part for part in content if isinstance(part, dict) and part.get("type") == "thinking"
    ]
    if not thoughts:
        return message
    text = "\n".join(_thinking_text(part.get("thinking")) for part in thoughts)
    rest = [part for part in content if part not in thoughts]
    return {REASONING[0]: text, **message, "content": rest}


def _thinking_text(value: Any) -> str:
    """Thinking as a string, or as parts of text in Mistral's form."""
    parts = value if isinstance(value, list) else [value]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def template_answer(message: Message, given: Message, forms: TemplateForms) -> Message:
    """The message as the template reads it. `given`: as the client sent it, null fields included."""
    reasoning = _reasoning(message)
    if message.get("tool_calls"):
        if reasoning and forms.merges_thinking and message.get("content"):
            message, reasoning = _merged(message, reasoning)
        message = _with_calls(message, given, forms)
    elif "content" not in message:
        text = str(message.get("refusal", ""))
        message["content"] = forms.of_role("assistant").of_text(text)
    return _with_reasoning(message, reasoning, forms) if reasoning else message


def _reasoning(message: Message) -> str:
    found = (message[name] for name in REASONING if isinstance(message.get(name), str))
    return next(filter(None, found), "")


def _merged(message: Message, reasoning: str) -> tuple[Message, str]:
    """Content as the end of the reasoning."""
    text = f"{reasoning}\n{content_text(message.pop('content'))}"
    names = (name for name in REASONING if name in message)
    return {**message, **dict.fromkeys(names, text)}, text


def _with_calls(message: Message, given: Message, forms: TemplateForms) -> Message:
    """A message with calls; content that is empty as it was given, or else as the template reads it."""
    if content_text(message.get("content", "")):
        return message
    kind = EmptyContent.ABSENT
    if "content" in given:
        kind = EmptyContent.NULL if given["content"] is None else EmptyContent.TEXT
    return (kind if kind in forms.empty else forms.empty[0]).put(message)


def _with_reasoning(message: Message, reasoning: str, forms: TemplateForms) -> Message:
    if forms.thinking_parts:
        content = message.get("content") or []
        parts = text_parts(content) if isinstance(content, str) else content
        return {**message, "content": [{"type": "thinking", "thinking": reasoning}, *parts]}
    names = (*REASONING, PLAN) if "tool_calls" in message else REASONING
    return {**message, **{name: message.get(name) or reasoning for name in names}}


def content_text(content: Any) -> str:
    """The text of a content; "." for an image, which is not empty."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", ".") for part in content)
