"""`python -m overtone.recipes.voice_clone.demo`, which is `make demo`; `--seed N` trains with another seed."""

from __future__ import annotations

import sys

from overtone.finetune.errors import catch_user_errors
from overtone.recipes.voice_clone.demo.pipeline import main

if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
