"""Shared parts of all pages: Jinja environment, style sheet, formats of numbers and durations."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER = Path(__file__).parent


def make_environment(*folders: Path) -> Environment:
    """Return the Jinja environment for the templates in `folders`, which may import from each other, and `page_templates.html` from this
    folder."""
    jinja = Environment(
        loader=FileSystemLoader([*folders, FOLDER]), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    jinja.filters |= {
        "duration": format_duration,
        "number": format_number,
        "percent": format_percent,
        "clock": format_position,
        "plain": format_identifier,
    }
    return jinja


def read_style() -> str:
    """Return the style sheet."""
    return (FOLDER / "page.css").read_text(encoding="utf-8")


def format_number(value: float) -> str:
    """Format a number with three significant digits, separated thousands and a typographic minus sign."""
    rounded = float(f"{value:.3g}")
    text = f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"
    return text.replace(",", "\u202f").replace("-", "−")


def format_duration(seconds: float) -> str:
    """Format seconds as `2 h 05 min`, `3 min 20 s` or `4.2 s`."""
    if seconds >= 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours}\u00a0h {minutes:02d}\u00a0min"
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}\u00a0min {rest:02d}\u00a0s"
    return f"{seconds:.1f}\u00a0s"


def format_identifier(reason: str) -> str:
    """Return an identifier with spaces instead of underscores."""
    return reason.replace("_", " ")


def format_percent(share: float) -> str:
    """Format a share as `12.3 %`, with a no-break space."""
    return f"{share:.1%}".replace("%", "\u202f%")


def format_position(seconds: float) -> str:
    """Format a position in a recording as `1:02:03.4`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}" if hours else f"{minutes}:{rest:04.1f}"
