"""Chat templates of the kinds that models bring, and chats for them."""

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
