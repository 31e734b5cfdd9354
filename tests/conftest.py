"""What all tests share: properties are searched without a stopwatch, since the machine may be busy."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run: a suite that fails now and then teaches people to run it again.
settings.register_profile("busy machine", deadline=None, derandomize=True)
settings.load_profile("busy machine")
