"""Results as tables, on the screen or in a document, and as a bar chart."""

from pathlib import Path
from typing import Any, NamedTuple

from workload import Workload

LABELS = {
    "ours": "fedjax_nc",
    "torch": "PyTorch",
    "torch_tuned": "PyTorch tuned",
    "pfl": "pfl",
    "flower": "Flower",
    "fedjax": "FedJAX",
}
DROPPED = "slower than another variant: left out after its warm-up rounds"
_COLUMNS = {
    "compile\ns": lambda r: f"{r['compile_seconds']:.1f}",
    "s per\nround": lambda r: f"{r['seconds']:.3f}",
    "least to\nmost": lambda r: f"{r['seconds_min']:.3g}-{r['seconds_max']:.3g}",
    "clients\n/s": lambda r: f"{r['clients_per_second']:.2f}",
    "images\n/s": lambda r: f"{r['images_per_second']:.0f}",
    "GFLOP\n/s": lambda r: f"{r['gflops']:.1f}",
    "% of\npeak": lambda r: f"{r['percent_of_peak']:.0f}",
    "peak\nMB": lambda r: f"{r['peak_memory_mb']:.0f}",
    "over\nours": lambda r: ratio(r["ratio"]),
}


class Sheet(NamedTuple):
    """A table as text."""

    title: str
    head: list[str]
    rows: list[list[str]]


def ratio(value: float) -> str:
    """1.53x."""
    return f"{value:.2f}x"


def title_of(row: dict[str, Any]) -> str:
    """The workload of a row of results."""
    return Workload(**row["workload"]).title


def panels(rows: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Rows that belong together, with a title: a workload's, or all of them if nobody else ran."""
    if all(row["name"] == "ours" for row in rows):
        return [("", rows)] if rows else []
    titles = dict.fromkeys(map(title_of, rows))
    return [(title, [row for row in rows if title_of(row) == title]) for title in titles]


def label(row: dict[str, Any], title: str) -> str:
    """What tells a row from the others under that title."""
    who = f"{LABELS[row['name']]}, {row['variant']}{' †' if row['dropped'] else ''}"
    return who if title else title_of(row)


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest variant of everyone on every workload; variants dropped in warm-up are out."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = title_of(row), row["name"]
        if not row["dropped"] and (key not in found or row["seconds"] < found[key]["seconds"]):
            found[key] = row
    return list(found.values())


def sheets(result: dict[str, Any]) -> list[Sheet]:
    """Whatever a results file holds."""
    made = []
    for title, rows in panels(result.get("rows", [])):
        cells = [[label(row, title), *(cell(row) for cell in _COLUMNS.values())] for row in rows]
        made.append(Sheet(title, ["", *_COLUMNS], rows=cells))
    if "unequal" in result:
        head = ["steps of ten clients", "unequal s/round", "equal s/round", "unequal / equal"]
        cells = [
            [name, f"{c['seconds']:.3f}", f"{c['equal_seconds']:.3f}", ratio(c["ratio"])]
            for name, c in result["unequal"]["cases"].items()
        ]
        made.append(Sheet(f"unequal clients, {result['unequal']['model']}", head, rows=cells))
    if "seeds" in result:
        s = result["seeds"]
        parts = {"a steady round": s, f"`{s['command']['command']}`": s["command"]}
        cells = [
            [name, f"{r['seconds']:.3f}", f"{r['one_seconds']:.3f}", ratio(r["ratio"])]
            for name, r in parts.items()
        ]
        head = ["", "three seeds s", "one seed s", "three / one"]
        made.append(Sheet(f"seeds in parallel, {s['model']}", head, rows=cells))
    if "growth" in result:
        g = result["growth"]
        parts = {
            "rounds 1 to 10 of 100": "first_ten",
            "rounds 91 to 100": "last_ten",
            "ten runs of 10": "short_runs",
        }
        cells = [
            [name, f"{g[f'{key}_seconds']:.3f}", f"{g[f'{key}_memory_mb']:.0f}"]
            for name, key in parts.items()
        ]
        made.append(Sheet(f"growth, {g['model']}", ["", "s/round", "MB"], rows=cells))
    if "start" in result:
        s = result["start"]
        cells = [
            ["empty compile cache", f"{s['cold_seconds']:.2f}"],
            ["warm compile cache", f"{s['warm_seconds']:.2f}"],
        ]
        head = [s["command"], "s to the end of the first round"]
        made.append(Sheet("start, imports included", head, rows=cells))
    if "method_cost" in result:
        cells = [
            [
                r["method"].replace("|", "\\|"),
                r["model"],
                f"{r['step_ms']:.2f}",
                ratio(r["step_ratio"]),
                ratio(r["round_ratio"]),
                ratio(r["memory_ratio"]),
            ]
            for r in result["method_cost"]["rows"]
        ]
        head = ["", "model", "ms per step", "step", "round", "memory"]
        made.append(Sheet("cost beside FedAvg's on the same model", head, rows=cells))
    if "models" in result:
        m = result["models"]
        cells = [
            [
                r["model"],
                f"{r['parameters'] / 1e6:.2f}",
                f"{r['mflops']:.1f}",
                f"{r['cold']:.1f}",
                f"{r['warm']:.1f}",
                f"{r['images_per_second']:.0f}",
                f"{r['gflops']:.0f}",
                f"{r['memory_mb']:.0f}",
            ]
            for r in m["rows"]
        ]
        head = [
            "",
            "M parameters",
            "MFLOPs",
            "compile s",
            "warm s",
            "images/s",
            "GFLOP/s",
            "MB per client",
        ]
        made.append(
            Sheet(f"local training of every model, batch {m['batch_size']}", head, rows=cells)
        )
    if "hessian" in result:
        made.append(_products(result["hessian"]))
    if "shapes" in result:
        made.append(_convolutions(result))
    return made


def _products(h: dict[str, Any]) -> Sheet:
    lines = []
    for r in h["rows"]:
        who = f"{LABELS[r['name']]}, {r['variant']}"
        lines.append(
            [
                who,
                f"{r['gradient']:.2f}",
                f"{r['product']:.2f}",
                ratio(r["ratio"]),
                ratio(r["over_ours"]),
                ratio(r["over_ours_in_program"]),
            ]
        )
        if r["name"] == "ours":
            each = r["seconds_in_program"]
            lines.append(
                [
                    f"{who}, {h['products']} products in one program",
                    f"{r['gradient']:.2f}",
                    f"{each:.2f}",
                    ratio(r["ratio_in_program"]),
                    ratio(each / r["product"]),
                    ratio(1.0),
                ]
            )
    title = (
        f"Hessian-vector products of {h['model']}, {h['images']} images ({h['of']}): top "
        f"eigenvalue {h['top']:.3g} (within {h['top_error']:.1g}), trace {h['trace']:.4g} "
        f"+- {h['trace_error']:.2g} (standard error)"
    )
    head = [
        "",
        "s per gradient",
        "s per product",
        "product / gradient",
        "over ours alone",
        "over ours in the program",
    ]
    return Sheet(title, head, rows=lines)


def _convolutions(result: dict[str, Any]) -> Sheet:
    shapes = result["shapes"]
    names = list(dict.fromkeys(name for row in shapes for name in row["milliseconds"]))
    lines = []
    for row in shapes:
        times = row["milliseconds"]
        cells = [f"{times[n]:.2f}" if n in times else "" for n in names]
        fastest = names.index(min(times, key=times.__getitem__))
        cells[fastest] = f"**{cells[fastest]}**"
        shape = f"{row['side']}², {row['inputs']}→{row['outputs']}, {row['kernel']}x{row['kernel']}"
        shape += f", stride {row['stride']}" if row["stride"] > 1 else ""
        shape += f", {row['groups']} groups" if row["groups"] > 1 else ""
        at_once = row.get("clients", 1)  # older results have none
        shape += f", {at_once} clients at once" if at_once > 1 else ""
        lines.append([shape, *cells, row["auto"]])
    title = f"milliseconds per step of {result['batch']} images on every core at once"
    return Sheet(title, ["layer", *names, "auto takes"], rows=lines)


def markdown(sheet: Sheet) -> str:
    """The table for a document."""
    lines = [sheet.head, ["---"] * len(sheet.head), *sheet.rows]
    return "\n".join("| " + " | ".join(line).replace("\n", " ") + " |" for line in lines)


def show(result: dict[str, Any]) -> None:
    """Print all tables, and what they were measured on."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:  # a file has room for every column
        console.width = 160
    console.print(about(result["machine"]))
    for sheet in sheets(result):
        table = Table(title=sheet.title or None, box=box.SIMPLE_HEAD, padding=0)
        for i, name in enumerate(sheet.head):
            table.add_column(name, no_wrap=i > 0, justify="right" if i else "left")
        for line in sheet.rows:
            table.add_row(*line)
        console.print(table)
    if any(row["dropped"] for row in result.get("rows", [])):
        console.print(f"† {DROPPED}")
    for row in best(result.get("rows", [])):
        if row["name"] != "ours":
            console.print(f"{ratio(row['ratio'])} {LABELS[row['name']]}: {title_of(row)}")


def about(machine: dict[str, Any]) -> str:
    """The machine in a line."""
    line = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB"
    if peak := machine.get("peak"):
        line += f"; peak {peak['gflops']:.0f} GFLOP/s ({peak['what']}, {peak['by']})"
    return line


def draw(result: dict[str, Any], path: Path) -> None:
    """Seconds per round as bars, the fastest variant of everyone, a panel per workload."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    parts = panels(best(result["rows"]))
    height = sum(0.45 * len(rows) + 0.9 for _, rows in parts)
    figure, axes = plt.subplots(
        len(parts),
        1,
        figsize=(8, height),
        squeeze=False,
        height_ratios=[len(rows) + 1 for _, rows in parts],
        layout="constrained",
    )
    for axis, (title, rows) in zip(axes[:, 0], parts, strict=True):
        colours = ["C0" if row["name"] == "ours" else "0.7" for row in rows]
        names = [label(row, title).replace(", ", "\n", 1) for row in rows]
        bars = axis.barh(names, [row["seconds"] for row in rows], color=colours)
        texts = [
            f" {row['seconds']:.2f} s" + (f"  {ratio(row['ratio'])}" if title else "")
            for row in rows
        ]
        axis.bar_label(bars, texts, fontsize=8)
        axis.set(xlabel="seconds per round", title=title)
        axis.margins(x=0.2)
        axis.invert_yaxis()
        axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
