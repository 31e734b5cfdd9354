"""The guarantees of data preparation, from recordings to clips, each checked by the tests in tests/data_prep/."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workshop.benchmarks import _table, _trials

TRIED = ("damaged_files", "ground_truth", "invented_text", "voice_interrupted")
TESTS = ("tests/data_prep/audio/test_stream_reader.py", *(f"tests/data_prep/test_{name}.py" for name in TRIED))
QUICK = ("tests/data_prep/test_ground_truth.py::test_no_word_is_clipped_or_lost", "tests/data_prep/audio/test_stream_reader.py")
NOTE = (
    "One run of all trials. The speech is flite's, so the time of every phone in it is known; noise, music and damage are made by the "
    "tests. A trial that goes wrong is a row of its own, named by its test."
)


def main() -> int:
    flags = _table.read_flags(__doc__)
    return _trials.measure("data_preparation", flags, QUICK if flags.quick else TESTS, NOTE)


if __name__ == "__main__":
    sys.exit(main())
