"""Answer with an exported folder, in the layout that was trained, through transformers' own cached generation.

python -m finetune generate --model exports/mine --prompt "Good day. Who are you?"
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.hardware import sdpa_backends
from finetune.storage.model_security import admit, require_safetensors
from finetune.storage.strict_json import loads_object
from recipes.language.causal_model import language_model
from recipes.language.chat_template import Chat, template_of
from recipes.language.messages import messages_of, tools_of
from recipes.language.stop_tokens import stop_ids
from recipes.language.token_offsets import beginning, ids_of
from recipes.language.tokenizer import load_tokenizer

SAMPLED_TOKENS = 128
"""Longest answer during training: it may be made on one core beside the run, and is there to be looked at."""


@dataclass(frozen=True)
class Answerer:
    """A loaded model with all that an answer takes."""

    model: Any
    tokenizer: Any
    stops: list[int]
    """Tokens that end an answer."""

    @property
    def positions(self) -> int | None:
        """How many tokens the model was built for; None if its config does not say."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)


@dataclass(frozen=True)
class Manner:
    """How an answer is chosen."""

    tokens: int = 512
    """At most."""
    temperature: float = 0.0
    """0: always the most likely token."""
    top_p: float = 1.0
    """Of the most likely tokens, so many that together they have this probability (Holtzman et al. 2019, arXiv:1904.09751)."""


@dataclass(frozen=True)
class Answer:
    text: str
    ended: bool
    """Whether the model itself ended it."""


def generate(folder: Path, argv: list[str]) -> int:
    """Body of the verb: check the request, load, answer, print. Raises `UserError` for what cannot be answered."""
    import torch

    asked = parse(argv)
    manner = manner_of(asked)
    texts = rows_asked(asked)
    answerer = load(folder)
    rows = [row_of(text, asked.system, answerer.tokenizer) if isinstance(text, str) else text for text in texts]
    prompts = [prompt_ids(row, answerer.tokenizer) for row in rows]
    for ids in prompts:  # all before the first: an error after an hour of answers would be late
        check_length(ids, answerer)
    torch.manual_seed(asked.seed)
    for number, ids in enumerate(prompts):
        answer = respond(answerer, ids, manner)
        print(answer.text if len(prompts) == 1 else f"── {number + 1}\n{answer.text}", flush=True)
        if not answer.ended:
            print(f"(cut off after {manner.tokens} tokens or at the model's last position: it did not end by itself)", file=sys.stderr)
    return 0


def sample(folder: Path, prompts: list[str]) -> list[str]:
    """Greedy answers, for `sample.every`."""
    answerer = load(folder)
    rows = [row_of(prompt, None, answerer.tokenizer) for prompt in prompts]
    return [respond(answerer, prompt_ids(row, answerer.tokenizer), Manner(SAMPLED_TOKENS)).text for row in rows]


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(prog="python -m finetune generate --model FOLDER", description="Answer with an exported model.")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--prompt", help="what to answer; without a chat template, what to continue")
    asked.add_argument("--prompt-file", type=Path, help="one prompt a line: text, or JSON with messages as in the training data")
    add_manner(parser)
    return parser.parse_args(argv)


def add_manner(parser: argparse.ArgumentParser) -> None:
    """The arguments that every way to answer has."""
    parser.add_argument("--system", help="a message of the role system in front")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="longest answer")
    parser.add_argument("--temperature", type=float, help="sample, the more freely the higher; by default always the most likely token")
    parser.add_argument("--top-p", type=float, help="sample, from the most likely tokens that have this probability together")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")


def manner_of(asked: argparse.Namespace) -> Manner:
    """Raises `UserError` for a number that is out of range."""
    if asked.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens {asked.max_new_tokens}: at least 1")
    if asked.temperature is not None and asked.temperature < 0:
        raise UserError(f"--temperature {asked.temperature:g}: from 0, which is greedy, upward; 1 samples as the model says")
    if asked.top_p is not None and not 0 < asked.top_p <= 1:
        raise UserError(f"--top-p {asked.top_p:g}: a probability above 0, at most 1")
    if asked.temperature == 0 and asked.top_p is not None:
        raise UserError("--top-p with --temperature 0, which always takes the most likely token; drop one of them")
    samples_only_by_share = asked.temperature is None and asked.top_p is not None
    return Manner(asked.max_new_tokens, 1.0 if samples_only_by_share else asked.temperature or 0.0, asked.top_p or 1.0)


def rows_asked(asked: argparse.Namespace) -> list[str | dict[str, Any]]:
    """Prompts as text or as rows of chat. Raises `UserError` for an empty one and for a file that cannot be read."""
    if asked.prompt_file is None:
        if not asked.prompt.strip():
            raise UserError('--prompt is empty; give what to answer, as in --prompt "Good day. Who are you?"')
        return [asked.prompt]
    try:
        lines = asked.prompt_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--prompt-file {asked.prompt_file}: cannot be read ({error})") from None
    rows = [_row_in(line, f"{asked.prompt_file}:{number}", asked.system) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UserError(f"--prompt-file {asked.prompt_file}: holds no prompt; one line each")
    return rows


def _row_in(line: str, place: str, system: str | None) -> str | dict[str, Any]:
    """One line of a prompt file."""
    if not line.lstrip().startswith("{"):
        return line
    try:
        row = loads_object(line)
        messages, _ = messages_of({"messages": row.get("messages")})
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    if messages[-1]["role"] == "assistant":
        raise UserError(f"{place}: the last message is the assistant's, which is what the model is to write; take it out")
    if system is not None and messages[0]["role"] == "system":
        raise UserError(f"{place}: has a message of the role system, and --system gives another; drop one of them")
    before = [] if system is None else [{"role": "system", "content": system}]
    return {**row, "messages": [*before, *messages]}


def row_of(text: str, system: str | None, tokenizer: Any) -> dict[str, Any]:
    """A prompt as a chat, or as plain text if the tokenizer has no chat template. Raises `UserError` for a system message there."""
    if tokenizer.chat_template is None:
        if system is not None:
            raise UserError(
                "--system: this model has no chat template, so there is no place for a system message; write it into the prompt"
            )
        return {"prompt": text}
    before = [] if system is None else [{"role": "system", "content": system}]
    return {"messages": [*before, {"role": "user", "content": text}]}


def prompt_ids(row: dict[str, Any], tokenizer: Any) -> list[int]:
    """What generation is given: the same tokens behind which the answer was trained."""
    if "messages" not in row:
        text: str = row["prompt"]
        return beginning(text, tokenizer) + ids_of(text, tokenizer)
    tools = tools_of(row)
    return ids_of(Chat(row["messages"], tools, tokenizer, template_of(tokenizer, tools)).written(prompt=True), tokenizer)


def load(folder: Path) -> Answerer:
    """The model as AutoModelForCausalLM has it: in its own type on a GPU, in fp32 without one. Raises `UserError` if there is none."""
    import torch
    import transformers

    if not (folder / "config.json").is_file():
        raise UserError(
            f"--model {folder}: no model there (config.json is missing); `python -m finetune export RUN --to {folder}` makes one"
        )
    transformers.logging.set_verbosity_error()  # it would remark on every default that generation takes
    tokenizer = load_tokenizer(folder, None)
    require_safetensors(folder, "--model")
    sdpa_backends.disable_cudnn()
    placed = {"device_map": "auto", "dtype": "auto"} if torch.cuda.is_available() else {"dtype": torch.float32}
    with admit(folder, language_model()) as clean:
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(clean, trust_remote_code=False, use_safetensors=True, **placed).eval()
        except (AttributeError, ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"--model {folder}: cannot be loaded ({error}); export it again") from error
    return Answerer(model, tokenizer, stop_ids(tokenizer, model.generation_config.eos_token_id))


def check_length(ids: list[int], answerer: Answerer) -> None:
    """Raises `UserError` if a prompt leaves no position for an answer, or has no token."""
    if not ids:
        raise UserError("the prompt has no token: this tokenizer makes nothing of it")
    if answerer.positions is not None and len(ids) >= answerer.positions:
        raise UserError(f"the prompt has {len(ids):,} tokens, and the model has {answerer.positions:,} positions; shorten it")


def respond(answerer: Answerer, ids: list[int], manner: Manner, streamer: Any = None) -> Answer:
    """The answer to one prompt; a `streamer` of transformers gets its tokens as they come. Raises `UserError` as `check_length` does."""
    import torch

    check_length(ids, answerer)
    room = manner.tokens if answerer.positions is None else min(manner.tokens, answerer.positions - len(ids))
    # As the model's own: settings that are handed to `generate` would be mixed with those that the base came with (sampling, penalties).
    answerer.model.generation_config = settings(manner, room, answerer.stops)
    given = torch.tensor([ids], device=answerer.model.device)
    with torch.inference_mode():
        whole = answerer.model.generate(given, attention_mask=torch.ones_like(given), streamer=streamer)
    new: list[int] = whole[0, len(ids) :].tolist()
    text = answerer.tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Answer(text, bool(new) and new[-1] in answerer.stops)


def settings(manner: Manner, room: int, stops: list[int]) -> Any:
    """transformers' GenerationConfig with nothing but what was asked for."""
    from transformers import GenerationConfig

    chance: dict[str, Any] = {"do_sample": False}
    if manner.temperature > 0:
        chance = {"do_sample": True, "temperature": manner.temperature, "top_p": manner.top_p, "top_k": 0}  # top_k would be 50
    return GenerationConfig(max_new_tokens=room, eos_token_id=stops, pad_token_id=stops[0] if stops else 0, **chance)
