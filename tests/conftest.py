"""What all tests share: properties are searched without a stopwatch, since the machine may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")
