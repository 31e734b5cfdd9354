"""Write an HTML report about a dataset of voice clips or of chats.

  overtone report data/me
  overtone report data/chats --tokenizer Qwen/Qwen3-1.7B

The report of a voice has durations kept and rejected, histograms, quality rules, and clips to listen to; that of chats has lengths, turns,
the share of the text that is learned, languages, repetitions, the longest and shortest rows. The report is one self-contained file without
network access; open it in any browser.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from overtone.data_prep.images.image_dataset_writer import MADE_BY as MADE_BY_IMAGES
from overtone.data_prep.manifest import SUMMARY
from overtone.data_prep.pages import chat_report, voice_dataset_loader
from overtone.data_prep.pages.chat_report import CountTokens
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.terminal import print_diagnostic, print_line

PAGE = "report.html"
GENERATOR = b'<meta name="generator" content="overtone">'
"""Text in the head of every report."""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        prog="overtone report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("folder", type=Path, help="dataset folder of overtone voice or overtone text")
    options.add_argument("--out", type=Path, metavar="FILE.html", help=f"output file (default: {PAGE} in the dataset)")
    options.add_argument("--tokenizer", metavar="MODEL", help="for chats: folder or hub name of a model whose tokens are counted")
    return options


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb."""
    options = parse_arguments(parser(), argv)
    write_report(options.folder, options.out, options.tokenizer)
    return 0


def write_report(folder: Path, out: Path | None = None, tokenizer: str | None = None) -> Path:
    """Write the report about a dataset to `out`, by default into the dataset; returns its path. Raises `UserError` for any other folder."""
    out = out or folder / PAGE
    _check_out(out)
    if (folder / SUMMARY).is_file() and strict_json.read_object(folder / SUMMARY).get("made_by") == MADE_BY_IMAGES:
        raise UserError(f"{folder} is a dataset of images, whose report overtone images has written: {folder / PAGE}")
    if chat_report.is_chat_dataset(folder):
        figures = chat_report.read_figures(folder, None if tokenizer is None else _load_token_counter(tokenizer))
        page = chat_report.render_page(folder, figures, None if tokenizer is None else Path(tokenizer).name)
    else:
        page = _render_voice(folder, tokenizer)
    files.write_text(out, page)
    print_line(f"{out}: {len(page.encode()) / 1e6:.1f} MB")
    return out


def _check_out(out: Path) -> None:
    """Raises `UserError` for a file that is not a report, which would be lost."""
    if not out.exists():
        return
    try:
        with input_files.open_file(out) as file:
            is_report = GENERATOR in file.read(2**12)
    except OSError as error:
        raise UserError(f"{out} cannot be replaced ({strict_json.one_line(error)}); give another --out FILE.html") from None
    if not is_report:
        raise UserError(f"{out} exists and is not a report, so it would be lost; give another --out FILE.html, or remove it")


def _render_voice(folder: Path, tokenizer: str | None) -> str:
    if tokenizer is not None:
        raise UserError(f"--tokenizer {tokenizer}: {folder} is a dataset of a voice; remove --tokenizer")
    dataset = voice_dataset_loader.read_dataset(folder)
    from overtone.data_prep.pages import report_page  # imports matplotlib: too slow for --help or a wrong folder

    drift = report_page.compute_drift(dataset)
    if abs(drift) > report_page.TOLERANCE:
        print_diagnostic(f"warning: the manifests of {folder} and its summary differ by {drift:.2f} s; run overtone voice again")
    return report_page.render_page(dataset)


def _load_token_counter(model: str) -> CountTokens:
    """Return a function that counts the tokens of a text. Reads only the model's tokenizer.json; raises `UserError` without one."""
    from tokenizers import Tokenizer  # here, since --help and most reports need none

    path = resolve_model("--tokenizer", model, ["tokenizer.json"]) / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(input_files.read_text(path))
    except Exception as error:  # the Rust library raises bare exceptions
        raise UserError(f"--tokenizer {model}: {path} cannot be used ({strict_json.first_line(error)})") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
