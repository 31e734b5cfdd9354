"""`python -m recipes.voice_clone.demo`, which is `make demo`."""

from __future__ import annotations

import sys

from recipes.voice_clone.demo.pipeline import main

if __name__ == "__main__":
    sys.exit(main())
