"""The version of this package, apart from the package itself, which imports everything that its functions need."""

from __future__ import annotations

__version__ = "0.1.0"
