"""The analysis of runs as a command: its files, its refusals, its numbers beside the run's."""

import json
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from runs import DATA, FEW, PLAIN, files_of, train

from fedjax_nc.cli import main
from fedjax_nc.errors import UserError
from fedjax_nc.study import analyse as studies
from fedjax_nc.study import subject
from fedjax_nc.study.options import STUDIES, TRACKED, Options

COMMAND = [
    "--method=fedetf",
    *DATA,
    *FEW,
    *PLAIN,
    "--data.per_client=4",  # so that clients share classes
    "--rounds=4",
    "--evaluation.every=2",
    "--execution.checkpoint_every=2",
]
SMALL = [
    "--examples=60",
    "--few=20",
    "--clients=3",
    "--products=4",
    "--eigenvalues=2",
    "--probes=3",
    "--grid=3",
]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A finished run that was tracked; tests that change files take a copy."""
    out = tmp_path_factory.mktemp("tracked")
    return train(out, [*COMMAND, f"--track={','.join(TRACKED)}", "--track_every=2"])


@pytest.fixture
def run(tracked, tmp_path):
    return shutil.copytree(tracked, tmp_path / "run")


def numbers_of(directory, study):
    return json.loads((directory / "analysis" / f"{study}.json").read_text())["numbers"]


def rows_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_tracks_when_it_is_due(tracked):
    rows = rows_of(tracked)
    assert [r["round"] for r in rows if "collapse" in r] == [2, 4]
    for row in (rows[1], rows[3]):
        assert set(TRACKED) < set(row)
        values = [v for name in TRACKED for v in row[name].values()]
        assert all(v is not None and np.isfinite(v) for v in values)
        assert {"observed_gap", "unobserved_angle"} < set(row["alignment"])
    assert (tracked / "labels.png").stat().st_size > 5000


def test_tracking_changes_no_number(tracked, tmp_path):
    plain = train(tmp_path, COMMAND)
    assert plain.parent.name == tracked.parent.name  # nor what the run is called
    for row, other in zip(rows_of(plain), rows_of(tracked), strict=True):
        assert row["loss"] == other["loss"]
        assert row.get("global_accuracy") == other.get("global_accuracy")


def test_study_of_the_last_round_is_what_was_tracked(run):
    """All 360 test examples, and the clients tracking looks at are all there are."""
    assert main.analyse([str(run), "--only=collapse,spectrum,alignment", "--clients=0"]) == 0
    last = rows_of(run)[-1]
    found = {name: numbers_of(run, name) for name in TRACKED if name in STUDIES}
    before = last["collapse"].pop("features_nc_error")
    assert before == pytest.approx(found["collapse"]["features"]["nc_error"], rel=1e-3)
    assert before != pytest.approx(
        last["collapse"]["nc_error"], rel=1e-3
    )  # a projector's difference
    for name, value in last["collapse"].items():
        assert found["collapse"]["projected"][name] == pytest.approx(value, rel=1e-3, abs=1e-5)
    assert found["collapse"]["consistency"] == pytest.approx(last["consistency"], rel=1e-3)
    at_the_end = found["collapse"]["tracked"][-1]
    assert at_the_end["consistency"] == pytest.approx(last["consistency"]["projected"])
    assert at_the_end["features_consistency"] == pytest.approx(last["consistency"]["features"])
    for space in ("features", "projected"):
        value = last["spectrum"][f"{space}_effective_rank"]
        assert found["spectrum"][space]["effective_rank"] == pytest.approx(value, rel=1e-3)
    for which in ("observed", "unobserved"):
        for name, values in found["alignment"][which].items():
            mean = np.mean([v for v in values if v is not None])
            assert mean == pytest.approx(last["alignment"][f"{which}_{name}"], rel=1e-3, abs=1e-5)
    assert [row["round"] for row in found["collapse"]["tracked"]] == [2, 4]


@pytest.mark.slow
def test_tracking_is_the_same_beside_other_seeds_and_from_the_host(tmp_path):
    """Seeds with partitions of their own, client state and examples in host memory."""
    command = [
        "--method=scaffold",
        *COMMAND[1:],
        "--data.seed=-1",
        "--track=collapse,alignment,consistency",
        "--track_every=2",
    ]
    both = train(tmp_path / "both", [*command, "--seeds", "0", "1", "--seeds_parallel"])
    host = ["--execution.pool_mb=0", "--execution.client_state_mb=0"]
    alone = train(tmp_path / "alone", [*command, "--seed=1", *host])
    for row, other in zip(rows_of(both.parent / "seed1"), rows_of(alone), strict=True):
        for name in ("collapse", "alignment", "consistency"):
            assert row.get(name) == (other.get(name) and pytest.approx(other[name], rel=1e-3))


class Page(HTMLParser):
    """Headings, and whatever a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.outside, self.images = [], 0

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            inside = (value or "").startswith(("data:", "#"))
            self.outside += [value] if name in ("src", "href") and not inside else []
        self.images += tag == "img"


@pytest.mark.slow
def test_command_leaves_numbers_figures_and_a_page(run, tmp_path, capfd, monkeypatch):
    other = train(tmp_path / "out", ["--method=fedavg", *COMMAND[1:]])
    argv = [str(run), str(other), *SMALL, f"--to={tmp_path / 'both'}"]
    assert main.analyse(argv) == 0
    printed = capfd.readouterr()
    assert "largest eigenvalue, Lanczos" in printed.out and "report: " in printed.err
    for directory in (run, other):
        for study in STUDIES:
            assert "skipped" not in numbers_of(directory, study), study
    for folder in (run / "analysis", other / "analysis", tmp_path / "both"):
        page = (folder / "report.html").read_text()
        assert len(page) < 2e6
        read = Page()
        read.feed(page)
        assert not read.outside and read.images > 10
        pictures = list(folder.glob("*.png"))
        assert len(pictures) > 10 and all(p.with_suffix(".svg").exists() for p in pictures)
    hessian = numbers_of(run, "hessian")
    assert hessian["eigenvalues"][0] >= hessian["eigenvalues"][1] > 0
    assert hessian["trace"]["sem"] > 0 and len(hessian["clients"]["ids"]) == 3
    planes = numbers_of(run, "landscape")["planes"]
    assert set(planes) == {"eigenvectors", "random", "clients"}
    for plane in planes.values():
        here = plane["models"][0]
        assert (here["x"], here["y"]) == pytest.approx((0, 0), abs=1e-6)
        assert plane["loss"][1][1] == pytest.approx(here["loss"], rel=1e-5)
    # again: nothing is computed; the figures have been looked at
    monkeypatch.setattr(studies, "publish", lambda runs, named, folder: folder)
    kept = {p: v for p, v in files_of(run).items() if p.suffix == ".json"}
    assert main.analyse([str(run), *SMALL]) == 0
    assert {p: v for p, v in files_of(run).items() if p.suffix == ".json"} == kept
    # another number of probes is another Hessian, and the same of everything else
    assert main.analyse([str(run), *SMALL[:-2], "--probes=4", SMALL[-1]]) == 0
    changed = {p.name for p, v in files_of(run).items() if p in kept and v != kept[p]}
    assert changed == {"hessian.json"}


@pytest.mark.slow
def test_check_compares_with_the_dense_hessian(run, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main.analyse([str(run), "--check", "--examples=60", "--probes=10"]) == 0
    text = " ".join(capfd.readouterr().out.split())
    assert "dense" in text and "by Lanczos" in text
    difference = float(text.split("relative difference ")[1].split(")")[0])
    assert difference < 1e-4
    assert not (run / "analysis").exists()


@pytest.fixture
def refused(capfd):
    """Analyse what must be refused; its only line, without `error: `."""

    def analyse(*argv):
        assert main.analyse([str(a) for a in argv]) == 2
        printed = capfd.readouterr()
        lines = [line for line in printed.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and printed.out == "" and "Traceback" not in printed.err
        return lines[0].removeprefix("error: ")

    return analyse


def test_bad_directories_are_one_line(run, refused, tmp_path):
    assert "no run directory was given" in refused()
    assert "is not a run directory, it has no config.yaml" in refused(tmp_path / "nowhere")
    assert f"did you mean {run}?" in refused(run.parent)
    assert "given twice" in refused(run, run)
    assert "choose --round of 2, 4" in refused(run, "--round=3", "--only=cost")
    shutil.rmtree(run / "ckpt" / "4")
    (run / "ckpt" / "4").mkdir()
    assert "round 4 in" in refused(run, "--only=cost")
    shutil.rmtree(run / "ckpt")
    assert "holds no checkpoint yet" in refused(run)
    (run / "config.yaml").write_text("method: [")
    assert "config.yaml cannot be read" in refused(run)
    (run / "config.yaml").write_text("method: fedavg\nmetod: fedavg\n")
    assert "a setting that this version does not know: metod" in refused(run)


def test_bad_flags_are_one_line(run, refused):
    assert "did you mean 'hessian'?" in refused(run, "--only=hesian")
    assert "did you mean --probes?" in refused(run, "--probe=3")
    assert "give at least 3" in refused(run, "--grid=2")
    assert "need at least as many" in refused(run, "--products=3")
    assert "name each once" in refused(run, "--only=cost,cost")
    assert "above zero" in refused(run, "--radius=0")
    assert "accuracies between 0 and 1" in refused(run, "--targets", "50")
    assert not (run / "analysis").exists()


@pytest.mark.parametrize(
    "method, study, reason",
    [
        ("local", "collapse", "shares no parameters"),
        ("fedper", "relations", "keeps each client's head at home"),
    ],
)
def test_a_method_without_the_part_is_one_line(tmp_path, refused, method, study, reason, capfd):
    there = train(tmp_path, [f"--method={method}", *COMMAND[1:]])
    capfd.readouterr()
    assert reason in refused(there, f"--only={study}", *SMALL)


def page_of(directory):
    return (directory / "analysis" / "report.html").read_text()


def test_report_keeps_studies_of_earlier_analyses(run, capfd):
    """Those that this command would compute alike; of others it says why they are left out."""
    assert main.analyse([str(run), "--only=spectrum,cost", "--examples=60"]) == 0
    assert "Left out" not in page_of(run)
    capfd.readouterr()
    assert main.analyse([str(run), "--only=cost", "--examples=60"]) == 0
    assert "effective rank of the covariance" in page_of(run) and "Left out" not in page_of(run)
    assert "effective rank" not in capfd.readouterr().out  # the terminal shows what was asked for
    assert main.analyse([str(run), "--only=cost", "--round=2"]) == 0
    text = " ".join(page_of(run).split())
    assert "effective rank of the covariance" not in text
    reason = "earlier results are for round 4 instead of 2, examples 60 instead of 2000"
    assert f"Left out: fedetf: {reason}." in text
    (run / "analysis" / "spectrum.json").write_text("{")
    assert main.analyse([str(run), "--only=cost"]) == 0
    assert "Left out" not in page_of(run)  # a torn file is none


def test_a_run_in_memory_leaves_no_file(run):
    before = files_of(run)
    there = subject.load(run, Options(examples=60, clients=3))
    alone = subject.Subject(job=there.job, state=there.state, rows=there.rows)
    asked = {"examples": 60, "clients": 3, "targets": (0.01,)}
    found = studies.analyse_run(alone, "cost,collapse", **asked)
    assert list(found) == ["collapse", "cost"] and files_of(run) == before
    assert found["cost"]["targets"][0]["round"] == 2
    assert [row["round"] for row in found["collapse"]["tracked"]] == [2, 4]
    assert studies.analyse_run(run, ["collapse", "cost"], **asked) == found
    assert {p.name for p in (run / "analysis").iterdir()} == {"collapse.json", "cost.json"}
    # the options of the Subject hold where none are given
    assert studies.analyse_run(there, "collapse")["collapse"] == found["collapse"]


def test_bad_words_in_python_are_refused(run):
    for words, reason in (({"probe": 3}, "mean 'probes'"), ({"only": "hesian"}, "mean 'hessian'")):
        with pytest.raises(UserError, match=reason):
            studies.analyse_run(run, **words)
    with pytest.raises(UserError, match="choose from hessian"):
        studies.analyse_run(run, only=())
    with pytest.raises(UserError, match="give at least 3"):
        studies.analyse_run(run, "landscape", grid=2)
    assert not (run / "analysis").exists()


def test_map_has_every_class_of_every_client(run):
    found = studies.analyse_run(run, "bias", examples=60, clients=3)["bias"]
    assert np.shape(found["tsne"]) == (3, 10, 2) and np.isfinite(found["tsne"]).all()


def test_targets_and_labels(run, tmp_path):
    assert main.analyse([str(run), "--only=cost", "--targets", "0.01", "1.0"]) == 0
    first, never = numbers_of(run, "cost")["targets"]
    found = numbers_of(run, "cost")
    assert first["round"] == 2 and never["round"] is None and never["bytes"] is None
    moved = (found["bytes_up"] + found["bytes_down"]) * found["participants"]
    assert first["bytes"] == 2 * moved
    assert first["bytes_up"] == 2 * found["bytes_up"] * found["participants"]
    assert first["mflops"] == 2 * found["forward_mflops"]
    copy = shutil.copytree(run, tmp_path / "copy")
    assert list(studies.labels([run])) == ["fedetf"]
    assert list(studies.labels([run, copy])) == [str(run), str(copy)]
    shutil.rmtree(copy / "ckpt")  # which knows the seed
    (copy / "config.yaml").write_text(
        (copy / "config.yaml").read_text().replace("\nseed: 0", "\nseed: 7")
    )
    assert list(studies.labels([run, copy])) == ["fedetf, seed 0", "fedetf, seed 7"]
