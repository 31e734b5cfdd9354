"""Speak with an exported folder: one text, or a file of texts.

python -m finetune generate --model exports/me --speaker me --text "Hello, this is my voice." --out hello.wav
python -m finetune generate --model exports/me --speaker me --text-file lines.txt --out wavs/
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError
from finetune.storage import files
from recipes.speech.serving.audio_encoding import wav_header

from ..inference.exported_model import Exported
from ..inference.synthesizer import Request, Spoken, Synthesizer, check
from ..model.sampling_settings import CONFIG, STOCK, Sampling, sound
from . import output_folder, text_inputs
from .text_inputs import Line

if TYPE_CHECKING:
    import numpy as np

STDOUT = Path("-")
SAMPLING_HELP = {
    "temperature": "temperature of codebook 0",
    "top_k": "sample codebook 0 among the most likely K codes, 0 for all",
    "top_p": "sample codebook 0 among the most likely codes of this total probability",
    "repetition_penalty": "penalty on codes of codebook 0 that were generated before",
    "subtalker_temperature": "temperature of codebooks 1 to 15",
    "subtalker_top_k": "as --top-k, for codebooks 1 to 15; 1 takes the most likely code",
    "subtalker_top_p": "as --top-p, for codebooks 1 to 15",
}


def generate(folder: Path, argv: list[str]) -> int:
    """Body of the verb: check the arguments, load, speak, write. Raises `UserError` for a request that the model cannot speak."""
    args = parse(argv)
    exported = Exported.of(folder)
    if args.text_file is not None:
        return speak_file(exported, args)
    request, sampling = make_request(args), make_sampling(args)
    check(exported, request)
    if args.out.is_dir():
        raise UserError(f"--out {args.out} is a folder; --text makes one wav: name it, as in --out {args.out / 'hello.wav'}")
    with Synthesizer(exported) as voice:
        spoken = (stream_one if args.stream else speak_one)(voice, request, sampling, args.out)
    print_summary(exported, request, sampling, args.out, spoken)
    return 0


def speak_one(voice: Synthesizer, request: Request, sampling: Sampling, out: Path) -> Spoken:
    """Write one text as one wav."""
    (spoken,) = voice.speak([request], sampling)
    sound = output_folder.wav(spoken.wave, spoken.rate)
    if out == STDOUT:
        sys.stdout.buffer.write(sound)
    else:
        files.write_bytes(out, sound)
    return spoken


def stream_one(voice: Synthesizer, request: Request, sampling: Sampling, out: Path) -> Spoken:
    """Write one text as a wav while it is generated. A file gets its length at the end; on stdout the length stays unknown."""
    result: list[Spoken] = []
    blocks = encode_wav(voice.stream(request, sampling), voice.rate, result)
    if out == STDOUT:
        for block in blocks:
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    else:
        files.make_folder(out.parent)
        files.write_blocks(out, blocks)
        files.write_bytes(out, output_folder.wav(result[0].wave, result[0].rate))
    return result[0]


def encode_wav(chunks: Generator[np.ndarray, None, Spoken], rate: int, result: list[Spoken]) -> Iterator[bytes]:
    """The bytes of a wav of unknown length. At its end the generator's return value is appended to `result`."""
    yield wav_header(rate)
    while True:
        try:
            yield output_folder.wav(next(chunks), rate)[output_folder.HEADER :]
        except StopIteration as end:
            result.append(end.value)
            return


def print_summary(exported: Exported, request: Request, sampling: Sampling, out: Path, spoken: Spoken) -> None:
    """Print to stderr if the audio goes to stdout."""
    to = sys.stderr if out == STDOUT else sys.stdout
    speaker = exported.speaker(request.speaker) if request.reference is None else None
    seconds = len(spoken.wave) / spoken.rate
    print(f"{out}: {seconds:.2f} s, {speaker or request.reference}, language {exported.language(request.language, speaker)}", file=to)
    if not spoken.ended:
        print(
            f"it was cut off at --max-seconds {sampling.max_seconds:g}: the model did not end by itself, as happens with little training",
            file=to,
        )


def speak_file(exported: Exported, args: argparse.Namespace) -> int:
    """Write a wav for each line of a file, in batches of similar length. The wavs of an earlier run are kept."""
    if args.stream:
        raise UserError("--stream: one text at a time; give --text, or drop --stream")
    if args.out == STDOUT or args.out.suffix == ".wav" or args.out.is_file():
        raise UserError(f"--out {args.out}: --text-file makes a folder of wavs; name a folder, as in --out wavs/")
    found, sampling = text_inputs.read(args.text_file, make_request(args)), make_sampling(args)
    text_inputs.check_all(found, lambda request: check(exported, request))
    model = output_folder.model_key(exported)
    keys = {line.number: output_folder.key_of(line.request, sampling, model) for line in found}
    rows = {number: row for number, row in output_folder.made(args.out).items() if row.get("key") == keys.get(number)}
    rows = {number: row for number, row in rows.items() if (args.out / row["file"]).is_file()}
    missing = [line for line in found if line.number not in rows]
    for line, spoken in speak_lines(exported, missing, sampling, args.batch) if missing else ():
        rows[line.number] = output_folder.keep(args.out, line, spoken, exported, sampling, keys[line.number])
    output_folder.settle(args.out, rows)
    print_file_summary(found, rows, len(missing), sampling, args.out)
    return 0


def speak_lines(exported: Exported, missing: list[Line], sampling: Sampling, batch: int) -> Iterator[tuple[Line, Spoken]]:
    """Longest first, so that a batch too large for memory fails at once, and the texts of a batch end at about the same time."""
    from tqdm import tqdm

    queue = sorted(missing, key=lambda line: len(line.request.text), reverse=True)
    with Synthesizer(exported) as voice, tqdm(total=len(queue), unit="text", disable=not sys.stderr.isatty()) as bar:
        for start in range(0, len(queue), batch):
            now = queue[start : start + batch]
            yield from zip(now, voice.speak([line.request for line in now], sampling), strict=True)
            bar.update(len(now))


def print_file_summary(found: list[Line], rows: dict[int, dict[str, Any]], made: int, sampling: Sampling, out: Path) -> None:
    seconds = sum(row["seconds"] for row in rows.values())
    kept = f", {len(found) - made} of them made before" if made < len(found) else ""
    print(f"{out}: {len(found)} wavs{kept}, {seconds:.1f} s of speech; {output_folder.MANIFEST} lists them")
    cut = [line.place for line in found if not rows[line.number]["ended"]]
    if cut:
        print(f"{len(cut)} were cut off at --max-seconds {sampling.max_seconds:g}, where the model did not end by itself: {', '.join(cut)}")


def make_request(args: argparse.Namespace) -> Request:
    """The request that the command line describes; for a text file, what its lines have in common."""
    return Request(args.text or "", args.speaker, args.language, args.reference, args.reference_text, args.streamed_text)


def make_sampling(args: argparse.Namespace) -> Sampling:
    return Sampling(**{field.name: getattr(args, field.name) for field in fields(Sampling)})


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments. Raises `UserError` for numbers out of range."""
    defaults = Sampling()
    parser = argparse.ArgumentParser(prog="python -m finetune generate --model FOLDER", description="Speak with an exported voice.")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", help="text to speak")
    text.add_argument("--text-file", type=Path, metavar="FILE", help='one text a line, or a .jsonl of {"text", "speaker", "language"}')
    parser.add_argument("--speaker", help="speaker of the model (default: its only one)")
    parser.add_argument("--language", help="language name, ISO code or auto (default: the one that the speaker was trained with)")
    parser.add_argument("--reference", type=Path, help="clip of a voice to clone instead (base exports only)")
    parser.add_argument(
        "--reference-text", help="transcript of the clip: a released base then continues its manner; exports were not trained for it"
    )
    parser.add_argument("--out", type=Path, help="wav file to write, or - for stdout; with --text-file a folder (default speech.wav, wavs)")
    parser.add_argument("--stream", action="store_true", help="write the audio while it is generated, for a player: --out - | ffplay -")
    parser.add_argument("--batch", type=int, default=8, help="texts of --text-file per batch (default 8)")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely code instead of sampling")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="seed of the sampling")
    for name, help_text in SAMPLING_HELP.items():
        kind = int if name.endswith("top_k") else float
        default = f"(default: from the model's {CONFIG}, else {STOCK[name]})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"{help_text} {default}")
    parser.add_argument("--max-seconds", type=float, default=defaults.max_seconds, help="stop there if the model does not end by itself")
    parser.add_argument("--streamed-text", action="store_true", help="feed the text token by token; training here feeds it whole")
    args = parser.parse_args(argv)
    args.out = args.out or Path("speech.wav" if args.text_file is None else "wavs")
    check_numbers(args)
    return args


def check_numbers(args: argparse.Namespace) -> None:
    """Raise `UserError` for numbers out of range."""
    bounds = {
        "batch": args.batch >= 1,
        "seed": args.seed >= 0,
        "max_seconds": 0 < args.max_seconds < float("inf"),
        **{name: sound(name, value) for name in STOCK if (value := getattr(args, name, None)) is not None},
    }
    for name in (name for name, within in bounds.items() if not within):
        hint = "; --greedy always takes the most likely code" if name.endswith("temperature") else ""
        raise UserError(f"--{name.replace('_', '-')} {getattr(args, name):g} is out of its range{hint}")
