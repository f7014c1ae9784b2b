"""Made-up tokenizers, chat templates and conversations."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<bos>", "<eos>", "<pad>", "<turn>", "<end>", "<think>", "</think>")
# A header for each role, an end token and a line break.
TURNS = (
    "{{ bos_token }}{% for m in messages %}{{ '<turn>' + m['role'] + '\n' }}"
    "{{ m['content'] + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}"
)
# The template marks what the model generates.
MARKED = (
    "{% for m in messages %}{{ '<turn>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<end>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m['content'] + '<end>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}"
)
# Earlier turns are rendered without what the last one has.
THINKS = (
    "{% for m in messages %}{{ '<turn>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ m['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}"
)
# The end of a turn of the assistant belongs to the next message.
NO_STOP = (
    "{% for m in messages %}{% if not loop.first %}{{ '<end>' }}{% endif %}"
    "{{ '<turn>' + m['role'] + '\n' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<end><turn>assistant\n' }}{% endif %}"
)
CONVERSATIONS = (
    [("user", "Who is there?"), ("assistant", "Nay, answer me.")],
    [("system", "Be brief."), ("user", "Why?"), ("assistant", "It is late."), ("user", " So? "),
     ("assistant", "Good night.\n")],
)  # fmt: skip


def messages(turns):
    return [{"role": role, "content": content} for role, content in turns]


def make_tokenizer(template=TURNS):
    """A byte-level tokenizer with three merges and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("i", "s"), ("n", "t"), ("Ġ", "m")]
    words = [*alphabet, *map("".join, merges)]
    library = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    names = {"bos_token": "<bos>", "eos_token": "<end>", "pad_token": "<pad>"}
    found = PreTrainedTokenizerFast(tokenizer_object=library, **names)
    found.chat_template = template
    return found


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
