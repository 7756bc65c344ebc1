"""The board's page: what is in it, what it leaves out, how large it is; not how it behaves."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import yaml
from runs import DATA, FEW, PLAIN, ROOT, train

from fedjax_nc.cli import board, main
from fedjax_nc.io import facts

pytest.importorskip("bokeh", reason="pip install 'fedjax_nc[board]'")

LARGEST = 3_000_000  # bytes
HOSTILE = '<img src=x onerror=alert(1)> | "q" \'</script><b>'


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A finished run of three rounds, without its checkpoints."""
    out = tmp_path_factory.mktemp("small")
    directory = train(out, ["--method=fedavg", *DATA, *FEW, *PLAIN, "--rounds=3"])
    shutil.rmtree(directory / "ckpt")
    return directory


def copy(small, to, rounds=3, shift=0.0, **changes):
    """The same run under other settings, with other accuracies."""
    to.mkdir(parents=True)
    cfg = yaml.safe_load((small / "config.yaml").read_text())
    for name, value in changes.items():
        group, _, field = name.rpartition("__")
        (cfg[group] if group else cfg)[field] = value
    (to / "config.yaml").write_text(yaml.safe_dump(cfg | {"rounds": rounds}))
    first = json.loads((small / "metrics.jsonl").read_text().splitlines()[0])
    first = {name: value for name, value in first.items() if not isinstance(value, list)}
    rows = [
        first
        | {"round": n, "global_accuracy": (n / rounds) ** 0.3 / 1.1 - shift, "global_loss": 2 / n}
        for n in range(1, rounds + 1)
    ]
    (to / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = json.loads((small / "summary.json").read_text())
    summary |= {"rounds": rounds, "global_accuracy": rows[-1]["global_accuracy"]}
    summary |= {"method": cfg["method"], "seed": cfg["seed"]}
    del summary["checksum"]
    (to / "summary.json").write_text(json.dumps(facts.sealed(summary)))
    return to


class Page(HTMLParser):
    """What a browser would see of the page's tags and texts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts, self.inside = [], {}, []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.inside.append(dict(attrs).get("id") or tag)

    def handle_endtag(self, tag):
        self.inside.pop()

    def handle_data(self, text):
        place = self.inside[-1] if self.inside else ""
        self.texts[place] = self.texts.get(place, "") + text

    @property
    def data(self):
        return json.loads(self.texts["data"])


def written(folder, *argv):
    to = folder / "board.html"
    assert main.main(["board", *map(str, argv), f"--to={to}"]) == 0
    return Page(to.read_text())


def test_two_hundred_runs_are_below_three_megabytes(small, tmp_path, capfd):
    for i in range(200):
        settings = {"method": ("fedavg", "fedprox", "moon", "fedetf")[i % 4], "seed": i % 5}
        settings |= {"data__alpha": 0.1 + i // 20, "local__lr": 0.01 * (1 + i % 3)}
        copy(small, tmp_path / "runs" / str(i), rounds=210, shift=i / 1000, **settings)
    page = written(tmp_path, tmp_path / "runs")
    assert len((tmp_path / "board.html").read_bytes()) < LARGEST
    assert len(page.data["runs"]) == 200
    assert [s["name"] for s in page.data["settings"]] == [
        "method",
        "data.alpha",
        "local.lr",
        "seed",
    ]
    for run in page.data["runs"]:
        rounds = page.data["rounds"][run["schedule"]]
        assert rounds[-1] == 210 and 20 <= len(rounds) < 300
        assert all(len(curve) == len(rounds) for curve in run["curves"].values())
    assert f"thinned to {len(rounds)} of up to 210 tested rounds" in page.texts["p"]
    assert re.search(r"^written: .*board.html \(200 runs, \d\.\d MB\)$", capfd.readouterr().err)


def test_page_holds_what_the_runs_hold(small, tmp_path):
    first = copy(small, tmp_path / "runs/a/seed0", seed=0)
    second = copy(small, tmp_path / "runs/a/seed1", seed=1, shift=0.1)
    (second / "analysis").mkdir()
    (second / "analysis/report.html").write_text("")
    page = written(tmp_path, tmp_path / "runs")
    one, two = page.data["runs"]
    assert [run["link"] for run in (one, two)] == ["runs/a/seed0/", "runs/a/seed1/"]
    assert (one["report"], two["report"]) == ("", "runs/a/seed1/analysis/report.html")
    rows = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    accuracy = [round(100 * row["global_accuracy"], 2) for row in rows]
    assert one["curves"]["global_accuracy"] == accuracy and page.data["rounds"] == [[1, 2, 3]]
    summary = json.loads((first / "summary.json").read_text())
    for name in ("client_accuracy", "client_accuracy_std", "client_accuracy_worst"):
        assert one["values"][name] == pytest.approx(100 * summary[name], abs=0.01)
    assert page.data["settings"] == [{"name": "seed", "values": ["0", "1"], "telling": True}]
    assert page.data["t"] == [12.7062]  # Student's, of one degree of freedom


def test_what_differs_is_a_filter_and_the_rest_is_listed(small, tmp_path):
    for i, alpha in enumerate((0.1, 0.05, 10.0)):
        copy(small, tmp_path / "runs" / str(i), data__alpha=alpha, data__partition="dirichlet")
    page = written(tmp_path, tmp_path / "runs")
    (setting,) = page.data["settings"]
    assert setting["name"] == "data.alpha" and setting["values"] == ["0.05", "0.1", "10"]
    shared = page.texts["dt"]
    assert "data.partition" in shared and "data.alpha" not in shared and "data.dir" not in shared


def test_no_text_of_a_run_is_html(small, tmp_path):
    copy(small, tmp_path / "runs" / HOSTILE.replace("/", "-"), method=HOSTILE, model=HOSTILE)
    copy(small, tmp_path / "runs/[[script]]", method="[[data]]", model="mlp")
    broken = copy(small, tmp_path / "runs/z<script>", seed=3)
    (broken / "metrics.jsonl").write_text("<script>")
    page = written(tmp_path, tmp_path / "runs")
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 3 and not {"img", "b"} & set(tags)
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert HOSTILE in page.texts["span"] and "[[data]]" in page.texts["span"]
    methods = page.data["settings"][0]["values"]
    assert set(methods) == {HOSTILE, "[[data]]"}
    assert all("<" not in run["link"] and '"' not in run["link"] for run in page.data["runs"])


def test_page_asks_for_nothing(small, tmp_path):
    page = written(tmp_path, small)
    assert not [
        (tag, name) for tag, attrs in page.tags for name in ("src", "href") if name in attrs
    ]
    assert "link" not in [tag for tag, _ in page.tags]
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'") and policy.count("'sha256-") == 2


def test_damaged_and_unfinished_runs_are_named(small, tmp_path, capfd):
    copy(small, tmp_path / "runs/good", seed=0)
    running = copy(small, tmp_path / "runs/running", seed=1)
    (running / "summary.json").unlink()
    lines = (running / "metrics.jsonl").read_text().splitlines(keepends=True)
    (running / "metrics.jsonl").write_text("".join(lines[:2]))
    damaged = copy(small, tmp_path / "runs/damaged", seed=2)
    (damaged / "summary.json").write_text("{}")
    begun = copy(small, tmp_path / "runs/begun", seed=3)
    (begun / "metrics.jsonl").write_text("")
    (begun / "summary.json").unlink()
    lost = copy(small, tmp_path / "runs/lost", seed=4)
    (lost / "config.yaml").unlink()
    page = written(tmp_path, tmp_path / "runs")
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 5
    for line, name, why in zip(
        said,
        ("begun", "damaged", "lost"),
        ("no evaluated round yet", "summary.json is damaged", "it has no config.yaml"),
        strict=False,
    ):
        assert line.startswith(f"left out: {tmp_path}/runs/{name}") and why in line
    assert said[3] == f"not finished, shown as far as they are: {running}"
    assert said[4].startswith("written: ") and "(2 runs" in said[4]
    assert [run["end"] for run in page.data["runs"]] == ["3", "2 of 3"]
    left_out = page.texts["li"]
    assert all(name in left_out for name in ("begun", "damaged", "lost"))


def test_copies_of_a_run_are_told_apart(small, tmp_path):
    """They are no seeds, whose interval they would make narrow."""
    copy(small, tmp_path / "runs/a/seed0")
    copy(small, tmp_path / "runs/b/seed0")
    page = written(tmp_path, tmp_path / "runs", tmp_path / "runs/a")
    assert len(page.data["runs"]) == 2  # not three: a folder and a run in it
    assert page.data["settings"] == [{"name": "copy", "values": ["1", "2"], "telling": True}]


def test_links_are_followed_once(small, tmp_path):
    copy(small, tmp_path / "elsewhere/run")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs/circle").symlink_to(tmp_path / "runs")
    found = [str(path.relative_to(tmp_path)) for path in board.find(tmp_path / "runs")]
    assert found == ["runs/linked/run"]


def test_gaps_and_infinite_losses_are_gaps(small, tmp_path):
    run = copy(small, tmp_path / "runs/a", seed=1)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[1]["global_loss"], rows[2]["loss"] = float("inf"), None
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (only,) = written(tmp_path, run).data["runs"]
    assert only["curves"]["global_loss"] == [2.0, None, 0.6667]
    assert only["curves"]["loss"][2] is None


def test_nothing_to_show_is_one_line(small, tmp_path, capfd):
    damaged = copy(small, tmp_path / "runs/a")
    (damaged / "config.yaml").write_text("?")
    assert main.main(["board", str(tmp_path / "runs"), f"--to={tmp_path}/x.html"]) == 2
    said = capfd.readouterr().err
    assert (
        said.startswith("error: none of 1 runs can be shown, such as: ") and said.count("\n") == 1
    )
    assert not (tmp_path / "x.html").exists()


def test_without_bokeh_the_command_says_what_to_install(small, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    assert main.main(["board", str(small), f"--to={tmp_path}/x.html"]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and said.endswith("run: pip install 'fedjax_nc[board]'\n")
    assert not (tmp_path / "x.html").exists()


def test_board_starts_no_jax(small, tmp_path):
    code = (
        "import sys\nfrom fedjax_nc.cli.board import board\n"
        f"assert board([{str(small)!r}, '--to={tmp_path}/x.html']) == 0\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_script_is_short():
    files = {path.name: path for path in (ROOT / "fedjax_nc").rglob("*.js")}
    assert list(files) == ["board.js"]
    lines = files["board.js"].read_text().splitlines()
    assert len(lines) <= 300 and max(map(len, lines)) <= 100


def test_links_lead_from_the_page_to_the_run(tmp_path):
    folder = tmp_path / "pages"
    link = board.link(tmp_path / "a b#c%/ü?", folder)
    assert link == "../a%20b%23c%25/%C3%BC%3F"
