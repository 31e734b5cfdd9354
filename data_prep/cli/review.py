"""Serve a local page for reviewing the clips of a dataset: listen, correct the text, keep or reject.

  overtone review data/me

Every decision is written to review.jsonl in the dataset immediately and applies from the next run of `overtone voice`.
The page is reachable from this machine only.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from overtone.data_prep.pages import voice_dataset_loader
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.pages.web_server import require_free_port, require_port


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        prog="overtone review", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("folder", type=Path, help="dataset folder of overtone voice")
    options.add_argument("--port", type=int, default=7860, help="port of the page on this machine (default %(default)s)")
    return options


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb."""
    options = parse_arguments(parser(), argv)
    require_port(options.port)
    dataset = voice_dataset_loader.read_dataset(options.folder)
    if missing := [name for name in ("h11", "starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise UserError(f"review needs {', '.join(missing)}, which is not installed; install it with: pip install 'overtone[review]'")
    require_free_port(options.port)
    from overtone.data_prep.pages.review_page import ReviewSession
    from overtone.data_prep.pages.review_server import serve_page

    serve_page(ReviewSession(dataset), options.port)
    return 0
