"""The verbs of a recipe for chats: `INFERENCE` is its `Recipe.inference`. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from overtone.finetune.recipe import Answer, Inference, ReplicaPlan
from overtone.recipes.language.text_generator import TextGenerator

from .arguments import make_chat_parser, make_generate_parser


def generate(folder: Path, argv: list[str]) -> int:
    """`generate`: answers to prompts."""
    from .generate import generate

    return generate(folder, argv)


def chat(folder: Path, argv: list[str]) -> int:
    """`chat`: a conversation in the terminal."""
    from .chat_session import chat

    return chat(folder, argv)


def serve(folders: Mapping[str, Path], argv: list[str]) -> int:
    """`serve`: OpenAI's chat API."""
    from overtone.recipes.language.serving.serve_command import serve

    return serve(folders, argv)


def plan_replica(folders: Mapping[str, Path], argv: list[str], environment: Mapping[str, str]) -> ReplicaPlan:
    """`ray-serve`: the same API, as a replica."""
    from overtone.recipes.language.serving.serve_command import plan_replica

    return plan_replica(folders, argv, environment)


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """Greedy answers of an export, during training."""
    from overtone.recipes.language.answer_generation import sample

    return [Answer(text) for text in sample(folder, prompts)]


def load_text_generator(folder: Path) -> TextGenerator:
    """Return the chat model of an export."""
    from overtone.recipes.language.chat_generator import ChatGenerator

    return ChatGenerator(folder)


def print_serve_help() -> None:
    """Print the options of `serve`."""
    from overtone.recipes.language.serving.serve_command import make_serve_parser

    make_serve_parser().print_help()


INFERENCE = Inference(
    generate=generate,
    chat=chat,
    serve=serve,
    plan_replica=plan_replica,
    sample=sample,
    example=("--prompt", "Who are you?"),
    load_text_generator=load_text_generator,
    help={
        "generate": lambda: make_generate_parser().print_help(),
        "chat": lambda: make_chat_parser().print_help(),
        "serve": print_serve_help,
        "ray-serve": print_serve_help,
    },
)
"""Verbs of an export that AutoModelForCausalLM and AutoTokenizer load."""
