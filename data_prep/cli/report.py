"""Write an HTML report about a voice dataset: durations kept and rejected, histograms, quality rules, clips to listen to.

  python -m data_prep report data/me

The report is one self-contained file without network access; open it in any browser.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data_prep.pages import voice_dataset_loader
from finetune.argument_parsing import parse_arguments
from finetune.errors import exit_code
from finetune.storage import files
from finetune.terminal import print_diagnostic, print_line

PAGE = "report.html"


def main(argv: list[str]) -> int:
    """Run the verb."""
    return exit_code(_run, argv)


def parser() -> argparse.ArgumentParser:
    """The argument parser."""
    options = argparse.ArgumentParser(prog="data_prep report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="dataset folder of data_prep voice")
    options.add_argument("--out", type=Path, metavar="FILE.html", help=f"output file (default: {PAGE} in the dataset)")
    return options


def _run(argv: list[str]) -> int:
    options = parse_arguments(parser(), argv)
    dataset = voice_dataset_loader.read_dataset(options.folder)
    from data_prep.pages import report_page  # imports matplotlib: too slow for --help or a wrong folder

    page = report_page.render_page(dataset)
    out = options.out or options.folder / PAGE
    files.write_text(out, page)
    drift = report_page.compute_drift(dataset)
    if abs(drift) > report_page.TOLERANCE:
        print_diagnostic(f"warning: the manifests of {options.folder} and its summary differ by {drift:.2f} s; run data_prep voice again")
    print_line(f"{out}: {len(page.encode()) / 1e6:.1f} MB")
    return 0
