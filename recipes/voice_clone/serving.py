"""Exported voices behind an address: a page to listen on, and OpenAI's API for speech.

python -m finetune serve --model exports/me --model exports/me-longer
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep import web
from finetune import files
from finetune.errors import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .exported import Exported
    from .serving_api import Limits
    from .serving_door import Door
    from .serving_queue import Speech

GRACE = 2
"""Seconds that answers in progress have once the server is to end; pages keep a connection open for ever."""


@dataclass(frozen=True)
class Address:
    """Where it is served."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def serve(folders: list[Path], argv: list[str]) -> int:
    """Body of the verb: everything that can be wrong is told before a model is loaded. Blocks until SIGTERM or Ctrl-C."""
    asked = parse(argv)
    require_packages()
    from .serving_api import Limits
    from .serving_door import door

    exports = named([*folders, *([asked.base] if asked.base else [])])
    address, entry = Address(asked.host, asked.port), door(asked.host, asked.token_file)
    web.require_free(address.port, address.host)
    with ExitStack() as opened:
        opened.enter_context(uploads(address))
        speech = speaking(exports, asked.queue)
        opened.callback(speech.close)
        run(speech, Limits(asked.max_chars, asked.max_seconds), entry, address)
    print("serve: ended", flush=True)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(prog="python -m finetune serve --model FOLDER", description="Serve exported voices.")
    parser.add_argument("--base", type=Path, help="the model that they were trained from, or another, to hear beside them")
    parser.add_argument("--host", default=web.LOOPBACK, help="address to listen at (default %(default)s: this machine alone)")
    parser.add_argument("--port", type=int, default=7861, help="(default %(default)s)")
    parser.add_argument("--token-file", type=Path, help="file with the token that clients must show; or set OVERTONE_TOKEN")
    parser.add_argument("--queue", type=int, default=16, help="requests that may wait while one is spoken (default %(default)s)")
    parser.add_argument("--max-chars", type=int, default=4096, help="longest text (default %(default)s)")
    parser.add_argument("--max-seconds", type=float, default=60.0, help="longest speech (default %(default)g)")
    asked = parser.parse_args(argv)
    web.require_port(asked.port)
    for option in ("queue", "max_chars", "max_seconds"):
        if getattr(asked, option) < (0 if option == "queue" else 1):
            raise UserError(f"--{option.replace('_', '-')} {getattr(asked, option):g} is too little; leave it out for the default")
    return asked


def require_packages() -> None:
    """Raises `UserError` if the extra is not installed."""
    missing = [name for name in ("gradio", "fastapi", "uvicorn", "av") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"serve needs {', '.join(missing)}, not installed here; install with: pip install 'overtone[voice,serve]'")


def named(folders: Sequence[Path]) -> dict[str, Exported]:
    """Each folder under its own name. Raises `UserError` for one that cannot speak, and for two of the same name."""
    from .exported import Exported

    found: dict[str, Exported] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; `python -m finetune export RUN --to {folder}` makes one")
        exported, name = Exported.of(folder), folder.resolve().name
        if name in found:
            raise UserError(f"{folder} and {found[name].folder} would both be called {name}; rename one of the folders")
        found[name] = exported
    return found


@contextmanager
def uploads(address: Address) -> Iterator[Path]:
    """A folder of this server alone for what browsers send to it; gone with the server, or else with the next one at that address."""
    os.umask(0o077)  # nobody else on this machine is to hear a reference clip
    place, name = Path(tempfile.gettempdir()), f"overtone-serve-{os.getuid()}-{address.host}-{address.port}"
    files.sweep(place, name)
    folder = files.fresh_folder(place, name)
    os.environ |= {"GRADIO_TEMP_DIR": str(folder), "GRADIO_ANALYTICS_ENABLED": "False"}  # before gradio is imported, or it would call home
    try:
        yield folder
    finally:
        files.discard(folder)


def speaking(exports: dict[str, Exported], room: int) -> Speech:
    """The models, loaded."""
    from .serving_queue import Speech
    from .synthesis import Synthesizer

    models = {}
    for name, exported in exports.items():
        print(f"serve: loading {name} from {exported.folder}", flush=True)
        models[name] = Synthesizer(exported)
    return Speech(models, room)


def application(speech: Speech, limits: Limits, entry: Door) -> FastAPI:
    """API and page in one app, behind the door."""
    import gradio
    from fastapi import FastAPI
    from starlette.middleware import Middleware

    from .serving_api import add_to
    from .serving_door import guard
    from .serving_page import STYLE, Booth, build

    warnings.filterwarnings("ignore", module="gradio")  # its own calls of what its own dependencies deprecate
    middleware = [Middleware(guard, door=entry), Middleware(web.closed)]
    app = FastAPI(middleware=middleware, docs_url=None, redoc_url=None, openapi_url=None)
    add_to(app, speech, limits)
    page = build(Booth(speech, limits))
    # A megabyte less than the door lets in: what is sent around a file counts there, too.
    return gradio.mount_gradio_app(
        app, page, "/", footer_links=[], ssr_mode=False, theme=web.theme(), css_paths=STYLE, max_file_size="15mb", show_error=True
    )


def run(speech: Speech, limits: Limits, entry: Door, address: Address) -> None:
    """Blocks until SIGTERM or Ctrl-C."""
    import uvicorn

    app = application(speech, limits, entry)
    config = uvicorn.Config(app, address.host, address.port, log_level="warning", timeout_graceful_shutdown=GRACE)
    # uvicorn ends by SIGTERM in good order and then raises it again, which would end this process before it has cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: None)
    listening = config.bind_socket()
    listening.listen()  # before it is told: whoever comes from now on waits, and is not turned away
    guarded = ", behind its token" if entry.token else ""
    print(f"serve: {address.url}{guarded}   API: {address.url}/v1   (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
