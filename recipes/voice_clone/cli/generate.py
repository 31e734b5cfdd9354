"""`finetune generate`: speech from an exported folder, for one text or for a file of texts.

python -m finetune generate --model exports/me --speaker me --text "Hello, this is my voice." --out hello.wav

python -m finetune generate --model exports/me --speaker me --text-file lines.txt --out wavs/
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from finetune.errors import UserError, format_count
from finetune.storage import files
from recipes.speech.serving.audio_encoding import wav_header

from ..inference.exported_metadata import ExportedModel
from ..inference.synthesizer import Request, SpeechWithCodes, Synthesizer, check_request
from ..model.sampling_settings import CONFIG, STOCK, SamplingSettings, is_valid
from . import output_folder, text_inputs
from .text_inputs import TextLine

STDOUT = Path("-")
SAMPLING_HELP = {
    "temperature": "temperature of codebook 0",
    "top_k": "sample codebook 0 from the K most likely codes, 0 for all",
    "top_p": "sample codebook 0 from the most likely codes with this total probability",
    "repetition_penalty": "penalty on codes of codebook 0 that were already generated",
    "subtalker_temperature": "temperature of codebooks 1 to 15",
    "subtalker_top_k": "like --top-k, for codebooks 1 to 15; 1 takes the most likely code",
    "subtalker_top_p": "like --top-p, for codebooks 1 to 15",
}


def generate(folder: Path, argv: list[str]) -> int:
    """Body of the command: parse and check the arguments, load the model, speak, write. Raises `UserError` for an invalid request."""
    args = parse(argv)
    exported = ExportedModel.read(folder)
    if args.text_file is not None:
        return speak_file(exported, args)
    request, sampling = make_request(args), make_sampling(args)
    check_request(exported, request)
    if args.out.is_dir():
        raise UserError(f"--out {args.out} is a folder; --text writes one wav file: give its name, as in --out {args.out / 'hello.wav'}")
    with Synthesizer(exported) as voice:
        spoken = (stream_one if args.stream else speak_one)(voice, request, sampling, args.out)
    print_summary(exported, request, sampling, args.out, spoken)
    return 0


def speak_one(voice: Synthesizer, request: Request, sampling: SamplingSettings, out: Path) -> SpeechWithCodes:
    """Speak one text and write one wav file."""
    (spoken,) = voice.speak([request], sampling)
    data = output_folder.encode_wav(spoken.wave, spoken.rate)
    if out == STDOUT:
        sys.stdout.buffer.write(data)
    else:
        files.write_bytes(out, data)
    return spoken


def stream_one(voice: Synthesizer, request: Request, sampling: SamplingSettings, out: Path) -> SpeechWithCodes:
    """Write the audio while it is generated. A file gets its true length at the end; on stdout the header says that the length is
    unknown."""
    result: list[SpeechWithCodes] = []
    blocks = stream_wav(voice.stream(request, sampling), voice.rate, result)
    if out == STDOUT:
        for block in blocks:
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    else:
        files.make_folder(out.parent)
        files.write_blocks(out, blocks)
        files.write_bytes(out, output_folder.encode_wav(result[0].wave, result[0].rate))
    return result[0]


def stream_wav(chunks: Generator[np.ndarray, None, SpeechWithCodes], rate: int, result: list[SpeechWithCodes]) -> Iterator[bytes]:
    """The bytes of a wav of unknown length. At the end, the return value of `chunks` is appended to `result`."""
    yield wav_header(rate)
    while True:
        try:
            yield output_folder.encode_wav(next(chunks), rate)[output_folder.HEADER_BYTES :]
        except StopIteration as end:
            result.append(end.value)
            return


def print_summary(exported: ExportedModel, request: Request, sampling: SamplingSettings, out: Path, spoken: SpeechWithCodes) -> None:
    """Print a summary of one text to stdout, or to stderr if stdout has the audio."""
    to = sys.stderr if out == STDOUT else sys.stdout
    speaker = exported.speaker(request.speaker) if request.reference is None else None
    seconds = len(spoken.wave) / spoken.rate
    print(f"{out}: {seconds:.2f} s, {speaker or request.reference}, language {exported.language(request.language, speaker)}", file=to)
    if not spoken.ended:
        print(
            f"the speech was cut off at --max-seconds {sampling.max_seconds:g}: the model did not end it; more training may help",
            file=to,
        )


def speak_file(exported: ExportedModel, args: argparse.Namespace) -> int:
    """Write one wav per line of a file, in batches of similar length. Wavs from an earlier run are reused."""
    if args.stream:
        raise UserError("--stream works on one text; use --text, or remove --stream")
    if args.out == STDOUT or args.out.suffix == ".wav" or args.out.is_file():
        raise UserError(f"--out {args.out}: --text-file writes a folder of wav files; give a folder, as in --out wavs/")
    lines, sampling = text_inputs.read_lines(args.text_file, make_request(args)), make_sampling(args)
    text_inputs.check_lines(lines, lambda request: check_request(exported, request))
    model = output_folder.compute_model_key(exported)
    keys = {line.number: output_folder.compute_line_key(line.request, sampling, model) for line in lines}
    rows = {number: row for number, row in output_folder.read_manifest(args.out).items() if row.get("key") == keys.get(number)}
    rows = {number: row for number, row in rows.items() if (args.out / row["file"]).is_file()}
    missing = [line for line in lines if line.number not in rows]
    for line, spoken in speak_lines(exported, missing, sampling, args.batch) if missing else ():
        rows[line.number] = output_folder.write_line(args.out, line, spoken, exported, sampling, keys[line.number])
    output_folder.write_manifest(args.out, rows)
    print_file_summary(lines, rows, len(missing), sampling, args.out)
    return 0


def speak_lines(
    exported: ExportedModel, missing: list[TextLine], sampling: SamplingSettings, batch: int
) -> Iterator[tuple[TextLine, SpeechWithCodes]]:
    """Speak the longest texts first: a batch too large for memory fails at once, and the texts of a batch end at about the same time."""
    from tqdm import tqdm

    queue = sorted(missing, key=lambda line: len(line.request.text), reverse=True)
    with Synthesizer(exported) as voice, tqdm(total=len(queue), unit="text", disable=not sys.stderr.isatty()) as bar:
        for start in range(0, len(queue), batch):
            now = queue[start : start + batch]
            yield from zip(now, voice.speak([line.request for line in now], sampling), strict=True)
            bar.update(len(now))


def print_file_summary(
    lines: list[TextLine], rows: dict[int, dict[str, Any]], generated: int, sampling: SamplingSettings, out: Path
) -> None:
    """Print what the folder contains; `generated` counts the lines spoken by this run."""
    seconds = sum(row["seconds"] for row in rows.values())
    kept = f", {len(lines) - generated} of them from an earlier run" if generated < len(lines) else ""
    print(f"{out}: {format_count(len(lines), 'wav')}{kept}, {seconds:.1f} s of speech; {output_folder.MANIFEST} lists them")
    cut = [line.place for line in lines if not rows[line.number]["ended"]]
    if cut:
        print(f"{len(cut)} were cut off at --max-seconds {sampling.max_seconds:g} because the model did not end them: {', '.join(cut)}")


def make_request(args: argparse.Namespace) -> Request:
    """The request on the command line; for a text file, the defaults of its lines."""
    return Request(args.text or "", args.speaker, args.language, args.reference, args.reference_text, args.streamed_text)


def make_sampling(args: argparse.Namespace) -> SamplingSettings:
    return SamplingSettings(**{field.name: getattr(args, field.name) for field in fields(SamplingSettings)})


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the arguments of the command. Raises `UserError` for numbers out of range."""
    defaults = SamplingSettings()
    parser = argparse.ArgumentParser(
        prog="python -m finetune generate --model MODEL",
        description="Generate speech with an exported voice.",
        epilog="examples:\n  python -m finetune generate --model runs/voice_clone --text 'Hello, this is my voice.' --out hello.wav\n"
        "  python -m finetune generate --model exports/me --text-file lines.txt --out wavs/",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    in_out, voice, decoding = (parser.add_argument_group(title) for title in ("text and output", "voice", "sampling"))
    text = in_out.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", help="text to speak")
    text.add_argument(
        "--text-file", type=Path, metavar="FILE", help='a file with one text per line, or a .jsonl of {"text", "speaker", "language"}'
    )
    voice.add_argument("--speaker", help="speaker of the model (default: the only one, if it has one)")
    voice.add_argument("--language", help="language name, ISO code or auto (default: the language that the speaker was trained in)")
    voice.add_argument("--reference", type=Path, help="clip of a voice to clone instead of --speaker (base exports only)")
    voice.add_argument(
        "--reference-text",
        help="transcript of the clip: a released base then continues the style of the clip; exports were not trained for this",
    )
    in_out.add_argument(
        "--out", type=Path, help="wav file to write, or - for stdout; with --text-file a folder (default: speech.wav, or wavs)"
    )
    in_out.add_argument(
        "--stream", action="store_true", help="write the audio while it is generated, for example to a player: --out - | ffplay -"
    )
    in_out.add_argument("--batch", type=int, default=8, help="texts of --text-file per batch (default 8)")
    decoding.add_argument("--greedy", action="store_true", help="always take the most likely code instead of sampling")
    decoding.add_argument("--seed", type=int, default=defaults.seed, help="random seed of the sampling")
    for name, help_text in SAMPLING_HELP.items():
        kind = int if name.endswith("top_k") else float
        default = f"(default: from the model's {CONFIG}, else {STOCK[name]})"
        decoding.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"{help_text} {default}")
    decoding.add_argument(
        "--max-seconds", type=float, default=defaults.max_seconds, help="cut the speech off here if the model has not ended it"
    )
    decoding.add_argument("--streamed-text", action="store_true", help="feed the text token by token; training feeds the whole text first")
    args = parser.parse_args(argv)
    args.out = args.out or Path("speech.wav" if args.text_file is None else "wavs")
    check_numbers(args)
    return args


def check_numbers(args: argparse.Namespace) -> None:
    """Raise `UserError` for numbers out of range."""
    in_range = {
        "batch": args.batch >= 1,
        "seed": args.seed >= 0,
        "max_seconds": 0 < args.max_seconds < float("inf"),
        **{name: is_valid(name, value) for name in STOCK if (value := getattr(args, name, None)) is not None},
    }
    for name in (name for name, valid in in_range.items() if not valid):
        hint = "; --greedy always takes the most likely code" if name.endswith("temperature") else ""
        raise UserError(f"--{name.replace('_', '-')} {getattr(args, name):g} is out of range{hint}")
