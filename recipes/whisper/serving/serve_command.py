"""Serves exported recognizers: OpenAI's API for transcriptions.

overtone serve --model exports/mine
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from overtone.recipes.serving.server_options import check_server_options, require_packages

from ..cli_arguments import make_serve_parser

MOST_CHANNELS, HIGHEST_RATE = 8, 48_000
"""Channels of a recording, and samples per second of each, that are decoded for a client."""

if TYPE_CHECKING:
    from fastapi import FastAPI

    from overtone.recipes.serving.access_control import AccessPolicy

    from .transcription_queue import ServedRecognizer, TranscriptionQueue


def serve(folders: Mapping[str, Path], argv: list[str]) -> int:
    """Body of the verb. Raises `UserError` for what cannot be served. Blocks until SIGTERM or Ctrl-C."""
    args = parse_arguments(make_serve_parser(), argv)
    check_server_options(args, ("max_seconds",))
    require_packages(("fastapi", "uvicorn", "prometheus_client", "python_multipart"), "overtone[speech,serve]")
    from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
    from overtone.data_prep.audio.waveform import AudioLimits
    from overtone.recipes.serving.model_names import list_typed_names, name_models
    from overtone.recipes.serving.served_app import check_access

    from .transcription_queue import TranscriptionQueue

    named, access = name_models(folders), check_access(args)
    limits = AudioLimits(seconds=args.max_seconds, channels=MOST_CHANNELS, samples=args.max_seconds * MOST_CHANNELS * HIGHEST_RATE)
    with access.open_session() as private, AudioDecoder(private / "decoding", longest=args.deadline_seconds) as decoder:
        models = {name: load_served(name, folder) for name, folder in named.items()}
        queue = TranscriptionQueue(models, decoder, limits, args.queue, args.deadline_seconds, list_typed_names(folders))
        with closing(queue):
            app = build_app(queue, access.policy, files.make_folder(private / "recordings"))
            access.run(app, queue, f"{access.address.url}/v1")
    return 0


def load_served(name: str, folder: Path) -> ServedRecognizer:
    """The model of an export. Raises `UserError`."""
    from ..inference.file_transcription import find_language, load_model, read_transcription_defaults
    from .transcription_queue import ServedRecognizer

    print_line(f"serve: loading {name} from {folder}")
    defaults = read_transcription_defaults(folder)
    model = load_model(folder)
    return ServedRecognizer(model, int(folder.stat().st_mtime), find_language(defaults.language, model))


def build_app(queue: TranscriptionQueue, policy: AccessPolicy, uploads: Path) -> FastAPI:
    """The API with access control."""
    from overtone.recipes.serving.served_app import make_app

    from . import transcription_api

    app = make_app(queue, policy, transcription_api.ROUTES)
    transcription_api.add_to(app, queue, uploads)
    return app
