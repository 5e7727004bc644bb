"""Tokenizers of pretrained models: special tokens, several ends, chats, and what is refused."""

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from grpo_jax.tasks import Tokenizer, pretrained_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<s>{{ m['role'] }} {{ m['content'] }}</s>{% endfor %}\n"
    "{% if add_generation_prompt %}{{ bos_token }}model {% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    letters = [*"abcdelmorsu ", "<s>", "</s>", "<stop>"]
    vocabulary = {letter.replace(" ", "Ġ"): index for index, letter in enumerate(letters)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    backend.add_special_tokens(["<s>", "</s>", "<stop>"])
    backend.enable_padding(length=40)
    backend.enable_truncation(2)
    backend.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": TEMPLATE})
    return tmp_path


def write(folder, fields):
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


def test_text_goes_there_and_back_with_neither_padding_nor_truncation(folder):
    tokenizer = pretrained_tokenizer(folder, (13, 14))
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.vocabulary_size == 15
    assert tokenizer.encode("a bed") == [0, 11, 1, 4, 3]
    assert tokenizer.decode(tokenizer.encode("a bed")) == "a bed"


def test_special_tokens_are_read_and_shown_and_every_end_ends(folder):
    tokenizer = pretrained_tokenizer(folder, (13, 14))
    assert tokenizer.encode("<s>a</s>") == [12, 0, 13]
    assert tokenizer.decode([12, 0, 13, 1]) == "<s>a"
    assert tokenizer.decode([0, 14, 1]) == "a"
    assert pretrained_tokenizer(folder, (14,)).decode([0, 13, 1]) == "a</s>b"


def test_the_pad_token_is_the_first_end_unless_there_is_one(folder):
    assert pretrained_tokenizer(folder, (13, 14)).pad_id == 13
    write(folder, {"pad_token": "<stop>"})
    assert pretrained_tokenizer(folder, (13,)).pad_id == 14


def test_chats_are_written_as_the_template_says(folder):
    tokenizer = pretrained_tokenizer(folder, (13,))
    assert tokenizer.chat([{"role": "user", "content": "a b"}]) == "<s>user a b</s><s>model "
    with pytest.raises(ValueError, match="no tools"):
        tokenizer.chat([{"role": "tool", "content": "a"}])


def test_a_template_file_goes_before_the_config_and_lists_have_a_default(folder):
    write(folder, {"chat_template": [{"name": "default", "template": "one"}, {"name": "rag", "template": "two"}]})
    assert pretrained_tokenizer(folder, (13,)).chat([]) == "one"
    (folder / "chat_template.jinja").write_text("file")
    assert pretrained_tokenizer(folder, (13,)).chat([]) == "file"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% set x = messages.append(1) %}",
    ],
)
def test_a_template_reaches_nothing_outside_itself(folder, attack):
    write(folder, {"chat_template": attack})
    with pytest.raises(ValueError, match="the chat template refuses"):
        pretrained_tokenizer(folder, (13,)).chat([{"role": "user", "content": "a"}])


def test_what_is_missing_is_named(folder, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json: not found"):
        pretrained_tokenizer(tmp_path_factory.mktemp("empty"), (0,))
    for ends in ((), (15,)):
        with pytest.raises(ValueError, match="must be tokens of the vocabulary, 0 to 14"):
            pretrained_tokenizer(folder, ends)
    write(folder, {})
    with pytest.raises(ValueError, match="no chat template"):
        pretrained_tokenizer(folder, (13,)).chat([])
