"""Typical chat templates of models, and chats for them."""

from __future__ import annotations

CHATML = """{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] | default('', true) | trim + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}"""
TOOLS = """{{ bos_token }}{% if tools %}Tools: {{ tools | tojson(indent=2) }}
{% endif %}{% if documents %}{% for d in documents %}[{{ d.title }}] {{ d.text }}
{% endfor %}{% endif %}
{% for message in messages %}
{% if message.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}
{% if message.tool_calls is defined %}
{% for call in message.tool_calls %}call {{ call.function.name }}({{ call.function.arguments | tojson }})
{% endfor %}
{% else %}
{{ message.role }}: {{ message.content }}{{ eos_token }}
{% endif %}
{% endfor %}"""
STATE = """{% set ns = namespace(last='', count=0) %}
{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}{% if m.role == 'stop' %}{% break %}{% endif %}
{% set ns.last = m.content %}{% set ns.count = ns.count + 1 %}
{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}
{{ ns.last }} {{ ns.count }} {{ dict(a=1, b='é') | tojson }} {{ strftime_now('%Y') }}
{{ thinking | default('unset') }}"""
PARTS = """{% for m in messages %}{{ m.role }}:{% for part in m.content %}
{% if part.type == 'text' %}<{{ part.text }}>{% endif %}
{% endfor %}
{% endfor %}"""
EITHER = """{% for m in messages %}{% set content = m['content'] %}{{ m.role }}:
{% if content is string %}{{ content }}{% else %}{% for part in content %}<{{ part['text'] }}>{% endfor %}{% endif %}
{% endfor %}"""
THINKING = """{% for m in messages %}{{ m.role }}
{%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}: {{ m.content }}
{% endfor %}{% if enable_thinking is defined and not enable_thinking %}[off]{% endif %}"""

CHAT = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Hello <b>& you</b> 你好"},
    {"role": "assistant", "content": "Hi!", "name": None},
    {"role": "user", "content": " What is\n2+2? "},
]
CALL = {
    "type": "function",
    "id": "1",
    "function": {"name": "add", "arguments": {"a": 1, "b": [2, "é"]}},
}
TOOL_CHAT = [
    {"role": "user", "content": "add"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "1"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": 'Adds "numbers" <b>',
        "parameters": {"type": "object"},
    },
}


def text_of(processor, messages, **kwargs):
    """The prompt that a processor renders."""
    return processor.render_chat(messages, **kwargs)["prompt"]


# One template per way of reading calls, content and reasoning that models bring.
NULL_BESIDE_CALLS = """{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}
{% for call in m.tool_calls %}{{ '[' + call.function.name + '|' + call.function.arguments + ']' }}{% endfor %}
{% else %}{{ m.role + ':' + m.content }}{% endif %}{% endfor %}"""
ITEMS = """{% for m in messages %}{{ m.role }}:{{ '' + (m.content or '') }}{% for call in m.tool_calls or [] %}
<{{ call.function.name }}{% for key, value in call.function.arguments | items %} {{ key }}={{ value }}{% endfor %}>
{%- endfor %};{% endfor %}"""
PRINTED_CONTENT = """{% for m in messages %}{{ m.role }}:{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %};{% endfor %}"""
LOOPED_CONTENT = """{% for m in messages %}{{ m.role }}:{% for part in m.content %}{{ part.text }}{% endfor %}
{%- for call in m.tool_calls or [] %}({{ call.function.arguments | tojson }}){% endfor %};{% endfor %}"""
CALLS_IN_CONTENT = """{% for m in messages %}{% if m.role == 'tool_calls' or m.tool_calls is defined %}
{% set calls = m.tool_calls if m.tool_calls is defined else m.content %}
{% for call in calls %}{{ call.function | tojson }}{% endfor %}
{% else %}{{ '[' + m.content + ']' }}{% endif %}{% endfor %}"""
FIRST_PART_OF_SYSTEM = """{% for m in messages %}{% if m.role == 'system' %}
{{ m.content if m.content is string else m.content[0].text }}|
{%- elif m.content is string %}{{ m.content }};{% else %}
{% for part in m.content %}{{ part.text }}{% endfor %};{% endif %}{% endfor %}"""
ONE_PART = """{% for m in messages %}{{ m.role }}:{{ m.content[0].text }};{% endfor %}"""
NINE_CHARACTERS = """{% for m in messages %}{% for call in m.tool_calls or [] %}
{% if call.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{{ call.id }}({{ call.function.arguments | tojson }}){% else %}
{{ m.role }}:{{ m.tool_call_id | default('') }}:{{ m.content }};{% endfor %}{% endfor %}"""
THINKING_PARTS = """{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}
{% for part in m.content %}{% if part.type == 'thinking' %}<{{ part.thinking }}>{% else %}{{ part.text }}{% endif %}
{% endfor %}{% endif %};{% endfor %}"""
EITHER_OR = """{% for m in messages %}{% if m.tool_calls %}
{% if m.content and m.thinking %}{{ raise_exception('content or thinking') }}{% endif %}
<{{ m.thinking or m.content }}>{{ m.tool_calls[0].function.arguments | tojson }}{% else %}
{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"""
PLAN = """{% for m in messages %}{{ m.role }}:{% if m.tool_calls %}{{ m.tool_plan }}>
{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %};{% endfor %}"""
