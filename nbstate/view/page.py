"""The page that a run leaves in the notebook: HTML that needs nothing, and the same as plain text.

No script, no style sheet, no widget: it reads well in a fresh JupyterLab without a kernel, in
nbconvert's HTML, on GitHub, and with every style taken away. Text of ranks is escaped, always.
"""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbstate.job.output import Cursor
from nbstate.view.sheet import Drawing, Sheet
from nbstate.view.terminal import Screen
from nbstate.wire import WIDGET_MIME

if TYPE_CHECKING:
    from nbstate.job import Job
    from nbstate.job.ranks import Rank
    from nbstate.relay.widgets import Widgets
    from nbstate.view.publish import Bundle
    from nbstate.view.sheet import Block
    from nbstate.view.terminal import Line

TAIL = 200
"""Lines of a rank that stay in the notebook."""
OPEN_RANKS = 4
"""Up to so many ranks stand open; of more, only the first and those that failed."""

MARKS = {"starting": "…", "running": "▸", "done": "✓", "failed": "✗", "stopped": "■"}
"""A sign beside each state's word, so that colour is never the only one."""
COLOURS = {"done": "#1f883d", "failed": "#d73a49", "stopped": "#9a6700"}

_LINE = "border-top:1px solid rgba(128,128,128,.35);padding:3px 0"
_PRE = (
    "margin:2px 0 4px 14px;max-height:300px;overflow:auto;white-space:pre-wrap;"
    "overflow-wrap:anywhere;font-size:12px;line-height:1.35"
)
_DIM = "opacity:.75"


@dataclass(frozen=True, slots=True)
class Page:
    """A finished run, to be shown any time.

    Parameters
    ----------
    html, plain
        The same page in two forms.
    drawings
        How many figures and other things that are more than text stand on it.
    """

    html: str
    plain: str
    drawings: int = 0

    def bundle(self) -> Bundle:
        """Return the page as a mime bundle."""
        return {"text/html": self.html, "text/plain": self.plain}

    def _repr_mimebundle_(self, **_: Any) -> Bundle:
        return self.bundle()

    def __repr__(self) -> str:
        return self.plain


def make_page(job: Job, widgets: Widgets | None = None, *, timed: bool = True) -> Page:
    """Return the page of a job as it is now.

    Parameters
    ----------
    widgets
        The last states of the ranks' widgets, which stand on the page as text.
    timed
        Tell what differs between two equal runs: the time it took, and paths that are only worth
        telling. Without it, equal runs leave equal pages.
    """
    sheets = [_sheet(rank, widgets) for rank in job.ranks]
    parts = [_heading(job, timed=timed)]
    parts += [f'<div style="white-space:pre-wrap">{html.escape(note)}</div>' for note in job.notes]
    plain = [summary(job, timed=timed), *job.notes]
    for rank, sheet in zip(job.ranks, sheets, strict=True):
        opened = len(job.ranks) <= OPEN_RANKS or rank.index == 0 or rank.state == "failed"
        parts.append(section(rank, sheet, opened=opened, timed=timed))
        plain.append(_plain_section(rank, sheet))
    return Page(
        html='<div style="font-size:13px">' + "\n".join(parts) + "</div>",
        plain="\n".join(plain),
        drawings=sum(bool(d.data.keys() - {"text/plain"}) for s in sheets for d in s.drawings()),
    )


def summary(job: Job, *, timed: bool = True) -> str:
    """Return one line about a job, such as 'train: done on 2 ranks in 1.2 s'."""
    ranks = "1 rank" if job.world_size == 1 else f"{job.world_size} ranks"
    took = f" in {duration(job.elapsed)}" if timed else ""
    return f"{job.name}: {job.state} on {ranks}{took}"


def duration(seconds: float) -> str:
    """Return a time as a person would say it.

    Examples
    --------
    >>> duration(1.234), duration(75), duration(7384)
    ('1.2 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def describe(data: Bundle, widgets: Widgets | None) -> str:
    """Return a drawing as text; of a widget its last state."""
    known = ""
    if widgets is not None and WIDGET_MIME in data:
        known = widgets.describe(data[WIDGET_MIME]["model_id"])
    return known or "".join(data.get("text/plain", "")) or ", ".join(data)


def _sheet(rank: Rank, widgets: Widgets | None) -> Sheet:
    sheet = Sheet(TAIL)
    piece = rank.output.read(Cursor())
    sheet.dropped = piece.missed
    sheet.take(piece.entries)
    for drawing in sheet.drawings():
        if WIDGET_MIME in drawing.data:
            drawing.data = {"text/plain": describe(drawing.data, widgets)}
    return sheet


def _heading(job: Job, *, timed: bool) -> str:
    facts = [html.escape(job.where)] if job.where else []
    if timed:
        facts.append(duration(job.elapsed))
    first = str(job.error).splitlines()[:1] if job.error is not None else []
    said = "".join(f'<div style="color:{COLOURS["failed"]}">{html.escape(e)}</div>' for e in first)
    about = " · ".join(facts)
    return (
        f"<div><b>{html.escape(job.name)}</b> {_state(job.state)}"
        f' <span style="{_DIM}">{about}</span></div>{said}'
    )


def _state(state: str) -> str:
    colour = COLOURS.get(state)
    style = f' style="color:{colour}"' if colour else ""
    return f"<span{style}>{MARKS.get(state, '')} {html.escape(state)}</span>"


def section(
    rank: Rank, sheet: Sheet, *, opened: bool, timed: bool = True, drawn: bool = True
) -> str:
    """Return one rank's part of a page as HTML.

    Parameters
    ----------
    opened
        Whether it stands open.
    drawn
        With drawings, or only a line in the place of each.
    """
    lines = rank.output.lines
    facts = [f"{lines:,} line{'' if lines == 1 else 's'}"] if lines else ["no output"]
    if rank.exitcode:
        facts.append(f"exit code {rank.exitcode}")
    body = [_cut_line(rank, sheet)] if sheet.dropped else []
    body += [_block(block, drawn=drawn) for block in sheet.blocks()]
    if rank.output.log_error is not None:
        body.append(_aside(f"the log is incomplete: {rank.output.log_error}"))
    elif timed and lines and not sheet.dropped:
        body.append(_aside(f"log: {rank.output.path}"))
    return (
        f'<details{" open" if opened and body else ""} style="{_LINE}">'
        f"<summary><b>rank {rank.index}</b> {_state(rank.state)}"
        f' <span style="{_DIM}">{html.escape(" · ".join(facts))}</span></summary>'
        f"{''.join(body)}</details>"
    )


def _plain_section(rank: Rank, sheet: Sheet) -> str:
    drawings = sum(1 for _ in sheet.drawings())
    drawn = f", {drawings} drawing{'' if drawings == 1 else 's'}" if drawings else ""
    last = sheet.last_line()
    return f"rank {rank.index}: {rank.state}{drawn}" + (f"; last line: {last}" if last else "")


def _cut_line(rank: Rank, sheet: Sheet) -> str:
    return _aside(f"... {sheet.dropped:,} lines before these only in {rank.output.path}")


def _aside(text: str) -> str:
    return f'<div style="{_DIM};margin-left:14px;font-size:12px">{html.escape(text)}</div>'


def _block(block: Block, *, drawn: bool) -> str:
    if isinstance(block, list):
        return _text(block)
    return _drawn(block) if drawn else _aside("a drawing, shown when the run has ended")


def _text(lines: list[Line]) -> str:
    return f'<pre style="{_PRE}">' + "\n".join(line.html() for line in lines) + "</pre>"


def _drawn(drawing: Drawing) -> str:
    data = drawing.data
    for mime in ("image/png", "image/jpeg", "image/gif"):
        if mime in data:
            return _image(mime, "".join(str(data[mime]).split()), drawing)
    if "image/svg+xml" in data:  # inline SVG would be removed from a page that is not trusted
        svg = "".join(data["image/svg+xml"]).encode()
        return _image("image/svg+xml", base64.b64encode(svg).decode(), drawing)
    if "text/html" in data:
        return f'<div style="margin-left:14px">{"".join(data["text/html"])}</div>'
    for mime in ("text/markdown", "text/latex", "text/plain"):
        if mime in data:
            screen = Screen()  # a text may have colours, such as that of an Output widget
            screen.feed("".join(data[mime]))
            return _text(screen.take_all())
    return _aside(f"a drawing of type {', '.join(data)}")


def _image(mime: str, encoded: str, drawing: Drawing) -> str:
    said = html.escape("".join(drawing.data.get("text/plain", "drawing")), quote=True)
    # A retina figure has half the size of its pixels. One side, so that it keeps its shape where
    # the page is narrow.
    size = drawing.metadata.get(mime, {})
    side = next((side for side in ("width", "height") if side in size), None)
    given = f' {side}="{html.escape(str(size[side]))}"' if side else ""
    return (
        f'<div style="margin-left:14px"><img src="data:{mime};base64,{encoded}" alt="{said}"'
        f'{given} style="max-width:100%"></div>'
    )
