"""Charts as SVG: what a page of results needs of them, and no more."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from msgspec import Struct

WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 860.0, 22.0, 130.0, 150.0, 40.0, 44.0
PLOT_HEIGHT = 300.0
INK, FAINT = "#333333", "#dddddd"


class Series(Struct, frozen=True, kw_only=True):
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: str = ""


class Bar(Struct, frozen=True, kw_only=True):
    """From `start` to `end` in its row; a hollow one has only an outline."""

    start: float
    end: float
    colour: str
    hollow: bool = False
    label: str = ""
    """Beside its end."""


class Axis(Struct, frozen=True, kw_only=True):
    label: str
    ticks: Sequence[float]
    """From the least to the most that is shown."""

    def along(self, value: float) -> float:
        """Where a value is, from 0 to 1; what is beyond the end is at the end."""
        least, most = self.ticks[0], self.ticks[-1]
        return (min(max(value, least), most) - least) / (most - least)


def lines(title: str, x: Axis, y: Axis, series: Mapping[str, Series], *, mark: float, mark_label: str) -> str:
    """Lines with their names in a legend, and a level that is marked."""
    height = TOP + PLOT_HEIGHT + BOTTOM
    across = WIDTH - LEFT / 2 - RIGHT
    left = LEFT / 2

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return left + across * x.along(point[0]), TOP + PLOT_HEIGHT * (1 - y.along(point[1]))

    parts = [_text(left, 20, title, weight="bold")]
    for tick in y.ticks:
        _, at = place((x.ticks[0], tick))
        parts += [_line((left, at), (left + across, at), FAINT), _text(left - 6, at + 4, f"{tick:g}", anchor="end")]
    for tick in x.ticks:
        at, _ = place((tick, 0))
        parts.append(_text(at, TOP + PLOT_HEIGHT + 16, f"{tick:g}", anchor="middle"))
    _, marked = place((x.ticks[0], mark))
    parts += [
        _line((left, marked), (left + across, marked), INK, dashes="2 3"),
        _text(left + across - 4, marked - 5, mark_label, anchor="end", size=11),
        _text(left + across / 2, height - 8, x.label, anchor="middle"),
        f'<g transform="translate(14 {TOP + PLOT_HEIGHT / 2}) rotate(-90)">{_text(0, 0, y.label, anchor="middle")}</g>',
    ]
    for number, (name, one) in enumerate(series.items()):
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in map(place, one.points))
        dashes = f' stroke-dasharray="{one.dashes}"' if one.dashes else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{one.colour}" stroke-width="2"{dashes}/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{one.colour}"/>' for px, py in map(place, one.points)
        ]
        at, beside = TOP + 8 + 18 * number, left + across + 14
        parts += [_line((beside, at), (beside + 22, at), one.colour, 2, one.dashes), _text(beside + 28, at + 4, name)]
    return _document(height, parts)


def rows(title: str, x: Axis, each: Mapping[str, Iterable[Bar]], legend: Mapping[str, str]) -> str:
    """Bars in named rows over one axis. `legend` names colours."""
    height = TOP + ROW * len(each) + BOTTOM
    across = WIDTH - LEFT - 30
    bottom = TOP + ROW * len(each)
    parts = [_text(LEFT, 20, title, weight="bold")]
    for tick in x.ticks:
        at = LEFT + across * x.along(tick)
        parts += [_line((at, TOP), (at, bottom), FAINT), _text(at, bottom + 14, f"{tick:g}", anchor="middle", size=11)]
    for number, (name, bars) in enumerate(each.items()):
        middle = TOP + ROW * (number + 0.5)
        parts.append(_text(LEFT - 8, middle + 4, name, anchor="end"))
        for bar in bars:
            start, end = (LEFT + across * x.along(value) for value in (bar.start, bar.end))
            look = f'fill="{"none" if bar.hollow else bar.colour}" stroke="{bar.colour}"'
            parts.append(
                f'<rect x="{start:.1f}" y="{middle - 6:.1f}" width="{max(end - start, 1):.1f}" height="12" {look}/>'
            )
            parts += [_text(end + 5, middle + 4, bar.label, size=11)] if bar.label else []
    parts.append(_text(LEFT + across / 2, height - 8, x.label, anchor="middle"))
    beside = WIDTH - 20.0
    for name, colour in reversed(list(legend.items())):
        beside -= 16 + 7 * len(name)
        parts += [
            f'<rect x="{beside:.1f}" y="11" width="10" height="10" fill="{colour}"/>',
            _text(beside + 14, 20, name, size=11),
        ]
    return _document(height, parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    look = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{INK}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 1, dashes: str = "") -> str:
    look = f'stroke="{colour}" stroke-width="{width:g}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
    return f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" {look}/>'


def _document(height: float, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", ""])
