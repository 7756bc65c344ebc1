"""Recipes: every printed number has a run or a reason, and every run is accepted by its command."""

import csv
import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest

from fedjax_nc import config, errors, recipes
from fedjax_nc.cli import flags, main
from fedjax_nc.data.catalogue import sized
from fedjax_nc.host.assemble import make_task
from fedjax_nc.methods import registry
from fedjax_nc.recipes import base

NAMES = recipes.names()
VALUES = Path(base.__file__).parent / "values"


def quickly(shape, argv, prog, default=None):
    """Reads flags as `reading.read` does, without tyro, which takes 40 ms of every cell."""
    del shape, prog
    words, found, session = list(argv), default.run, {}
    while words:
        name, _, given = words.pop(0).removeprefix("--").partition("=")
        values = [given] if given else []
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        group, _, field = name.rpartition(".")
        owner = getattr(found, group) if group else found
        if not group and field in {f.name for f in dataclasses.fields(default.session)}:
            session[field] = tuple(map(int, values)) if values else True
            continue
        on, field = not field.startswith("no-"), field.removeprefix("no-")
        value = typed_as(getattr(owner, field), values) if on else False
        if group:
            found = config.changed(found, group, values={field: value})
        else:
            found = dataclasses.replace(found, **{field: value})
    session = dataclasses.replace(default.session, **session)
    return dataclasses.replace(default, run=found, session=session)


def typed_as(default, words):
    if isinstance(default, tuple):
        return tuple(map(int, words))
    if isinstance(default, bool) or not words:
        return True
    kind = float if default is None else type(default)  # the only one without is stop_at
    return kind(words[0])


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(flags, "read", quickly)


@pytest.mark.parametrize("scale", recipes.SCALES)
def test_every_cell_is_accepted(fast, scale):
    """By all of the command's own checks; tyro itself is asked about a sample, below."""
    asked = {a: name for name in NAMES for a in recipes.runs(recipes.get(name).cells(scale))}
    assert len(asked) > 100
    for argv, name in asked.items():
        found = flags.parse(list(argv))
        first = found.configs[0]
        assert found.out == "runs" and len(found.configs) >= 1, name
        if scale == "full":
            assert first.protocol.split("/")[0] == name.split("/")[0]
            assert first.dataset not in ("digits", "mnist5k")
        else:
            assert first.dataset == {"smoke": "digits", "pocket": "mnist5k"}[scale]


def smaller(cfg, classes):
    """The run on a network that is traced sooner, with as many features as it needs to have."""
    residual = {"resnet20_b": "resnet8", "resnet32_b": "resnet8", "resnet56_b": "resnet8"}
    usual = cfg.model if cfg.protocol.startswith("fedalign") else "cnn"
    model = residual.get(cfg.model, "vgg11" if classes > 100 and usual == "cnn" else usual)
    federation = dataclasses.replace(cfg.federation, norm="default")
    data = dataclasses.replace(cfg.data, augment=())  # dense layers see one size
    return dataclasses.replace(cfg, model=model, federation=federation, data=data)


@pytest.mark.parametrize("scale", ["smoke", pytest.param("full", marks=pytest.mark.slow)])
def test_every_method_of_a_cell_fits_its_network(fast, scale):
    """As a run checks before it trains: heads, blocks, fine-tuning, epochs of parts."""
    seen, refused = set(), {}
    for name in NAMES:
        for argv in recipes.runs(recipes.get(name).cells(scale)):
            cfg = flags.parse(list(argv)).configs[0]
            spec = sized(cfg.dataset, cfg.data)
            if scale == "full" and not spec.is_text:
                cfg = smaller(cfg, spec.classes)
            kind = re.sub(r"\d[\d.]*", "0", cfg.method)  # numbers change no shape
            what = (kind, cfg.model, spec.classes, bool(cfg.local.steps))
            if what in seen:
                continue
            seen.add(what)
            try:
                make_task(cfg, spec, method=registry.build(cfg.method))
            except errors.UserError as error:
                refused.setdefault(str(error), []).append(f"{name} {cfg.method} {cfg.dataset}")
    assert not refused and len(seen) > 50, refused


def kinds(scale):
    """A cell for every set of names of flags, whatever their values."""
    found = {}
    for name in NAMES:
        for argv in recipes.runs(recipes.get(name).cells(scale)):
            protocol = next((w for w in argv if w.startswith("--protocol")), "")
            names = frozenset(w.split("=")[0] for w in argv if w.startswith("--"))
            found.setdefault((names, protocol), argv)
    return list(found.values())


def test_flags_read_quickly_are_those_that_tyro_reads(monkeypatch):
    sample = [argv for scale in recipes.SCALES for argv in kinds(scale)]
    assert 20 < len(sample) < 80
    slow = [flags.parse(list(argv)) for argv in sample]
    monkeypatch.setattr(flags, "read", quickly)
    for argv, read in zip(sample, slow, strict=True):
        assert flags.parse(list(argv)) == read, argv


@pytest.mark.parametrize("paper", recipes.PAPERS)
def test_every_printed_number_is_a_cell(paper):
    """That a run makes, or that says why none does."""
    with (VALUES / f"{paper}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    counts = Counter(row["table"] for row in rows)
    for table, count in counts.items():
        cells = recipes.get(f"{paper}/{table}").cells("full")
        assert len(cells) == count
        printed = [float(row["value"]) for row in rows if row["table"] == table and row["value"]]
        assert [cell.reported for cell in cells if cell.reported is not None] == printed
        assert all(bool(cell.argv) != bool(cell.reason) for cell in cells)
        assert len({cell.name for cell in cells}) == count, table


def test_the_papers_have_as_many_numbers_as_were_copied():
    """1,912 printed ones, and 41 places that the texts leave empty."""
    values = [value for paper in recipes.PAPERS for value in base.values_of(paper)]
    assert sum(bool(value.value) for value in values) == 1912
    empty = [value for value in values if not value.value]
    assert len(empty) == 41 and all(value.note.startswith(base.MISSING) for value in empty)


def test_what_no_run_makes():
    """Numbers of other commands, of a grid, of a picture: nothing else."""
    found = Counter()
    for name in NAMES:
        for cell in recipes.get(name).cells("full"):
            if cell.reason:
                found[name] += 1
    assert found == {
        # FedProto's '-', and FedNH's hundred classes on 64 features
        **{"fedetf/T1": 6 + 4, "fedetf/F4": 1, "fedetf/F8": 1},
        "feddw/T4": 1,  # FedBABU with DW
        "feddr_plus/T12": 72,  # best of a grid
        **{"fedalign/T1": 24, "fedalign/T9": 32, "fedalign/T5": 20, "fedalign/T7": 32},
        **{"fedblade/T5": 12, "fedblade/T10": 24, "fedblade/T11": 6, "fedblade/T2": 16},
        **{f"fedblade/T{number}": 18 for number in range(12, 18)},  # speed-up, from rounds
    }


@pytest.mark.parametrize(
    "name, row, column, expected",
    [
        (
            *("feddr_plus/T2", "dot_regression +fd", "Dir(0.1)"),
            ["dot_regression | fd", "feddr_plus/lda", "global_accuracy", 50.86],
        ),
        (
            *("feddr_plus/T2", "fedavg +prox", "s=10"),
            ["fedavg | prox(beta=0.999)", "feddr_plus", "client_accuracy", 36.87],
        ),
        (
            *("fedetf/T1", "ccvr", "cifar10, Dir(0.05), personal"),
            [
                *("fedavg | ccvr(samples=10, epochs=100, rule='fedetf')", "fedetf/extreme"),
                *("calibrated_personal_accuracy", 73.52),
            ],
        ),
        (
            *("feddw/T1", "fedrep", "cifar100, Dir(0.1)"),
            ["fedrep(epochs='feddw')", "feddw/pathological", "personal_global_accuracy", 23.46],
        ),
        (
            *("fedalign/T8", "gradaug n=1", "rounds to 60 %"),
            ["gradaug(mu=1.5, subnets=1)", "fedalign", "rounds_to", 44],
        ),
        (
            *("fedblade/T7", "fedrcl", "tinyimagenet, Dir(0.5)"),
            ["fedrcl(tau=0.1, beta=0.7)", "fedblade/full", "global_accuracy", 48.88],
        ),
    ],
)
def test_cells_say_what_the_papers_do(fast, name, row, column, expected):
    cells = recipes.get(name).cells("full", only=[f"{row} @ {column}"])
    (cell,) = cells
    first = flags.parse(list(cell.argv)).configs[0]
    assert [first.method, first.protocol, cell.measure.name] == expected[:3]
    assert cell.reported == expected[3]


def test_settings_of_a_cell_are_the_papers(fast):
    def of(name, only):
        return flags.parse(list(recipes.get(name).cells("full", only=[only])[0].argv))

    many = of("feddw/T2", "feduv @ cifar10, cnn2_maxpool, 10 clients, 125 rounds")
    first = many.configs[0]
    assert (first.rounds, first.local.epochs, first.federation.clients) == (125, 2, 10)
    assert len(many.configs) == 5 and first.data.alpha == 0.5
    sampled = of("fedalign/T4", "moon @ 16 of 64 clients, 25 rounds").configs[0]
    assert (sampled.protocol, sampled.rounds) == ("fedalign/sampled", 25)
    assert (sampled.federation.participants, sampled.federation.clients) == (16, 64)
    until = of("fedalign/T8", "fedavg").configs[0]
    assert (until.rounds, until.evaluation.stop_at) == (100, 0.6)
    deep = of("fedetf/T3", "fedavg @ resnet56, global")
    assert deep.configs[0].model == "resnet56_b"
    assert [cfg.seed for cfg in deep.configs] == [7, 8, 9, 10]


def test_names_that_do_not_exist(capsys):
    for given, said in (
        ("feddw/T9", "unknown recipe of feddw 'T9': did you mean 'T"),
        ("fedwd/T1", "unknown recipe 'fedwd/T1': did you mean 'fed"),
    ):
        assert main.main(["list", "recipes", given]) == 2
        assert said in capsys.readouterr().err
    assert main.main(["table", "feddw/T1", "--cells", "fedagv"]) == 2
    assert "unknown cell of feddw/T1 'fedagv': did you mean 'fedavg'?" in capsys.readouterr().err
    with pytest.raises(errors.UserError, match="unknown scale 'tiny': choose from full, pocket"):
        recipes.get("feddw/T1").cells("tiny")


def test_cells_are_chosen_by_row_column_or_both():
    recipe = recipes.get("fedblade/T1")
    assert len(recipe.cells(only=["fedavg"])) == 9
    assert len(recipe.cells(only=["cifar10, Dir(0.1)"])) == 9
    assert len(recipe.cells(only=["fedavg", "cifar10, Dir(0.1)"])) == 17
    (one,) = recipe.cells(only=["fedavg @ cifar10, Dir(0.1)"])
    assert (one.reported, one.spread, one.printed) == (69.26, 2.56, "69.26 ± 2.56")


def test_a_method_is_trained_once_at_the_smallest_scale(fast):
    """Whichever tables ask for it: the run directory follows from the method alone."""
    cells = [cell for name in NAMES for cell in recipes.get(name).cells("smoke") if cell.argv]
    argvs = {cell.argv for cell in cells}
    hashes = {
        (cfg.method, cfg.model, config.config_hash(cfg))
        for cfg in (flags.parse(list(argv)).configs[0] for argv in argvs)
    }
    assert len(hashes) == len(argvs) == len({(method, model) for method, model, _ in hashes})
    assert len(cells) > 10 * len(argvs)


def test_lists_show_recipes(capsys):
    assert main.main(["list", "recipes"]) == 0
    words = capsys.readouterr().out.split()
    assert all(name in words for name in NAMES)
    assert main.main(["list", "recipes", "feddr_plus/T12"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "No run: the best of eight values of a grid" in text and ": 72 cells" in text
    assert main.main(["list", "recipes", "feddw/T1"]) == 0
    text = capsys.readouterr().out
    assert "63.44 ± " in text
    assert "personal_global_accuracy" in text and "table feddw/T1 --scale=pocket" in text


def test_speed_of_a_paper_is_named_as_such():
    cells = recipes.get("feddr_plus/T4").cells("full")
    assert {cell.measure.name for cell in cells} == {"seconds_per_round"}
    assert not any(cell.measure.high for cell in cells)
