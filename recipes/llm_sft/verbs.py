"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from overtone.finetune.recipe import Answer, DataPreparation, Inference
from overtone.recipes.language.text_generator import TextGenerator

from .cli_arguments import make_chat_parser, make_generate_parser, make_serve_parser


def generate(folder: Path, argv: list[str]) -> int:
    """`generate`: answers to prompts."""
    from . import generation

    return generation.generate(folder, argv)


def chat(folder: Path, argv: list[str]) -> int:
    """`chat`: a conversation in the terminal."""
    from . import chat_session

    return chat_session.chat(folder, argv)


def serve(folders: Mapping[str, Path], argv: list[str]) -> int:
    """`serve`: OpenAI's chat API."""
    from .serving import serve_command

    return serve_command.serve(folders, argv)


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """Greedy answers of an export, during training."""
    from . import generation

    return [Answer(text) for text in generation.sample(folder, prompts)]


def load_text_generator(folder: Path) -> TextGenerator:
    """The chat model of an export."""
    from .chat_generator import ChatGenerator

    return ChatGenerator(folder)


INFERENCE = Inference(
    generate=generate,
    chat=chat,
    serve=serve,
    sample=sample,
    example=("--prompt", "Who are you?"),
    load_text_generator=load_text_generator,
    help={
        "generate": lambda: make_generate_parser().print_help(),
        "chat": lambda: make_chat_parser().print_help(),
        "serve": lambda: make_serve_parser().print_help(),
    },
)
DATA = DataPreparation(
    verb="text",
    # Of a clip of speech, reading it says which recipe trains it.
    row_keys=(frozenset({"messages"}), frozenset({"prompt", "completion"}), frozenset({"audio"})),
    advice="""To make some from conversations:
  overtone text chats.jsonl --out data/chats
or see the whole chain on a small example: python -m overtone.recipes.llm_sft.demo""",
)
