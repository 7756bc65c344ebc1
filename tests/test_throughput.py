"""The benchmark: its workload, its counts, its files, and peers that are not there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_nc.errors import UserError
from fedjax_nc.host import dry_run

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import chart  # noqa: E402
import machine  # noqa: E402
import ours  # noqa: E402
import race  # noqa: E402
import report  # noqa: E402
import throughput  # noqa: E402
import verdict  # noqa: E402
import workload  # noqa: E402
from workload import Workload  # noqa: E402

FIXED = Workload()


def test_fixed_workload():
    assert len(FIXED.sizes) == 100 and sum(FIXED.sizes) == 50_000
    assert FIXED.images_per_round == 5000
    flags = throughput.Flags()
    assert list(throughput.workloads(flags.work, flags.how)) == [FIXED]
    assert workload.decode(workload.encode(FIXED)) == FIXED
    unequal = Workload(clients=3, participants=3, steps=(4, 1, 1), batch_size=10)
    assert unequal.sizes == [40, 10, 10] and unequal.images_per_round == 60


def test_all_combinations_are_rows():
    work = throughput.Work(methods=("fedavg", "fedetf"), models=("mlp", "cnn"), clients=(10, 20))
    how = throughput.How(convs=("auto", "native"))
    rows = list(throughput.workloads(work, how))
    assert len(rows) == len(set(rows)) == 16


CONV_1, CONV_2, DENSE = 28 * 28 * 32 * 75, 10 * 10 * 64 * 25 * 32, 1600 * 512 + 512 * 10


def resnet20_b():
    """Multiply-adds of a forward pass, and of the first layer."""
    first = 32 * 32 * 9 * 3 * 16
    stages = [6 * 32**2 * 9 * 16 * 16]
    for side, channels in ((16, 32), (8, 64)):
        half = side**2 * (9 * channels * channels // 2 + channels * channels // 2)  # and 1x1
        stages.append(half + 5 * side**2 * 9 * channels * channels)
    return first + sum(stages) + 640, first


@pytest.mark.parametrize(
    "model, norm, forward, first",
    [
        ("mlp", "default", 3072 * 200 + 200 * 128 + 1280, 3072 * 200),
        ("fedavg_cnn", "default", CONV_1 + CONV_2 + DENSE, CONV_1),
        ("resnet20_b", "group", *resnet20_b()),
    ],
)
def test_nominal_flops(model, norm, forward, first):
    """Forward and two gradients, two operations each; the images' gradient is not computed."""
    w = Workload(model=model, norm=norm, clients=3, participants=2, images=100)
    job = ours.make_job(w)
    count = dry_run.round_flops(job)
    assert count == 2 * (3 * forward - first) * w.images_per_round


def test_job_holds_the_workload():
    w = Workload(model="mlp", clients=3, participants=2, batch_size=2, steps=(3, 1, 2))
    job = ours.make_job(w)
    assert list(job.data.train.size) == [6, 2, 4]
    assert job.data.pool.x.shape == (12, 32, 32, 3) and job.task.federation.participants == 2


@pytest.mark.parametrize("value, text", [(1.5349, "1.53x"), (1, "1.00x"), (12.0, "12.00x")])
def test_ratio(value, text):
    assert chart.ratio(value) == text


def contestant(family, *seconds, **facts):
    one = race.Contestant(family, [], FIXED, {"variant": "v", "version": "1", **facts})
    one.answers = [{"seconds": s, "memory_mb": 1.0, "peak_memory_mb": 2.0} for s in seconds]
    return one


def test_summary_leaves_out_warm_up_and_slow_variants():
    row = race.summary(contestant("ours", 9.0, 3.0, 2.0, 1.0, 4.0), 2e11, 200.0)
    assert row["seconds"] == 2.0 and row["seconds_min"] == 1.0 and row["seconds_max"] == 4.0
    assert row["compile_seconds"] == 7.0 and row["rounds"] == 3
    assert row["clients_per_second"] == 5.0 and row["images_per_second"] == 2500.0
    assert row["gflops"] == 100.0 and row["percent_of_peak"] == 50.0
    fast, slow = contestant("torch", 5.0, 2.0), contestant("torch", 5.0, 3.0)
    mine = contestant("ours", 5.0, 9.0)
    assert race._close_ones([mine, fast, slow]) == [mine, fast]
    dropped = race.summary(slow, 2e11, 200.0) | {"ratio": 1.0}
    kept = race.summary(contestant("torch", 5.0, 2.0, 4.0), 2e11, 200.0) | {"ratio": 2.0}
    assert chart.best([dropped, kept]) == [kept]


def test_report_has_every_table(tmp_path):
    rows = [
        race.summary(contestant(name, 9.0, 2.0, s), 2e11, 200.0) | {"ratio": s / 2}
        for name, s in (("ours", 2.0), ("torch", 3.06))
    ]
    about = {"cpu": "c", "cores": 2, "memory_gb": 3, "versions": {"jax": "0"}}
    result = {"machine": about, "command": "python x", "date": "d", "rows": rows}
    start = {"command": "run", "cold_seconds": 9.0, "warm_seconds": 5.0}
    other = {key: result[key] for key in ("machine", "command", "date")} | {"start": start}
    page = report.page({"b": result, "a": other})
    assert "| PyTorch, v | 5.9 | 3.060 |" in page and "| 1.53x |" in page
    assert page.index("## b") < page.index("## a") and "| warm compile cache | 5.00 |" in page
    chart.draw(result, tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 1000


def test_report_writes_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "PAGE", tmp_path / "performance.md")
    assert report.main() == 2  # nothing measured yet
    about = {"cpu": "c", "cores": 2, "memory_gb": 3, "versions": {"jax": "0"}}
    case = {"steps": [2, 1], "seconds": 1.1, "equal_seconds": 1.0, "ratio": 1.1}
    whole = {"command": "python y", "seconds": 3.0, "one_seconds": 2.0, "ratio": 1.5}
    seeds = {"model": "cnn", "seconds": 2.0, "one_seconds": 1.0, "ratio": 2.0, "command": whole}
    result = {
        "machine": about,
        "command": "python x",
        "date": "d",
        "seeds": seeds,
        "unequal": {"model": "cnn", "cases": {"two": case}},
    }
    (tmp_path / "other.json").write_text(json.dumps(result))
    (tmp_path / "broken.json").write_text("{}")  # not a result
    assert report.main() == 0
    text = (tmp_path / "performance.md").read_text()
    assert "| two | 1.100 | 1.000 | 1.10x |" in text and "| 2.000 | 1.000 | 2.00x |" in text
    assert "| `python y` | 3.000 | 2.000 | 1.50x |" in text


def test_page_is_fresh_and_the_readme_quotes_it():
    text = (ROOT / "docs/performance.md").read_text()
    assert text == report.page(report.read(ROOT / "benchmarks/results")), (
        "run: python benchmarks/report.py"
    )
    quoted = re.findall(r"\d+\.\d\dx", (ROOT / "README.md").read_text())
    assert quoted and all(ratio in text for ratio in quoted)


def test_verdict():
    def rows(**ratios):
        same = {"percent_of_peak": 50.0, "workload": {"model": "fedavg_cnn"}}
        return {"rows": [{"name": name, "ratio": ratio} | same for name, ratio in ratios.items()]}

    case = {"ratio": 1.3}
    results = {
        "fedavg-fedavg_cnn": rows(ours=1.0, torch=2.04, pfl=2.2, flower=1.5),
        "unequal": {"unequal": {"cases": {"harsh": case}}},
    }
    lines = {line[0]: line[1:] for line in verdict.sheet(results).rows}
    assert lines["fixed workload over plain PyTorch"] == ["at least 2.00x", "2.04x", "met"]
    assert lines["fixed workload over the fastest framework"][1:] == ["1.50x", "**not met**"]
    assert lines["fixed workload, share of the peak"][2] == "**not met**"
    assert lines["unequal data, harsh, over equal data"][1:] == ["1.30x", "**not met**"]
    assert len(lines) == 4


def test_missing_peer_is_named(monkeypatch):
    peer = race.Peer("x.py", ("no_such_framework",))
    monkeypatch.setitem(race.PEERS, "torch", peer)
    with pytest.raises(UserError, match=r"has no no_such_framework; .* -r benchmarks/peers/requir"):
        race.peers("torch", FIXED, 1, sys.executable)


def test_requirements_hold_every_peer():
    """What the race imports is in the file that its messages name, pinned."""
    text = (ROOT / "benchmarks/peers/requirements.txt").read_text()
    pins = dict(re.findall(r"^([a-z-]+)(?:\[\w+\])?==([\d.]+)$", text, re.MULTILINE))
    called = {"haiku": "dm-haiku", "ray": "flwr"}  # Ray comes with flwr[simulation]
    needed = {called.get(m, m) for peer in race.PEERS.values() for m in peer.modules}
    assert needed | {"jax"} == set(pins)
    assert "://" not in text and "flwr[simulation]" in text


def test_peers_that_cannot_run_it_say_so():
    with pytest.raises(UserError, match="unknown peer 'torhc': did you mean 'torch'"):
        throughput.peer_names("torhc")
    with pytest.raises(UserError, match="fedjax is left out for fedavg, mlp"):
        race.peers("fedjax", Workload(model="mlp"), 1, sys.executable)
    with pytest.raises(UserError, match="does not run"):
        race.peers("torch", FIXED, 1, "/no/such/python")


def run_benchmark(*flags):
    command = [sys.executable, str(ROOT / "benchmarks/throughput.py"), *flags]
    return subprocess.run(command, capture_output=True, text=True)


def test_results_that_are_checked_in_are_replaced_by_name_only(tmp_path, monkeypatch):
    results = ROOT / "benchmarks/results"
    before = {path: path.stat().st_mtime_ns for path in results.iterdir()}
    monkeypatch.setattr(machine, "UNTRACKED", tmp_path / "kept")
    monkeypatch.setattr(machine, "measure_peak", lambda: {"gflops": 1.0})
    monkeypatch.setattr(throughput, "compare", lambda flags, peak: [])
    monkeypatch.setattr(chart, "show", lambda result: None)
    monkeypatch.setattr(chart, "draw", lambda result, path: path.touch())
    assert throughput.main([]) == 0
    assert {path: path.stat().st_mtime_ns for path in results.iterdir()} == before
    made = [path.name for path in (tmp_path / "kept").iterdir()]
    assert sorted(made) == ["fedavg-fedavg_cnn.json", "fedavg-fedavg_cnn.png"]


@pytest.mark.parametrize("name", ["conv", "hessian", "method_cost", "models", "throughput"])
def test_no_benchmark_writes_into_what_is_checked_in(name):
    assert machine.UNTRACKED == ROOT / "runs/benchmarks"
    assert "runs/" in (ROOT / ".gitignore").read_text().splitlines()
    text = (ROOT / "benchmarks" / f"{name}.py").read_text()
    assert "machine.UNTRACKED" in text and '"results"' not in text


def test_bad_input():
    assert throughput.main(["--rounds", "0"]) == 2
    assert throughput.main(["--against", "torhc"]) == 2


@pytest.mark.slow
def test_tiny_run_writes_all_fields(tmp_path):
    path = tmp_path / "tiny.json"
    done = run_benchmark(
        "--models",
        "mlp",
        "--clients",
        "3",
        "--participants",
        "2",
        "--images",
        "8",
        "--batch_size",
        "4",
        "--rounds",
        "1",
        "--json",
        str(path),
        "--methods",
        "fedavg",
        "fedetf",
        "--against",
        "fedjax",
    )
    assert done.returncode == 0, done.stderr
    assert "fedjax is left out for" in done.stderr and path.with_suffix(".png").exists()
    result = json.loads(path.read_text())
    assert set(result) == {"command", "date", "machine", "rows"}
    assert {"cpu", "cores", "memory_gb", "versions", "peak"} <= set(result["machine"])
    assert result["machine"]["peak"]["by"] in ("numpy", "jax")
    assert [row["workload"]["method"] for row in result["rows"]] == ["fedavg", "fedetf"]
    for row in result["rows"]:
        for field in (
            "compile_seconds",
            "seconds",
            "seconds_min",
            "seconds_max",
            "gflops",
            "clients_per_second",
            "images_per_second",
            "percent_of_peak",
            "peak_memory_mb",
            "flops_per_round",
            "parameters",
        ):
            assert row[field] > 0, field
        assert row["ratio"] == 1.0 and row["rounds"] == 1


@pytest.mark.slow
def test_failing_child_is_told(tmp_path):
    done = run_benchmark("--models", "no_model", "--json", str(tmp_path / "x.json"))
    assert done.returncode == 2 and "unknown model 'no_model'" in done.stderr
