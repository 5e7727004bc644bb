"""A tokenizer small enough to read, as a checkpoint would bring it."""

import json

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

SPECIAL = ("<s>", "</s>", "<pad>")
LETTERS = "0123456789+-*/= abcdefghijklmnopqrstuvwxyz.?"
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def save_tokenizer(folder, template=TEMPLATE, begin=True):
    """Writes tokenizer.json and tokenizer_config.json of a tokenizer of single letters; ids 0 to 2 are special."""
    letters = [*LETTERS, "[", "]"]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *letters])}
    vocabulary["Ġ"] = vocabulary.pop(" ")
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    backend.add_special_tokens(list(SPECIAL))
    if begin:
        backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])  # pyright: ignore
    backend.save(str(folder / "tokenizer.json"))
    fields = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
