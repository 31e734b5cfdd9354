"""Text that is removed from transcripts because nobody speaks it: counted by kind, with examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

EXAMPLES = 3
LONGEST_EXAMPLE = 60


class RemovedKind(BaseModel):
    """Count of the removals of one kind of text, with the first examples."""

    model_config = ConfigDict(frozen=True)

    count: int
    examples: tuple[str, ...] = ()


@dataclass
class RemovedText:
    """The removals so far."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, example: str = "", count: int = 1) -> None:
        """Count a removal. An example that is already known is not repeated."""
        self.counts[kind] += count
        known = self.examples.setdefault(kind, [])
        shown = " ".join(example.split())[:LONGEST_EXAMPLE]
        if shown and len(known) < EXAMPLES and shown not in known:
            known.append(shown)

    def list_kinds(self) -> dict[str, RemovedKind]:
        """Return the removals by kind, the most frequent first."""
        return {
            kind: RemovedKind(count=count, examples=tuple(self.examples.get(kind, ())))
            for kind, count in sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        }


def format_removals(kinds: Mapping[str, RemovedKind]) -> str:
    """Format removed text as `3 sound and mood tags ([music], (laughs)); 1 soft hyphens`."""
    return "; ".join(f"{one.count} {kind}" + (f" ({', '.join(one.examples)})" if one.examples else "") for kind, one in kinds.items())
