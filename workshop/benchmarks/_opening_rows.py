"""Open a data file through its index, making that if there is none, and read some of its samples: time and memory. Run by growth.py.

usage: _opening_rows.py FILE; the index lies beside it; prints one line of JSON
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.data import cached_samples, index_building
from overtone.finetune.data.index_building import Measured

READ = 1000


def resident_mib() -> float:
    """At its peak so far. Not `ru_maxrss`, in which a process inherits the peak of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    path = Path(sys.argv[1])
    before, began = resident_mib(), time.process_time()
    index_building.build_index(path, path.parent, "key", lambda row: Measured(len(row["text"]), sample=row["text"].encode()))
    found = cached_samples.open_rows(path, path.parent)
    seconds = time.process_time() - began
    chosen = random.Random(0).choices(range(len(found)), k=READ)
    assert all(len(found.sample(row)) == found.lengths[row] for row in chosen)
    print(json.dumps({"seconds": seconds, "mib": resident_mib() - before}), flush=True)


if __name__ == "__main__":
    main()
