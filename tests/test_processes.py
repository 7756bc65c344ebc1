"""What the processes of a run tell one another, seen from one: refusals, errors, differences."""

import json
import re

import jax
import pytest
from runs import SHARE, train

from fedjax_nc import processes
from fedjax_nc.cli import exits, flags
from fedjax_nc.errors import Fault, UserError
from fedjax_nc.host import alike
from fedjax_nc.host.assemble import assemble
from fedjax_nc.host.states import state_of_seed
from fedjax_nc.io import checkpoint, environment


@pytest.mark.parametrize(
    "given, said",
    [
        (["--distributed.num_processes=2"], "needs --distributed.coordinator, --distributed.proc"),
        (["coordinator=here", "num_processes=2", "process_id=0"], "give host:port of the first"),
        (["coordinator=here:70000", "num_processes=2", "process_id=0"], "give host:port"),
        (["coordinator=h:1", "num_processes=0", "process_id=0"], "give a number above zero"),
        (["coordinator=h:1", "num_processes=2", "process_id=2"], "a number from 0 to 1"),
        (["--execution.shard", "--execution.executor=scan"], "there is one: leave it out"),
        (
            ["--execution.shard", "--federation.clients=5"],
            "5 clients (--federation.clients) cannot",
        ),
    ],
)
def test_refused(refused, given, said):
    words = [w if w.startswith("--") else f"--distributed.{w}" for w in given]
    assert said in refused(*SHARE, *words)


def test_distributed_without_others_says_how(refused, monkeypatch):
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda *a, **k: (_ for _ in ()).throw(ValueError("no hosts"))
    )
    with pytest.raises(UserError, match="did not find the other processes"):
        processes.join(flags.parse(["--distributed"]).distributed)


def test_one_process_executors_are_refused_for_several(monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process: jax.devices()[process : process + 1])
    cfg = flags.parse([*SHARE, "--execution.executor=scan"]).configs[0]
    with pytest.raises(UserError, match="computes in one process"):
        assemble(cfg)


def of_two(monkeypatch, me, other):
    """Makes this process one of two, of which the other one answers with a text."""
    texts = (lambda text: [text, other]) if me == 0 else (lambda text: [other, text])
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "is_first", lambda: me == 0)
    monkeypatch.setattr(processes, "texts_of_all", texts)


def notes_of(error):
    return set(getattr(error.value, "__notes__", ()))


def raising(error):
    raise error


def test_errors_of_one_process_reach_the_others(monkeypatch):
    whose = {0: "the first process ended: no space", 1: re.escape("process 1 (b) ended: no space")}
    for me in (0, 1):
        for fault, kind in ((True, Fault), (False, UserError)):
            told = json.dumps({"message": "no space", "fault": fault, "host": "b"})
            of_two(monkeypatch, me, told)
            with pytest.raises(kind, match=whose[1 - me]) as error:
                processes.in_turn(lambda: 1, others=lambda: 2)
            assert notes_of(error) == {processes.AGREED, processes.TOLD}
            with pytest.raises(ZeroDivisionError) as error:  # one's own says more
                processes.in_step(lambda: 1 / 0)
            assert notes_of(error) == {processes.AGREED}
        of_two(monkeypatch, me, "{}")
        assert processes.in_turn(lambda: 1, others=lambda: 2) == 1 + me
        with pytest.raises(UserError, match=r"^mine") as error:
            processes.in_step(lambda: raising(UserError("mine")))
        assert processes.TOLD in notes_of(error)
    lost = type("JaxRuntimeError", (RuntimeError,), {})("Gloo AllReduce failed: reset by peer")
    assert re.match("another process of this run is gone .*start all of them", exits.in_words(lost))


def test_who_tells_an_error_and_waits_for_the_others(monkeypatch, capsys):
    parted = []
    monkeypatch.setattr(processes, "leave", lambda: parted.append(1))
    monkeypatch.setattr(exits, "_LATER", 0)
    for me in (0, 1):
        for told, left in ((True, True), (False, True), (None, False)):
            of_two(monkeypatch, me, "{}")
            error = (
                UserError("no") if told is None else processes.ends_all(UserError("no"), told=told)
            )
            parted.clear()
            assert exits.answered(lambda argv, error=error: raising(error))([]) == 2
            assert bool(capsys.readouterr().err) == (me == 0 or not told)
            assert bool(parted) == left


def test_the_first_difference_is_named(monkeypatch):
    of_two(monkeypatch, 1, json.dumps({"--rounds": 3, "track": ["a"]}))
    processes.compare({"--rounds": 3, "track": ["a"]})
    with pytest.raises(
        UserError, match=r"process 1 differs .* in track \(\[\], \['a'\]\): give"
    ) as e:
        processes.compare({"--rounds": 3, "track": []})
    assert notes_of(e) == {processes.AGREED, processes.TOLD}


def test_only_the_first_process_sets_checkpoints_aside(tmp_path, monkeypatch):
    directory = train(tmp_path, [*SHARE, "--execution.checkpoint_every=1"])
    (directory / "ckpt/3/facts/metadata").write_text("{}")
    state = state_of_seed(assemble(flags.parse(SHARE).configs[0]))
    of_two(monkeypatch, 1, "{}")
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    assert int(checkpoint.restore(directory / "ckpt", state).state.round) == 2
    assert (directory / "ckpt/3").exists()
    monkeypatch.setattr(processes, "is_first", lambda: True)
    checkpoint.restore(directory / "ckpt", state)
    assert (directory / "ckpt/3.damaged").exists()


def test_processors_of_all_are_compared(monkeypatch):
    other = json.dumps(environment.start(1) | {"processor": "another", "pid": 0})
    of_two(monkeypatch, 1, other)
    start = alike.start_of_all(1)
    assert start["processor"].startswith("another and ") and start["pid"] == 0
    of_two(monkeypatch, 0, other)
    assert alike.start_of_all(1)["processor"].endswith(" and another")
