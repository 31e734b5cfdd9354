"""Resume as one would write it by hand: load a whole state dict and the optimizer's with torch.load, train one step; or, the first time,
save them.

usage: _resuming_by_hand.py FOLDER; prints one line of JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import AutoModelForCausalLM

from workshop.benchmarks.resume_time import LOADS, TEXT


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = folder / "by-hand.pt"

    def load() -> float:
        began = time.process_time()
        state = torch.load(kept, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return time.process_time() - began

    resumed = kept.exists()
    if resumed:
        load()
    ids = torch.tensor([list(TEXT.encode())] * 2)
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    first = time.process_time()
    if not resumed:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
    print(json.dumps({"first": first, "load": median(load() for _ in range(LOADS))}), flush=True)


if __name__ == "__main__":
    main()
