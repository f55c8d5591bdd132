"""Draws a chart of bars, as a PNG."""

from typing import NamedTuple

from PIL import Image, ImageDraw

WIDTH, LEFT, RIGHT = 900, 250, 110
ROW, TITLE = 22, 30


class Bar(NamedTuple):
    """A bar of a chart: its label, its length, what stands at its end, and its colour."""

    label: str
    value: float
    text: str
    color: str


def save_bars(out: str, title: str, bars: list[Bar], note: str = "") -> None:
    """Save horizontal bars under a title, with a note below."""
    sheet = Image.new("RGB", (WIDTH, TITLE + ROW * len(bars) + TITLE), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((8, 8), title, fill="black")
    longest = max((bar.value for bar in bars), default=0) or 1
    for number, bar in enumerate(bars):
        top = TITLE + number * ROW
        length = round((WIDTH - LEFT - RIGHT) * bar.value / longest)
        draw.text((8, top + 3), bar.label, fill="black")
        draw.rectangle((LEFT, top + 2, LEFT + max(1, length), top + ROW - 4), fill=bar.color)
        draw.text((LEFT + length + 6, top + 3), bar.text, fill="black")
    draw.text((8, sheet.height - TITLE + 9), note, fill="black")
    sheet.save(out, format="PNG")
