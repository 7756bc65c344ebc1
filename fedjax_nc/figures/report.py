"""The report: facts, tables and figures in one HTML file, for screen, paper and phone."""

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from fedjax_nc.figures.canvas import DOTS, Drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --back: #fff; --rule: #ccc; --soft: #666;
  --link: #0059a0; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e4e4; --back: #181818; --rule: #444;
  --soft: #a5a5a5; --link: #7ab8ee; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 68rem; color: var(--text);
  background: var(--back); font: 1rem/1.5 system-ui, sans-serif; }
h1 { line-height: 1.2; } h2 { border-top: 1px solid var(--rule); padding-top: 1.2rem; }
p, figcaption { max-width: 46rem; } a { color: var(--link); }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child, .facts td { text-align: left; }
.facts td { white-space: normal; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; break-inside: avoid; }
figure .wide { background: #fff; border: 1px solid var(--rule); border-radius: 4px; }
img { display: block; margin: 0 auto; max-width: 100%; height: auto; }
figcaption { font-size: .9rem; color: var(--soft); } figcaption b { color: var(--text); }
@media (max-width: 40rem) { img { max-width: none; width: max(100%, 36rem); } }
@media print { :root { --text: #000; --back: #fff; --soft: #333; --rule: #aaa; }
  body { max-width: none; padding: 0; font-size: 10pt; } img { width: auto; max-width: 100%; }
  h2, section > p { break-after: avoid; } .wide { overflow: visible; }
  th, td { white-space: normal; } }
"""


_LIMIT = 1_400_000  # bytes of all figures, in base64 1.9 MB of text
_STEPS = ((DOTS, 128), (80, 128), (60, 64))  # dots per inch, colours


class Table(NamedTuple):
    """A table of text; `canvas.show` writes its numbers."""

    header: list[str]
    rows: list[list[str]]


class Section(NamedTuple):
    """A section of the report."""

    title: str
    intro: str
    tables: list[Table]
    drawn: list[Drawn]


def page(title: str, facts: dict[str, str], sections: list[Section]) -> str:
    """Returns the report as one HTML file that needs no other."""
    contents = "".join(
        f'<li><a href="#part{i}">{escape(section.title)}</a></li>'
        for i, section in enumerate(sections, 1)
    )
    known = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    drawn = [item for section in sections for item in section.drawn]
    files = _encoded([item.figure for item in drawn])
    figures = iter([_figure(i, *pair) for i, pair in enumerate(zip(drawn, files, strict=True), 1)])
    parts = [_section(i, section, figures=figures) for i, section in enumerate(sections, 1)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>"
        f'<h1>{escape(title)}</h1>\n<div class="wide"><table class="facts">{known}</table></div>\n'
        f"<nav><h2>Contents</h2><ol>{contents}</ol></nav>\n{''.join(parts)}</body></html>\n"
    )


def _section(number: int, section: Section, figures: Iterator[str]) -> str:
    """Returns a section, which takes its figures from those that are left."""
    tables = "".join(_table(table) for table in section.tables)
    drawn = "".join(next(figures) for _ in section.drawn)
    return (
        f'<section id="part{number}"><h2>{number}. {escape(section.title)}</h2>\n'
        f"<p>{escape(section.intro)}</p>\n{tables}{drawn}</section>\n"
    )


def _table(table: Table) -> str:
    """Returns a table in a box that scrolls where it is too wide."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _cells(row: Sequence[str]) -> str:
    """Returns the cells of a row."""
    return "".join(f"<td>{escape(cell)}</td>" for cell in row)


def _figure(number: int, drawn: Drawn, file: bytes) -> str:
    """Returns a figure with its caption."""
    width = round(drawn.figure.get_figwidth() * DOTS)  # coarser ones are shown as large
    picture = base64.b64encode(file).decode()
    return (
        f'<figure id="figure{number}"><div class="wide">'
        f'<img alt="{escape(drawn.name.replace("_", " "))}" width="{width}" '
        f'src="data:image/png;base64,{picture}"></div>'
        f"<figcaption><b>Figure {number}.</b> {escape(drawn.caption)}</figcaption></figure>\n"
    )


def _encoded(figures: "list[Figure]") -> list[bytes]:
    """Encodes figures as PNG; the largest are made coarser until all fit into the limit."""
    steps = [0] * len(figures)
    files = [_png(figure, *_STEPS[0]) for figure in figures]
    while sum(map(len, files)) > _LIMIT:
        finer = [i for i, step in enumerate(steps) if step + 1 < len(_STEPS)]
        if not finer:
            break
        largest = max(finer, key=lambda i: len(files[i]))
        steps[largest] += 1
        files[largest] = _png(figures[largest], *_STEPS[steps[largest]])
    return files


def _png(figure: "Figure", dots: int, colours: int) -> bytes:
    """Encodes a figure with a palette: a third of the bytes of full colour, and fewer than SVG."""
    from PIL import Image

    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, format="png", dpi=dots)
    # the palette that covers most colours: one of frequent colours turns a thin diagonal grey
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    image = Image.open(whole).convert("RGB").quantize(colours, method, dither=dither)
    image.save(small, format="png", optimize=True)
    return small.getvalue()
