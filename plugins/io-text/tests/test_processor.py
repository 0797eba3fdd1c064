"""The processor as used by the kernel: prompts in, text out, readable errors. Rows IP-1 and AF-3."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ModelError, PluginError, RequestError
from tenonry.info import ModelInfo
from tenonry.interfaces.io_processor import IOProcessorContext, read_prompt
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import load_class
from tenonry.sampling_params import PoolingParams, SamplingParams
from tenonry_io_text.processor import TextIOProcessor
from tenonry_io_text.prompt import checked_ids

pytestmark = pytest.mark.integration


@pytest.fixture
def processor(tokenizer_folders, make_processor):
    return make_processor(tokenizer_folders["llama"])


def ids_of(processor, prompt, params=None, **kwargs):
    found = processor.process_prompt(read_prompt(prompt), params or SamplingParams(), **kwargs)
    assert found.token_ids.dtype == np.int32
    return found.token_ids.tolist()


class TestPrompts:
    def test_text(self, processor):
        ids = ids_of(processor, "the cat")
        assert ids == processor.encode("the cat")
        assert ids == ids_of(processor, {"prompt": "the cat"})
        assert processor.process_prompt(read_prompt("the cat"), SamplingParams()).text == "the cat"
        assert ids_of(processor, "the cat", add_special_tokens=False) == ids[1:]
        assert ids_of(processor, {"prompt": "the cat", "add_special_tokens": False}) == ids[1:]

    @pytest.mark.parametrize(
        "ids", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), np.array([1, 2, 3], np.uint8)]
    )
    def test_token_ids(self, processor, ids):
        assert ids_of(processor, ids) == [1, 2, 3]
        assert ids_of(processor, {"prompt_token_ids": ids}) == [1, 2, 3]

    def test_ids_with_their_text(self, processor):
        found = processor.process_prompt(
            read_prompt({"prompt": "as seen", "prompt_token_ids": [5]}), SamplingParams()
        )
        assert (found.text, found.token_ids.tolist()) == ("as seen", [5])

    def test_truncation_keeps_the_end(self, processor):
        whole = ids_of(processor, "the cat sat on the mat")
        assert (
            ids_of(processor, {"prompt": "the cat sat on the mat", "truncate_prompt_tokens": 3})
            == whole[-3:]
        )
        assert ids_of(
            processor, {"prompt_token_ids": list(range(600)), "truncate_prompt_tokens": -1}
        ) == list(range(89, 600))
        assert ids_of(processor, {"prompt_token_ids": [7], "truncate_prompt_tokens": 3}) == [7]

    @pytest.mark.parametrize("name", ["prompt", "prompt_token_ids"])
    def test_truncation_by_the_names_of_transformers(self, processor, name):
        whole = list(range(600))
        prompt = {"prompt": "the cat sat " * 300} if name == "prompt" else {name: whole}
        short = ids_of(processor, {**prompt, "truncate_prompt_tokens": 3})
        assert ids_of(processor, {**prompt, "truncation": True, "max_length": 3}) == short
        cut = ids_of(processor, {**prompt, "truncation": True})
        assert cut == ids_of(processor, {**prompt, "truncate_prompt_tokens": -1})
        assert len(cut) == 511
        assert len(ids_of(processor, {**prompt, "truncation": False})) > 511

    def test_pooled_prompts_keep_their_beginning(self, processor):
        params = SamplingParams(pooling=PoolingParams())
        text = "the cat sat on the mat"
        whole = ids_of(processor, text)

        def cut(prompt, count):
            given = {**prompt, "truncate_prompt_tokens": count}
            return processor.process_prompt(read_prompt(given), params).token_ids.tolist()

        assert cut({"prompt": text}, 3) == whole[:3]
        assert cut({"prompt": text}, len(whole)) == cut({"prompt": text}, -1) == whole
        assert cut({"prompt_token_ids": list(range(600))}, -1) == list(range(512))
        assert cut({"prompt": text, "add_special_tokens": False}, 2) == whole[1:3]
        with pytest.raises(RequestError, match=r"=1 leaves nothing of the text.* adds 1 tokens"):
            cut({"prompt": text}, 1)

    def test_pairs_are_joined_and_cut_as_the_tokenizer_does_it(self, processor):
        params = SamplingParams(pooling=PoolingParams(task="score"))
        first, second = "the cat sat on the mat", "the mat"

        def pair(**fields):
            given = {"prompt": first, "text_pair": second, **fields}
            return processor.process_prompt(read_prompt(given), params)

        tokenizer = processor.get_tokenizer()
        whole = tokenizer(first, second)["input_ids"]
        assert pair().token_ids.tolist() == whole
        assert pair().features == {"pair_start": 0}  # this tokenizer has no types of tokens
        least = tokenizer.num_special_tokens_to_add(pair=True) + 2
        for keep in (least, least + 1, len(whole) - 1, len(whole), 512, -1):
            most = 512 if keep == -1 else keep
            expected = tokenizer(first, second, truncation="longest_first", max_length=most)
            found = pair(truncate_prompt_tokens=keep).token_ids.tolist()
            assert found == expected["input_ids"]
        assert pair().token_ids.tolist() == whole  # the tokenizer forgets how the last pair was cut
        with pytest.raises(
            RequestError, match=f"nothing of one of two texts; give at least {least}"
        ):
            pair(truncate_prompt_tokens=least - 1)
        for wrong, words in (
            ({"text_pair": "a\ud800"}, "character 1 of the text is the lone surrogate"),
            ({"text_pair": 3}, "'text_pair' is a int"),
            ({"text_pair": "x" * 200_000}, "200000 characters"),
            ({"prompt": None, "prompt_token_ids": [1]}, "beside a text"),
        ):
            with pytest.raises(RequestError, match=words):
                pair(**wrong)
        with pytest.raises(RequestError, match="a pair that is scored"):
            processor.process_prompt(
                read_prompt({"prompt": first, "text_pair": second}), SamplingParams()
            )

    def test_odd_characters_are_fine(self, processor):
        assert (
            processor.decode(ids_of(processor, "a\x00b\u200b\ufeff"), skip_special_tokens=True)
            == "a\x00b\u200b\ufeff"
        )

    @pytest.mark.parametrize(
        ("prompt", "words"),
        [
            ("", "the prompt is empty"),
            ({"prompt": ""}, "the prompt is empty"),
            ([], "the prompt is empty"),
            ({"prompt_token_ids": []}, "the prompt is empty"),
            ({}, "the prompt is {}"),
            ({"prompt": 3}, "'prompt' is a int"),
            ({"text": "x"}, "not supported: text"),
            ({"prompt": "x", "multi_modal_data": {}}, "not supported: multi_modal_data"),
            (3, "the prompt is 3"),
            (None, "the prompt is None"),
            (b"x", "the prompt is b'x'"),
            ([1, "x"], "a flat list of integers"),
            ([[1], [2, 3]], "a flat list of integers"),
            ([0, 5, 1000], "token id 1000 at position 2 .* from 0 to 999"),
            ([0, -1], "between 0 and 2147483647"),
            ("\ud800x", "character 0 of the text is the lone surrogate"),
            (
                {"prompt": "x", "truncate_prompt_tokens": 0},
                "truncate_prompt_tokens=0 is out of bounds",
            ),
            ({"prompt": "x", "truncate_prompt_tokens": 513}, "1 to 512"),
            ({"prompt": "x", "truncation": "left"}, "truncation='left' must be true or false"),
            (
                {"prompt": "x", "max_length": 5},
                "max_length=5 has no effect without truncation=True",
            ),
            ({"prompt": "x", "truncation": True, "max_length": 0}, "max_length=0 is out of bounds"),
            (
                {"prompt": "x", "truncation": True, "truncate_prompt_tokens": 3},
                "exclude each other",
            ),
            ({"prompt": "x", "padding": True}, "fields that are not supported: padding"),
            ({"prompt": "x", "truncate_prompt_tokens": True}, "truncate_prompt_tokens=True"),
            ({"prompt": "x", "add_special_tokens": 1}, "add_special_tokens=1"),
        ],
    )
    def test_bad_prompts_are_the_users_fault(self, processor, prompt, words):
        with pytest.raises(RequestError, match=words) as caught:
            processor.process_prompt(read_prompt(prompt), SamplingParams())
        assert caught.value.param

    def test_text_that_cannot_fit_is_not_even_tokenised(self, tokenizer_folders, make_processor):
        processor = make_processor(tokenizer_folders["llama"], max_model_len=8)
        with pytest.raises(
            RequestError, match="5000 characters; more than 4096 cannot fit into max_model_len=8"
        ):
            processor.process_prompt(read_prompt("x" * 5000), SamplingParams())
        assert ids_of(
            make_processor(tokenizer_folders["llama"], options={"max_prompt_chars": 3}), "abc"
        )

    @given(
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
            st.lists,
            max_leaves=6,
        )
    )
    def test_checked_ids_gives_ids_or_a_request_error(self, values):
        try:
            ids = checked_ids(values, 50)
        except RequestError:
            return
        assert ids.tolist() == values
        assert all(0 <= token_id < 50 for token_id in ids)


class TestBadWords:
    def test_both_forms_of_a_word(self, tokenizer_folders, make_processor):
        processor = make_processor(tokenizer_folders["byte_level"])
        found = processor.process_prompt(
            read_prompt("x"), SamplingParams(bad_words=["was"])
        ).bad_words
        assert [processor.decode(form) for form in found] == ["was", " was"]

    def test_space_that_is_a_token_of_its_own_is_left_out(self, tokenizer_folders, make_processor):
        processor = make_processor(tokenizer_folders["byte_level"])
        found = processor.process_prompt(
            read_prompt("x"), SamplingParams(bad_words=["world", " world"])
        ).bad_words
        assert [processor.decode(form) for form in found] == ["world"]

    @pytest.mark.parametrize("words", [["   "], ["cat", "\t"]])
    def test_word_without_tokens(self, processor, words):
        with pytest.raises(RequestError, match="no tokens") as caught:
            processor.process_prompt(read_prompt("x"), SamplingParams(bad_words=words))
        assert caught.value.param == "bad_words"


class TestText:
    def test_stream_follows_the_params(self, processor):
        ids = processor.encode("the cat sat", add_special_tokens=False)
        detokenizer = processor.make_detokenizer([1], SamplingParams(stop=["sat"]))
        assert detokenizer.push(ids) + detokenizer.finish() == "the cat "
        assert detokenizer.stop_reason == "sat"
        shown = processor.make_detokenizer(
            [1], SamplingParams(stop="sat", include_stop_str_in_output=True)
        )
        assert shown.push(ids) == "the cat sat"
        late = processor.make_detokenizer([1], SamplingParams(stop="the", min_tokens=2))
        assert late.push([*ids, *ids]).startswith("the cat sat")
        assert late.stop_reason == "the"
        assert processor.make_detokenizer([1], SamplingParams(detokenize=False)) is None
        raw = processor.make_detokenizer(ids, SamplingParams(skip_special_tokens=False))
        assert raw.push([2]) == "</s>"

    def test_decode_and_token_texts(self, processor):
        ids = processor.encode("the cat")
        assert processor.decode(ids) == "<s> the cat"
        assert processor.decode(np.array(ids), skip_special_tokens=True) == "the cat"
        assert "".join(processor.token_texts(ids)) == "<s> the cat"
        assert processor.token_bytes(ids) == [text.encode() for text in processor.token_texts(ids)]
        assert processor.token_bytes(ids, skip_special_tokens=True)[0] == b""

    def test_text_of_a_token_is_made_once(self, processor):
        ids = processor.encode("the cat")
        for first, second in zip(
            processor.token_texts(ids), processor.token_texts(ids), strict=True
        ):
            assert first is second

    def test_several_threads(self, processor):
        texts = [f"the cat number {index} sat" for index in range(64)]
        with ThreadPoolExecutor(8) as pool:
            found = list(
                pool.map(
                    lambda text: processor.process_prompt(read_prompt(text), SamplingParams()),
                    texts,
                )
            )
        assert [processor.decode(one.token_ids, skip_special_tokens=True) for one in found] == texts

    def test_get_tokenizer_is_the_one_that_users_know(self, processor):
        assert processor.get_tokenizer().encode("the cat") == processor.encode("the cat")
        assert processor.get_tokenizer() is processor.get_tokenizer()

    def test_shutdown(self, processor):
        processor.shutdown()
        with pytest.raises(RequestError):
            processor.encode("x")


class TestWithoutTokenizer:
    """Row AF-3: skip_tokenizer_init leaves ids in and ids out."""

    @pytest.fixture
    def bare(self, tmp_path, make_processor):
        return make_processor(tmp_path, skip_tokenizer_init=True)

    def test_ids_pass(self, bare):
        assert ids_of(bare, [1, 2]) == [1, 2]
        assert bare.make_detokenizer([1], SamplingParams()) is None

    def test_text_is_refused(self, bare):
        with pytest.raises(RequestError, match=r"skip_tokenizer_init.*prompt_token_ids"):
            bare.process_prompt(read_prompt("x"), SamplingParams())
        with pytest.raises(RequestError, match="skip_tokenizer_init"):
            bare.process_prompt(read_prompt([1]), SamplingParams(bad_words=["x"]))
        with pytest.raises(RequestError, match="skip_tokenizer_init"):
            bare.render_chat([{"role": "user", "content": "x"}])
        with pytest.raises(RequestError, match="skip_tokenizer_init"):
            bare.decode([1])
        with pytest.raises(ValueError, match="no tokenizer"):
            bare.get_tokenizer()


class TestWhereTheTokenizerIs:
    def context(self, model_path, **config):
        model = ModelInfo(
            name="m", path=str(model_path), architecture="A", max_model_len=64, vocab_size=1000
        )
        return IOProcessorContext(EngineConfig(model=str(model_path), **config), model)

    def test_model_resolved_by_another_plugin(self, tokenizer_folders):
        processor = TextIOProcessor(self.context(tokenizer_folders["llama"]))
        assert processor.decode([1]) == "<s>"

    def test_override(self, tokenizer_folders, tmp_path):
        context = self.context(tmp_path, tokenizer=str(tokenizer_folders["byte_level"]))
        assert TextIOProcessor(context).encode("the cat")

    def test_missing(self, tmp_path):
        with pytest.raises(ModelError, match="no tokenizer could be opened"):
            TextIOProcessor(self.context(tmp_path))


def test_found_by_name_and_options_are_checked(tokenizer_folders):
    config = EngineConfig(model="x")
    manager = PluginManager(discover=False)
    entry = manager.resolve("io_processor", PluginChoice(name="text"), config)
    assert load_class(entry) is TextIOProcessor
    with pytest.raises(PluginError, match="max_prompt_chars"):
        manager.resolve(
            "io_processor", PluginChoice(name="text", options={"max_prompt_chars": 0}), config
        )


def test_module_is_light():
    """The front end imports every chosen class before anything starts: nothing heavy may come with it."""
    code = (
        "import sys, tenonry_io_text.processor;"
        "heavy = ('torch', 'transformers', 'tokenizers', 'jinja2', 'huggingface_hub');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_building_needs_no_transformers(tokenizer_folders):
    code = (
        "import sys; from tenonry.config import EngineConfig; from tenonry.info import ModelInfo;"
        "from tenonry.interfaces.io_processor import IOProcessorContext, read_prompt;"
        "from tenonry.sampling_params import SamplingParams;"
        "from tenonry_io_text.processor import TextIOProcessor; path = sys.argv[1];"
        "model = ModelInfo(name='m', path=path, architecture='A', max_model_len=64, vocab_size=1000);"
        "io = TextIOProcessor(IOProcessorContext(EngineConfig(model=path), model));"
        "io.make_detokenizer(io.process_prompt(read_prompt('the'), SamplingParams()).token_ids, SamplingParams());"
        "print([name for name in ('torch', 'transformers', 'jinja2') if name in sys.modules])"
    )
    folder = str(tokenizer_folders["llama"])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, folder], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
