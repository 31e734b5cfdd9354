"""Measure the shipped codec and base again, and renew figures and cards in their archives: after the Whisper that counts became another.

    python -m recipes.voice_clone.studio.remeasure [codec-demo] [qwen3-tts-demo-base] [--corpus runs/studio/corpus] [--to FOLDER]

What is measured is what a user gets, so nothing of their training is needed, only the corpus's held-out sentences. The weights stay.
Needs pocketsphinx: pip install 'overtone[studio]'.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER as TOKENIZER
from finetune.errors import UserError, exit_code
from finetune.storage import demo_models, files
from recipes.voice_clone.studio import judges
from recipes.voice_clone.studio.base import make_base, pack_base
from recipes.voice_clone.studio.codec import measure_codec, pack_codec
from recipes.voice_clone.studio.corpus import make_corpus
from recipes.voice_clone.studio.judges import Judge

FOLDER = Path("runs/studio/again")
"""Where copies are measured."""
MODELS = (pack_codec.NAME, pack_base.NAME)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="remeasure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=f"{' or '.join(MODELS)} (default both)")
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--to", type=Path, default=demo_models.HERE)
    options = parser.parse_args(argv)
    for name in options.models:
        if name not in MODELS:
            raise UserError(f"{name}: there are {' and '.join(MODELS)} to measure; a Whisper is measured by measure_whisper")
    asked = judges.called(pack_base.JUDGES)
    renewed = {name: _renewed(name, options.corpus, asked) for name in options.models}
    for name, archive in renewed.items():
        files.write_bytes(options.to / f"{name}.zip", archive)
        print(f"{len(archive):,} bytes -> {options.to / name}.zip")
    return 0


def _renewed(name: str, corpus: Path, asked: dict[str, Judge]) -> bytes:
    """The archive of a shipped model with new figures, which are printed."""
    shipped_folder, made = demo_models.folder_of(name), FOLDER / name
    files.discard(made)
    for path in sorted(path for path in shipped_folder.rglob("*") if path.is_file()):
        files.copy_into(path, made / path.relative_to(shipped_folder))
    archive = codec(made, corpus, asked) if name == pack_codec.NAME else base(made, corpus, asked)
    print((made / demo_models.FIGURES).read_text(encoding="utf-8"))
    return archive


def codec(made: Path, corpus: Path, asked: dict[str, Judge]) -> bytes:
    """The archive of a codec's folder."""
    measured = measure_codec.measure(made / TOKENIZER, corpus, measure_codec.SENTENCES, asked)
    return pack_codec.packed(made, {"steps": _steps(made), **measured})


def base(made: Path, corpus: Path, asked: dict[str, Judge]) -> bytes:
    """The archive of a base's folder, which is to hold its codec. Without the names of the studio's voices, should it have any."""
    steps = _steps(made)
    pack_base.nameless(made)
    return pack_base.packed(made, {"steps": steps, **pack_base.measure(made, corpus, make_base.VAL_SENTENCES, asked)})


def _steps(made: Path) -> object:
    return json.loads((made / demo_models.FIGURES).read_text(encoding="utf-8"))["steps"]


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
