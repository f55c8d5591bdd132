"""Writes what `bench` has measured as an HTML page: a chart of what limits, speeds, what to change, the plan."""

from html import escape
from typing import Any

from dali_compat.cli.limits import BUSY, Bottleneck, Measured, shares

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
.bar{background:#8b949e44;border-radius:3px;position:relative;height:1.3rem}
.bar div{background:#2f81d6;height:100%;border-radius:3px}.bar.limits div{background:#c9510c}
.bar::after{content:"";position:absolute;left:BUSY;top:-2px;bottom:-2px;border-left:2px dashed currentColor}
.row{display:grid;grid-template-columns:11rem 1fr 3.5rem;gap:.7rem;align-items:center;margin:.3rem 0}
.row span:last-child{text-align:right}td,th{padding:.1rem .8rem .1rem 0;text-align:left}
table{overflow-x:auto;display:block}
@media(max-width:30rem){.row{grid-template-columns:7.5rem 1fr 3rem;font-size:.85rem}}
"""


def page(
    name: str, measured: Measured, found: list[Bottleneck], rows: list[tuple[str, str, str]], tips: list[str], plan: Any
) -> str:
    """Returns the page. ``rows`` are those of the printed table, ``plan`` what explain() has returned."""
    of_time = shares(measured)
    highest = max(of_time, key=lambda one: of_time[one])
    bars = "".join(
        f'<div class="row"><span>{escape(what)}</span><div class="bar{" limits" * (what == highest and part >= BUSY)}">'
        f'<div style="width:{min(part, 1):.1%}"></div></div><span>{part:.0%}</span></div>'
        for what, part in of_time.items()
    )
    why = "".join(f"<li><b>{escape(one.limit)}</b>: {escape(one.why)}</li>" for one in dict.fromkeys(found))
    table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    change = "".join(f"<li>{escape(tip)}</li>" for tip in tips)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{escape(name)}</title>
<style>{_STYLE.replace("BUSY", f"{BUSY:.0%}")}</style>
<h1>The bottleneck of {escape(name)}: {escape(found[0].limit)}</h1>
<p>Shares of the time from one batch to the next, loading alone. What reaches {BUSY:.0%} limits; where
nothing does, it is the decoder.</p>
{bars}<ul>{why}</ul><h2>Speed</h2><table>{table}</table><h2>What to change</h2><ul>{change}</ul>
<h2>What runs where</h2>{plan._repr_html_()}</html>
"""
