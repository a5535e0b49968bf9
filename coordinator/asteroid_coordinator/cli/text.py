"""Small pieces of text: durations, sizes, bars, curves; and what came over the network made safe for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"


def clean(text: object) -> str:
    """Text of others for a terminal: control characters (escape sequences among them) become ``?``."""
    return "".join(c if c.isprintable() else ("?" if c not in "\n\t" else " ") for c in str(text))


def duration(seconds: float | None) -> str:
    """``0.8 ms``, ``12 ms``, ``3.4 s``, ``5 min 03 s``, ``2 h 05 min``, ``3 d 4 h``."""
    if seconds is None or seconds != seconds or seconds in (float("inf"), float("-inf")):
        return "-"
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def megabytes(value: float | None) -> str:
    """``512 MB`` or ``7.8 GB``."""
    if value is None:
        return "-"
    return f"{value:.0f} MB" if value < 1000 else f"{value / 1000:.1f} GB"


def percent(part: float | None) -> str:
    """``97.4 %`` of a part of one."""
    return "-" if part is None else f"{part * 100:.1f} %"


def bar(part: float, width: int = 12) -> str:
    """A bar of ``width`` cells, in eighths of a cell; beyond one it is full."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")


def curve(values: Sequence[float], width: int = 32) -> str:
    """A curve in one line of text; each cell is the mean of its part of the values."""
    finite = [v for v in values if v == v and abs(v) != float("inf")]
    if not finite:
        return ""
    cells = min(width, len(finite))
    means = []
    for cell in range(cells):
        piece = finite[cell * len(finite) // cells : (cell + 1) * len(finite) // cells]
        means.append(sum(piece) / len(piece))
    low, high = min(means), max(means)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(_LEVELS[round((mean - low) * scale)] for mean in means)
