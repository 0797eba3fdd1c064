from __future__ import annotations

import pytest

from tenonry import LLM, SamplingParams
from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, RequestError
from tenonry.interfaces.io_processor import read_prompt
from tenonry.sampling_params import PoolingParams
from tenonry_io_template.processor import TemplateIOProcessor
from tenonry_io_text.options import TextOptions

PARAMS = SamplingParams()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("Q: $prompt\nA:", "template.txt"),
        ("Q: ${prompt}\nA:\n", "template"),
        ("Q: {{ prompt }}\nA:\n", "template.jinja"),
        ("{% if prompt %}Q: {{ prompt }}\nA:{% endif %}", "template.j2"),
    ],
)
def test_prompt_is_rendered_before_it_is_tokenised(make_processor, source, name):
    processor = make_processor(source, name)
    found = processor.process_prompt(read_prompt("why?"), PARAMS)
    assert found.text == "Q: why?\nA:"
    assert found.token_ids.tolist() == processor.encode("Q: why?\nA:")


def test_prompt_is_text_and_never_a_template(make_processor):
    for source, name in (("$prompt!", "a.txt"), ("{{ prompt }}!", "a.jinja")):
        processor = make_processor(source, name)
        found = processor.process_prompt(read_prompt("{{ 7 * 7 }} $prompt $$"), PARAMS)
        assert found.text == "{{ 7 * 7 }} $prompt $$!"


def test_options_of_a_prompt_still_count(make_processor):
    processor = make_processor("a b c d $prompt")
    prompt = read_prompt({"prompt": "e f", "truncate_prompt_tokens": 2})
    whole = processor.encode("a b c d e f")
    assert processor.process_prompt(prompt, PARAMS).token_ids.tolist() == whole[-2:]
    for special in (False, True):
        prompt = read_prompt({"prompt": "e f", "add_special_tokens": special})
        assert processor.process_prompt(prompt, PARAMS).text == "a b c d e f"


def test_token_ids_chats_and_pairs_stay_as_they_are(make_processor):
    processor = make_processor("Q: $prompt", chat_template="{{ messages[0].content }}")
    ids = processor.process_prompt(read_prompt([3, 4, 5]), PARAMS)
    assert ids.token_ids.tolist() == [3, 4, 5]
    chat = processor.render_chat([{"role": "user", "content": "hello"}])
    assert processor.process_prompt(read_prompt(chat), PARAMS).text == "hello"
    special = read_prompt({**chat, "add_special_tokens": True})
    assert processor.process_prompt(special, PARAMS).text == "hello"
    pooled = SamplingParams(pooling=PoolingParams())
    pair = processor.process_prompt(read_prompt({"prompt": "a", "text_pair": "b"}), pooled)
    assert "Q" not in (pair.text or "")


def test_template_that_fails_fails_the_request(make_processor):
    processor = make_processor("{{ prompt[9] + 1 }}", "a.jinja")
    with pytest.raises(RequestError, match="the prompt template failed"):
        processor.process_prompt(read_prompt("short"), PARAMS)


def test_template_that_refuses_a_prompt_fails_the_request(make_processor):
    source = "{% if prompt == 'no' %}{{ raise_exception('not this') }}{% endif %}{{ prompt }}"
    processor = make_processor(source, "a.jinja")
    assert processor.process_prompt(read_prompt("yes"), PARAMS).text == "yes"
    with pytest.raises(RequestError, match="not this"):
        processor.process_prompt(read_prompt("no"), PARAMS)


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("Q: $question", "a.txt", "uses question; its one variable is prompt"),
        ("Q: {{ question }} {{ prompt }}", "a.jinja", "uses question; its one variable is prompt"),
        ("Q:", "a.txt", "does not use prompt; every prompt would be alike"),
        ("costs 5 $ $prompt", "a.txt", r"a \$ without a name; write \$\$"),
        ("{% if %}", "a.jinja", "is no Jinja template"),
    ],
)
def test_file_that_is_no_template_ends_the_start(make_processor, source, name, message):
    with pytest.raises(ConfigError, match=f"prompt_template=.*{message}"):
        make_processor(source, name)


def test_missing_file_and_missing_setting_end_the_start(tmp_path):
    missing = EngineConfig(model="demo", prompt_template=str(tmp_path / "none.txt"))
    with pytest.raises(ConfigError, match=r"none\.txt cannot be read: No such file"):
        TemplateIOProcessor.check(missing, TextOptions())
    with pytest.raises(ConfigError, match="needs a file: --prompt-template FILE"):
        TemplateIOProcessor.check(EngineConfig(model="demo"), TextOptions())
    (tmp_path / "latin.txt").write_bytes(b"\xff $prompt")
    latin = EngineConfig(model="demo", prompt_template=str(tmp_path / "latin.txt"))
    with pytest.raises(ConfigError, match=r"latin\.txt is no UTF-8"):
        TemplateIOProcessor.check(latin, TextOptions())


@pytest.mark.integration
def test_engine_computes_the_rendered_prompt(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("Once upon a time, $prompt")
    params = SamplingParams(temperature=0, max_tokens=4)
    with LLM(model="demo", io_processor="template", prompt_template=str(path)) as llm:
        (rendered,) = llm.generate(["a fox"], params)
        (whole,) = llm.generate([list(rendered.prompt_token_ids)], params)
    assert rendered.prompt == "Once upon a time, a fox"
    assert rendered.outputs[0].token_ids == whole.outputs[0].token_ids
