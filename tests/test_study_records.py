"""The records of studies: their tables, the options they use, and the one list that names them."""

from pathlib import Path

import made_up
import numpy as np
import pytest

from fedjax_nc import study as folder
from fedjax_nc.study import cost, results
from fedjax_nc.study.analyse import RECORDS
from fedjax_nc.study.options import STUDIES, TRACKED, Options

FILES = sorted(Path(folder.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("study", STUDIES)
def test_tables_have_a_column_per_run(study):
    """Made-up numbers of three runs, one of them without clients."""
    runs = {label: getattr(made_up, study)(seed) for seed, label in enumerate("abc")}
    if study == "hessian":
        runs["c"] |= {"clients": None}
    table = RECORDS[study].table(runs)
    assert table.header == ["", "a", "b", "c"] and len(table.rows) > 1
    assert all(len(row) == 4 and all(isinstance(cell, str) for cell in row) for row in table.rows)
    assert study != "hessian" or [row[3] for row in table.rows][-1] == "-"


def test_runs_side_by_side_have_the_same_targets():
    curves = {"a": [[1, 0.2], [2, 0.8]], "b": [[1, 0.1], [2, 0.3], [3, 0.4]]}
    runs = {name: made_up.cost(0) | {"curve": curve} for name, curve in curves.items()}
    runs["b"]["targets"] = [{"accuracy": 0.36, "round": 3, "bytes": 1.0}]
    found = cost.with_common_targets(runs)
    assert [t["accuracy"] for t in found["a"]["targets"]] == [0.2, 0.3, 0.36]
    assert [t["round"] for t in found["a"]["targets"]] == [1, 2, 2]
    assert [t["round"] for t in found["b"]["targets"]] == [2, 2, 3]
    each = (runs["b"]["bytes_up"] + runs["b"]["bytes_down"]) * runs["b"]["participants"]
    assert found["b"]["targets"][2]["bytes"] == 3 * each
    assert cost.with_common_targets(found) == found  # as they are if they are the same


def test_plain_numbers():
    value = {"a": np.array([1.0, np.nan]), "b": (np.int32(3), None, "x"), "c": np.float32(1 / 3)}
    assert results.plain(value) == {"a": [1.0, None], "b": [3, None, "x"], "c": 0.3333333}


def test_every_option_is_used():
    used = {name for study in RECORDS.values() for name in study.uses}
    assert used == set(vars(Options())) - {"only", "round"}


def test_one_list_names_every_study():
    """Every module that defines a record is in it, and its figure has the same name."""
    defining = {p.stem for p in FILES if "STUDY = Study(" in p.read_text()}
    assert defining == set(STUDIES) == set(RECORDS)
    assert set(TRACKED) - {"consistency"} < defining  # which belongs to collapse
    for name, study in RECORDS.items():
        assert study.draw.__module__ == f"fedjax_nc.figures.{name}"
        assert study.compute.__module__ == f"fedjax_nc.study.{name}"
        assert study.title and study.intro.endswith(".")


def test_only_the_subject_knows_how_runs_are_assembled():
    assert {p.name for p in FILES if "fedjax_nc.host" in p.read_text()} == {"subject.py"}
