"""An exported model for answers, its prompts in the format that was trained, and greedy answers by transformers' own generation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from overtone.data_prep.chats.chat_messages import Message, read_messages, read_tools
from overtone.finetune.errors import UserError
from overtone.recipes.language.model_loading import load_for_generation
from overtone.recipes.language.tokenization.chat_template import make_chat
from overtone.recipes.language.tokenization.completion_boundary import begin_ids, encode_text
from overtone.recipes.language.tokenization.dropped_content import find_dropped
from overtone.recipes.language.tokenization.stop_tokens import find_stop_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLE_TOKENS = 128
"""Longest answer during training, when the model may run on one core beside the training."""


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model and its tokenizer."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    stop_ids: list[int]
    """Tokens that end an answer."""

    @property
    def positions(self) -> int | None:
        """The model's maximum number of tokens; None if its config has none."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)


@dataclass(frozen=True)
class GeneratedAnswer:
    """The answer to one prompt."""

    text: str
    ended: bool
    """False: it was cut off."""


def load_model(folder: Path) -> LoadedModel:
    """Load a folder that AutoModelForCausalLM reads: in its own dtype on a GPU, in fp32 on a CPU. Raises `UserError` if that fails."""
    model, tokenizer = load_for_generation(folder)
    return LoadedModel(model, tokenizer, find_stop_ids(tokenizer, model.generation_config.eos_token_id))


def make_row(text: str, system: str | None, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return a prompt as a chat, or as plain text if the tokenizer has no chat template. Raises `UserError` for a system message then."""
    if tokenizer.chat_template is None:
        if system is not None:
            raise UserError("--system: this model has no chat template, so it takes no system message; write it into the prompt")
        return {"prompt": text}
    return {"messages": [*_system_messages(system), {"role": "user", "content": text}]}


def make_chat_row(row: dict[str, Any], system: str | None) -> dict[str, Any]:
    """Return a row with messages to answer, with the system message added. Raises `UserError` for messages that cannot be answered."""
    messages, _ = read_messages({"messages": row.get("messages")})
    if messages[-1]["role"] == "assistant":
        raise UserError("the last message is the assistant's, which the model is to generate; remove it")
    if system is not None and messages[0]["role"] == "system":
        raise UserError("the row has a system message and --system gives another; remove one of them")
    return {**row, "messages": [*_system_messages(system), *messages]}


def _system_messages(text: str | None) -> list[Message]:
    return [] if text is None else [{"role": "system", "content": text}]


def tokenize_prompt(row: dict[str, Any], tokenizer: PreTrainedTokenizerBase, allow_dropped: Sequence[str] = ()) -> list[int]:
    """Return the token ids that generation is given: the same ones after which the answer is learned in training. `allow_dropped`: what the
    chat template may drop (`ChatOptions.allow_dropped`). Raises `UserError` for another part of the chat that it ignores."""
    if "messages" not in row:
        text: str = row["prompt"]
        return begin_ids(text, tokenizer) + encode_text(text, tokenizer)
    chat = make_chat(row["messages"], read_tools(row), tokenizer)
    if dropped := [one for one in find_dropped(chat, chat.render(), learns=False) if one.option not in allow_dropped]:
        raise UserError(f"the model's chat template ignores {dropped[0].what}; remove it")
    return encode_text(chat.render(add_generation_prompt=True), tokenizer)


def check_length(ids: list[int], loaded: LoadedModel) -> None:
    """Raises `UserError` for a prompt that leaves no position for an answer, or that has no tokens."""
    if not ids:
        raise UserError("the prompt has no tokens; this tokenizer drops all of its characters")
    if loaded.positions is not None and len(ids) >= loaded.positions:
        raise UserError(f"the prompt has {len(ids):,} tokens, and the model has {loaded.positions:,} positions; shorten the prompt")


def generate_answer(loaded: LoadedModel, ids: list[int], tokens: int) -> GeneratedAnswer:
    """The greedy answer to one prompt by transformers' own generation, of at most `tokens` tokens. Raises `UserError` as `check_length`."""
    check_length(ids, loaded)
    room = tokens if loaded.positions is None else min(tokens, loaded.positions - len(ids))
    # As the model's own config: arguments of `generate` would be merged with the settings of the base (sampling, penalties).
    loaded.model.generation_config = make_generation_config(room, loaded.stop_ids)
    given = torch.tensor([ids], device=loaded.model.device)
    with torch.inference_mode():
        whole = loaded.model.generate(given, attention_mask=torch.ones_like(given))
    new: list[int] = whole[0, len(ids) :].tolist()
    text = loaded.tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return GeneratedAnswer(text, bool(new) and new[-1] in loaded.stop_ids)


def make_generation_config(room: int, stop_ids: list[int]) -> Any:
    """transformers' GenerationConfig for a greedy answer of at most `room` tokens."""
    from transformers import GenerationConfig

    return GenerationConfig(max_new_tokens=room, eos_token_id=stop_ids, pad_token_id=stop_ids[0] if stop_ids else 0, do_sample=False)


def derive_seed(seed: int, number: int) -> int:
    """Return the seed of a prompt; that of the first one is `seed` itself."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "big") >> 1


def sample(folder: Path, prompts: list[str]) -> list[str]:
    """Greedy answers, for `sample.every`."""
    loaded = load_model(folder)
    rows = [make_row(prompt, None, loaded.tokenizer) for prompt in prompts]
    return [generate_answer(loaded, tokenize_prompt(row, loaded.tokenizer), SAMPLE_TOKENS).text for row in rows]
