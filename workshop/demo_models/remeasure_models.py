"""Measure the shipped codec and base again and update the figures and cards in their archives, after a change of the Whisper that
transcribes.

    python -m workshop.demo_models.remeasure_models [codec-demo] [qwen3-tts-demo-base]
        [--corpus runs/studio/corpus] [--to FOLDER]

Measures the models as a user gets them, so it needs the held-out sentences of the corpus, but nothing from their training. The weights do
not change. Needs pocketsphinx: pip install 'overtone[align]'.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER as TOKENIZER
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import demo_models, files
from overtone.finetune.terminal import print_line
from workshop.demo_models import recognizers
from workshop.demo_models.base import pack_base, prepare_base_training
from workshop.demo_models.codec import measure_codec, pack_codec
from workshop.demo_models.corpus import make_corpus
from workshop.demo_models.recognizers import WordErrorMeasure

FOLDER = Path("runs/studio/again")
"""Folder with the copies that are measured."""
MODELS = (pack_codec.NAME, pack_base.NAME)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="remeasure_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=f"{' or '.join(MODELS)} (default both)")
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--to", type=Path, default=demo_models.data_folder() / "models")
    options = parser.parse_args(argv)
    for name in options.models:
        if name not in MODELS:
            raise UserError(f"{name}: unknown model; choose {' or '.join(MODELS)}; a Whisper is measured by measure_whisper")
    measures = recognizers.load_recognizers(pack_base.RECOGNIZERS)
    archives = {name: _remeasure(name, options.corpus, measures) for name in options.models}
    for name, archive in archives.items():
        files.write_bytes(options.to / f"{name}.zip", archive)
        print_line(f"{len(archive):,} bytes -> {options.to / name}.zip")
    return 0


def _remeasure(name: str, corpus: Path, measures: dict[str, WordErrorMeasure]) -> bytes:
    """The archive of a shipped model with new figures, which are printed."""
    shipped_folder, made = demo_models.folder_of(name), FOLDER / name
    files.discard(made)
    for path in sorted(path for path in shipped_folder.rglob("*") if path.is_file()):
        files.copy_into(path, made / path.relative_to(shipped_folder))
    archive = remeasure_codec(made, corpus, measures) if name == pack_codec.NAME else remeasure_base(made, corpus, measures)
    print_line((made / demo_models.FIGURES).read_text(encoding="utf-8"))
    return archive


def remeasure_codec(made: Path, corpus: Path, measures: dict[str, WordErrorMeasure]) -> bytes:
    """The archive of a codec in the folder `made`."""
    measured = measure_codec.measure_codec(made / TOKENIZER, corpus, measure_codec.SENTENCES, measures)
    return pack_codec.pack_archive(made, {"steps": _read_steps(made), **measured})


def remeasure_base(made: Path, corpus: Path, measures: dict[str, WordErrorMeasure]) -> bytes:
    """The archive of a base in the folder `made`, without the names of the corpus' voices. The folder must contain the codec."""
    steps = _read_steps(made)
    pack_base.remove_speaker_names(made)
    return pack_base.pack_archive(made, {"steps": steps, **pack_base.measure(made, corpus, prepare_base_training.VAL_SENTENCES, measures)})


def _read_steps(made: Path) -> object:
    return json.loads((made / demo_models.FIGURES).read_text(encoding="utf-8"))["steps"]


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
