"""Serve one local web page for the whole way: data, training, choice and use of a model.

  overtone studio my_models

It shows the datasets, runs and exports in the folder, and starts the verbs of the command line there. Each button shows its command. What
it starts keeps running when the browser or the studio is closed. By default only programs of this machine can connect.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.pages import web_server
from overtone.recipes.serving.access_control import load_access_policy
from overtone.recipes.serving.server_options import Address, add_address_options, require_packages


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        prog="overtone studio", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("folder", type=Path, nargs="?", default=Path(), help="folder of datasets, runs and exports (default: this one)")
    add_address_options(options, 7859)
    return options


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb."""
    options = parse_arguments(parser(), argv)
    web_server.require_port(options.port)
    if not options.folder.is_dir():
        raise UserError(f"{options.folder}: no such folder; create it with: mkdir {options.folder}")
    require_packages(("h11", "starlette", "uvicorn"), "overtone[review]", "studio")
    policy = load_access_policy(options.host, options.token_file, options.trusted_proxy)
    web_server.require_free_port(options.port, options.host)
    from overtone.studio.studio_app import make_application

    address = Address(options.host, options.port)
    for number in web_server.ENDING:  # as Ctrl-C
        signal.signal(number, signal.default_int_handler)
    app = make_application(options.folder.resolve(), options.host, policy)
    protection = ", protected by a token" if policy.token else ""
    announcement = f"studio: {address.url}{protection}   (stop with Ctrl-C; jobs keep running)"
    web_server.run_server(app, address.host, address.port, announcement, proxies=policy.proxies)
    return 0
