"""Rebuilds the tokenizer of the tiny model: every byte, the words of the task and of its chats, and a ChatML template.

    python -m overtone.recipes.llm_sft.toy_tokenizer FOLDER

The result is in the repository, in `tiny_tokenizer/`, so users need not run this. It is here to check the result and to change it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line

from .toy_chats import SYSTEM, VERBS

END_OF_TEXT, START, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORDS = ("system", "user", "assistant", *VERBS, *SYSTEM.split(" "), *(f" {word}" for word in SYSTEM.split(" ")[1:]))
"""One token each. Capital letters and digits are never merged, so the model sees the words of the task letter by letter."""
TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    for name, content in make_files().items():
        files.write_bytes(folder / name, content)


def make_files() -> dict[str, bytes]:
    """Content of each file by name. As in base models, texts and turns end with different tokens."""
    declared = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": 512,
        "model_input_names": ["input_ids", "attention_mask"],  # without this, transformers 4 adds token_type_ids, which `generate` refuses
        "clean_up_tokenization_spaces": False,
    }
    return {
        "tokenizer.json": files.json_bytes(json.loads(train_byte_pairs().to_str())),
        "tokenizer_config.json": files.json_bytes(declared),
        "chat_template.jinja": TEMPLATE.encode(),
    }


def train_byte_pairs() -> Tokenizer:
    """A byte-level BPE whose only merges are those that make `WORDS`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=1024, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([END_OF_TEXT, START, END_OF_TURN])
    return tokenizer


def main(argv: list[str]) -> int:
    """Body of the command line."""
    if len(argv) != 1 or argv[0].startswith("-"):
        raise UserError("usage: python -m overtone.recipes.llm_sft.toy_tokenizer FOLDER")
    write_tokenizer(Path(argv[0]))
    print_line(f"{argv[0]}: a tokenizer with {len(WORDS)} words and every byte")
    return 0


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
