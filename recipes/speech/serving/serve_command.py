"""Serves exported voices with a text-to-speech page and OpenAI's API for speech.

overtone serve --model exports/me --model exports/me-longer
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.terminal import print_line
from overtone.recipes.serving.server_options import add_server_options, check_server_options, require_packages

PACKAGES = ("fastapi", "uvicorn", "av", "prometheus_client", "python_multipart")

if TYPE_CHECKING:
    from fastapi import FastAPI

    from overtone.finetune.recipe import ReplicaPlan
    from overtone.recipes.serving.access_control import AccessPolicy
    from overtone.recipes.speech.interface import VoiceFolder
    from overtone.recipes.speech.serving.openai_api import Limits
    from overtone.recipes.speech.serving.request_queue import SpeechQueue
    from overtone.recipes.speech.serving.uploaded_clips import Clips


def serve(inspect: Callable[[Path], VoiceFolder], folders: Mapping[str, Path], argv: list[str]) -> int:
    """Body of the verb. Raises `UserError`, before a model is loaded, for what cannot be served. Blocks until SIGTERM or Ctrl-C.

    `inspect` reads an exported folder without its weights, as `SpeechRecipe.inspect` does.
    """
    args = parse(argv)
    require_packages(PACKAGES, "overtone[voice,serve]")
    from overtone.recipes.serving.model_names import list_typed_names, name_models
    from overtone.recipes.serving.served_app import check_access
    from overtone.recipes.speech.serving.openai_api import Limits
    from overtone.recipes.speech.serving.uploaded_clips import Clips

    folders = add_base(folders, args)
    exports = {name: inspect(folder) for name, folder in name_models(folders).items()}
    access = check_access(args)
    url = access.address.url
    if args.blind is not None:
        from overtone.recipes.speech.serving import blind_server

        return blind_server.serve_blind(exports, url, access.policy, args)
    with (
        access.open_session() as folder,
        closing(Clips(folder / "clips")) as clips,
        closing(load_models(exports, args, list_typed_names(folders))) as speech,
    ):
        app = build_app(speech, Limits(args.max_chars, args.max_seconds), access.policy, clips)
        access.run(app, speech, url, f"   API: {url}/v1")
    return 0


def plan_replica(
    inspect: Callable[[Path], VoiceFolder], folders: Mapping[str, Path], argv: list[str], environment: Mapping[str, str]
) -> ReplicaPlan:
    """Return how a replica serves these voices. Raises `UserError` for what cannot be served."""
    args = parse(argv)
    if args.blind is not None:
        raise UserError("--blind runs in one server; start it with `overtone serve`")
    require_packages(PACKAGES, "overtone[voice,serve]")
    from overtone.recipes.serving.model_names import list_typed_names, name_models
    from overtone.recipes.serving.replica import make_plan, open_replica_folder
    from overtone.recipes.speech.serving.openai_api import Limits
    from overtone.recipes.speech.serving.uploaded_clips import Clips

    folders = add_base(folders, args)
    exports = {name: inspect(folder) for name, folder in name_models(folders).items()}

    @contextmanager
    def open_app(policy: AccessPolicy) -> Iterator[FastAPI]:
        with (
            open_replica_folder() as folder,
            closing(Clips(folder / "clips")) as clips,
            closing(load_models(exports, args, list_typed_names(folders))) as speech,
        ):
            yield build_app(speech, Limits(args.max_chars, args.max_seconds), policy, clips)

    return make_plan(args, folders.values(), environment, open_app)


def add_base(folders: Mapping[str, Path], args: argparse.Namespace) -> dict[str, Path]:
    """The models to serve, with that of `--base`."""
    return {**folders, **({args.base: resolve_model("--base", args.base)} if args.base else {})}


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the verb's own arguments."""
    parser = argparse.ArgumentParser(prog="overtone serve --model MODEL", description="Serve exported voices.", allow_abbrev=False)
    parser.add_argument("--base", metavar="MODEL", help="base model, or any other, to compare the voices with: a folder or a hub name")
    add_server_options(parser)
    parser.add_argument("--max-chars", type=int, default=4096, help="maximum length of a text (default %(default)s)")
    parser.add_argument(
        "--max-seconds", type=float, default=60.0, help="maximum duration of a passage; a longer one is cut off (default %(default)g)"
    )
    blind = parser.add_argument_group("blind comparison of two models, or of two clips of one, by listening")
    blind.add_argument(
        "--blind",
        type=Path,
        metavar="TEXTS.txt|FOLDER",
        help="instead of the page: speak each line with both models, and ask which is better; or ask about the clips in a folder of "
        "`overtone pairs`",
    )
    blind.add_argument("--results", type=Path, default=Path("blind.jsonl"), help="file for the answers (default %(default)s)")
    blind.add_argument("--seed", type=int, default=0, help="seed of the speech (default %(default)s)")
    args = parse_arguments(parser, argv)
    check_server_options(args, ("max_chars", "max_seconds"))
    return args


def load_models(exports: Mapping[str, VoiceFolder], args: argparse.Namespace, typed: Mapping[str, str]) -> SpeechQueue:
    """Load the models and return their queue. Prints which of them speak one request at a time."""
    from overtone.recipes.speech.serving.request_queue import SpeechQueue, can_batch

    models = {}
    for name, exported in exports.items():
        print_line(f"serve: loading {name} from {exported.folder}")
        models[name] = exported.open()
        if not can_batch(models[name], args.batch):
            reason = "--batch 1" if args.batch == 1 else "its recipe has no batch that requests can join"
            print_line(f"serve: {name} speaks one request at a time ({reason})")
    return SpeechQueue(models, args.queue, args.batch, args.deadline_seconds, typed, args.max_seconds)


def build_app(speech: SpeechQueue, limits: Limits, policy: AccessPolicy, clips: Clips) -> FastAPI:
    """Build one app with the API, the page and access control."""
    from overtone.recipes.serving.served_app import make_app
    from overtone.recipes.speech.serving import openai_api, text_to_speech_page, uploads

    app = make_app(speech, policy, (*openai_api.ROUTES, *text_to_speech_page.ROUTES, uploads.ROUTE), clips.sweeping)
    openai_api.add_to(app, speech, limits, clips)
    app.router.routes.extend(
        [*text_to_speech_page.page_routes(text_to_speech_page.Controls(speech, limits, clips)), uploads.serve_uploads(clips)]
    )
    return app
