"""python -m tests.model_sweep [--to FOLDER] [NAME …]: what works for each architecture of transformers, in the installed version.

Each architecture is tried in a process of its own, all of them if none is named. The verdicts replace earlier ones in FOLDER (if it is not
given, workshop/benchmarks/results/) in the file model_sweep_VERSION.json, from which `workshop/benchmarks/_pages.py` writes the table in
workshop/lab_book/architectures.md. It takes about 10 minutes on an idle core. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch
import transformers

from overtone.finetune.storage import files
from tests.model_sweep.architectures import ARCHITECTURES
from tests.model_sweep.sweep import Verdict, try_architecture

RESULTS = Path(__file__).parents[2] / "workshop" / "benchmarks" / "results"


def try_apart(name: str) -> dict[str, Verdict]:
    """In a process of its own: a module of transformers may leave something behind."""
    with tempfile.TemporaryDirectory(prefix="sweep") as folder:
        report, pid = Path(folder) / "report.json", os.fork()
        if pid == 0:
            code = 1
            try:
                home = files.make_folder(Path(folder) / "home")
                found = try_architecture(name, home)
                report.write_text(json.dumps({verb: [each.kind, each.reason.replace(folder, "")] for verb, each in found.items()}))
                code = 0
            finally:
                os._exit(code)
        os.waitpid(pid, 0)
        if not report.is_file():
            return {"base": Verdict("WRONG", "a model of this config could not be made")}
        return {verb: Verdict(*each) for verb, each in json.loads(report.read_text("utf-8")).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    path, acceptable = options.to / f"model_sweep_{transformers.__version__}.json", True
    for name in options.names or ARCHITECTURES:
        found = try_apart(name)
        print(f"{name}: {', '.join(f'{verb} {each.kind}' for verb, each in found.items())}", flush=True)
        for verb, each in found.items():
            acceptable &= each.acceptable
            if each.reason:
                print(f"    {verb}: {each.reason}", flush=True)
        table = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        table[name] = {verb: [each.kind, each.reason] for verb, each in found.items()}
        kept = {each: table[each] for each in ARCHITECTURES if each in table}
        files.write_text(path, json.dumps(kept, indent=1) + "\n")
    return 0 if acceptable else 1


if __name__ == "__main__":
    raise SystemExit(main())
