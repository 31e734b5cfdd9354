"""Serves exported chat models with a page to chat and OpenAI's API for chat completions.

overtone serve --model exports/mine
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.terminal import print_line
from overtone.recipes.serving.server_options import add_server_options, check_server_options, require_packages

if TYPE_CHECKING:
    from fastapi import FastAPI

    from overtone.finetune.recipe import ReplicaPlan
    from overtone.recipes.language.answer_generation import LoadedModel
    from overtone.recipes.serving.access_control import AccessPolicy

    from .chat_queue import ChatQueue, ServedModel


def serve(folders: Mapping[str, Path], argv: list[str]) -> int:
    """Body of the verb. Raises `UserError` for what cannot be served. Blocks until SIGTERM or Ctrl-C."""
    args = parse(argv)
    from overtone.recipes.serving.model_names import list_typed_names, name_models
    from overtone.recipes.serving.served_app import check_access

    named, access = name_models(folders), check_access(args)
    with access.open_session(), closing(load_models(named, args, list_typed_names(folders))) as chats:
        access.run(build_app(chats, access.policy), chats, access.address.url, f"   API: {access.address.url}/v1")
    return 0


def plan_replica(folders: Mapping[str, Path], argv: list[str], environment: Mapping[str, str]) -> ReplicaPlan:
    """Return how a replica serves these models. Raises `UserError` for what cannot be served."""
    args = parse(argv)
    from overtone.recipes.serving.model_names import list_typed_names, name_models
    from overtone.recipes.serving.replica import make_plan

    named = name_models(folders)

    @contextmanager
    def open_app(policy: AccessPolicy) -> Iterator[FastAPI]:
        with closing(load_models(named, args, list_typed_names(folders))) as chats:
            yield build_app(chats, policy)

    return make_plan(args, folders.values(), environment, open_app)


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the verb's own arguments. Raises `UserError` for numbers that are too small, and for missing packages."""
    args = parse_arguments(make_serve_parser(), argv)
    check_server_options(args, ("max_new_tokens", "context"))
    require_packages(("fastapi", "uvicorn", "prometheus_client"), "overtone[text,serve]")
    return args


def make_serve_parser() -> argparse.ArgumentParser:
    """The arguments of `overtone serve`."""
    parser = argparse.ArgumentParser(
        prog="overtone serve --model MODEL",
        description="Serve exported chat models: a page to chat, also with two models side by side, and OpenAI's chat completions.",
        epilog="example: overtone serve --model exports/mine",
        allow_abbrev=False,
    )
    add_server_options(parser)
    parser.add_argument("--max-new-tokens", type=int, default=1024, help="most tokens of an answer (default %(default)s)")
    parser.add_argument(
        "--context", type=int, default=4096, help="most tokens of prompt and answer, if the model has as many (default %(default)s)"
    )
    return parser


def load_models(folders: Mapping[str, Path], args: argparse.Namespace, typed: Mapping[str, str]) -> ChatQueue:
    """Load the models and return their queue. Prints which of them answer one request at a time, and why. Raises `UserError` for a model
    without a chat template."""
    from overtone.recipes.language.answer_generation import load_model

    from .chat_queue import ChatQueue, find_batching_obstacle, open_lane

    models, lanes = {}, {}
    for name, folder in folders.items():
        print_line(f"serve: loading {name} from {folder}")
        loaded = load_model(folder)
        models[name] = describe_model(folder, loaded, args)
        obstacle = find_batching_obstacle(loaded, args.batch)
        if obstacle is not None:
            print_line(f"serve: {name} answers one request at a time ({obstacle})")
        lanes[name] = open_lane(models[name], args.batch, obstacle)
    return ChatQueue(models, lanes, args.queue, args.deadline_seconds, typed)


def describe_model(folder: Path, loaded: LoadedModel, args: argparse.Namespace) -> ServedModel:
    """A loaded model with its limits. Raises `UserError` if it cannot chat."""
    from .chat_queue import ServedModel

    if loaded.tokenizer.chat_template is None:
        raise UserError(f"--model {folder}: has no chat template, so it cannot chat; `overtone generate` can continue a text with it")
    context = args.context if loaded.positions is None else min(args.context, loaded.positions)
    return ServedModel(loaded, int((folder / "config.json").stat().st_mtime), context, args.max_new_tokens)


def build_app(chats: ChatQueue, policy: AccessPolicy) -> FastAPI:
    """The API and the page, with access control."""
    from overtone.recipes.serving.served_app import make_app

    from . import chat_api, chat_page

    app = make_app(chats, policy, (*chat_api.ROUTES, *chat_page.ROUTES))
    chat_api.add_to(app, chats)
    app.router.routes.extend(chat_page.page_routes(chats))
    return app
