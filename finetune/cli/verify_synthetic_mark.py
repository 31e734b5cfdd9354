"""overtone verify-audio FILE…

Say which audio files are marked as synthetic speech, by which software, and of which model; of folders, all audio files in them. Exit code
0 if all files are marked, 1 if one is not, 2 for an error. It reads tags, and cannot recognize synthetic speech: who converts a file can
remove its mark.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage.synthetic_audio_mark import find_synthetic_mark, read_synthetic_mark
from overtone.finetune.terminal import print_line

EXTENSIONS = frozenset({".wav", ".flac", ".mp3", ".opus", ".ogg", ".aac", ".m4a", ".mp4", ".webm", ".aiff", ".aif", ".wma"})
"""Files in folders that are read; a file by its name is read whatever its extension."""


@catch_user_errors
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "overtone verify-audio", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="FILE", help="audio files, or folders of them")
    paths = list(list_audio_files(parse_arguments(parser, argv).paths))
    marked = [print_mark(path) for path in paths]
    print_line(f"{sum(marked)} of {len(marked)} files are marked as synthetic speech")
    return 0 if all(marked) else 1


def list_audio_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the given files, and those in given folders at any depth. Raises `UserError` for a path that is neither, and for a folder
    without audio files."""
    for path in paths:
        if path.is_file():
            yield path
            continue
        if not path.is_dir():
            raise UserError(f"{path}: no such file; give audio files, or folders of them")
        found = sorted(one for one in path.rglob("*") if one.suffix.lower() in EXTENSIONS and one.is_file())
        if not found:
            raise UserError(f"{path}: contains no audio files ({', '.join(sorted(EXTENSIONS))}); give audio files, or another folder")
        yield from found


def print_mark(path: Path) -> bool:
    """Print what the tags of a file say; returns whether it is marked. Raises `UserError` for a file that cannot be read."""
    try:
        own = read_synthetic_mark(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    other = find_synthetic_mark(path)
    if own is not None:
        print_line(f"{path}: synthetic speech, {f'model {own.model}, ' if own.model else ''}made with {own.software}")
    elif other:
        print_line(f"{path}: marked by another tool: {other}")
    else:
        print_line(f"{path}: no mark")
    return own is not None or bool(other)
