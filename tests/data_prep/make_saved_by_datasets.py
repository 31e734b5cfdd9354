"""Folders as `datasets` writes them, for an environment without it:

    python -m tests.data_prep.make_saved_by_datasets

`one` is a Dataset with tool calls, whose absent keys Arrow fills with null; `splits` a DatasetDict of ShareGPT chats.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "saved_by_datasets"
CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
ONE: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Good day."}]},
    {
        "messages": [
            {"role": "user", "content": "Rain in Oslo?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "dry", "name": "weather"},
            {"role": "assistant", "content": "No."},
        ]
    },
]
SPLITS = {
    split: [{"conversations": [{"from": "human", "value": f"{split} {number}?"}, {"from": "gpt", "value": "Yes."}]} for number in range(2)]
    for split in ("train", "test")
}


def write(folder: Path) -> None:
    from datasets import Dataset, DatasetDict

    Dataset.from_list(ONE).save_to_disk(str(folder / "one"))
    DatasetDict({name: Dataset.from_list(rows) for name, rows in SPLITS.items()}).save_to_disk(str(folder / "splits"))


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    write(HERE)
