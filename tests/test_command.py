"""One command: its subcommands, what they say while one waits, and how each is stopped."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import pytest
from runs import DATA, FEW, PLAIN, SMALL, files_of, rows_of, train

from fedjax_nc import errors, plugins
from fedjax_nc.cli import (
    board,
    console,
    curves,
    flags,
    listing,
    main,
    prepare,
    run,
)
from fedjax_nc.data import prepared
from fedjax_nc.host import dry_run
from fedjax_nc.host.assemble import assemble
from fedjax_nc.io import rundir

ROOT = Path(__file__).parents[1]
TINY = ["--method=fedavg", *DATA, *FEW, *PLAIN, "--rounds=2"]


# --- the word after fedjax-nc


def test_overview_names_every_command(capsys):
    assert main.main([]) == 0
    text = capsys.readouterr().out
    assert main.main(["--help"]) == 0 and capsys.readouterr().out == text
    for name, (summary, _) in main.COMMANDS.items():
        assert re.search(rf"^  {name} +{summary}$", text, re.MULTILINE)
    assert list(main.COMMANDS) == [
        "run",
        "compare",
        "sweep",
        "table",
        "curves",
        "board",
        "analyse",
        "prepare",
        "list",
    ]


@pytest.mark.parametrize(
    "argv, said",
    [
        (["rn"], "unknown command 'rn': did you mean 'run'? choose from analyse, board"),
        (["prepar", "cifar10"], "did you mean 'prepare'?"),
        (["--method=fedavg"], "--method=fedavg comes after a command, as fedjax-nc run --method"),
        (["run", "--method=fedeft"], "did you mean 'fedetf'?"),
        (["compare"], "no method was given"),
        (["compare", "fedavg", "--rounds=3"], "flags of run follow --, as fedjax-nc compare"),
        (["compare", "fedeft"], "did you mean 'fedetf'?"),
        (["compare", "fedavg", "--", "--lr=3"], "did you mean --local.lr?"),
        (["compare", "fedavg", "--to", "/no/such/folder/x.md"], "a folder that exists"),
        (["curves"], "no run directory was given: name one that `fedjax-nc run` has left"),
        (["curves", "/nowhere"], "/nowhere is not a run directory"),
        (["curves", "a", "a"], "given twice"),
        (["curves", "a", "--to=x.doc"], "ends in .png, .svg, .pdf"),
        (["curves", "a", "--title=x"], "--title has no effect without --to"),
        (["curves", "a", "--too=x"], "did you mean --to?"),
        (["board"], "no run directory was given: name some that `fedjax-nc run` has left, or a"),
        (["board", "/nowhere"], "/nowhere is no folder: give run directories, or folders with"),
        (["board", "tests"], "no run is in tests: give a folder that `fedjax-nc run` has written"),
        (["board", "a", "a"], "given twice"),
        (["board", "a", "--to=x.png"], "ends in .html, .htm"),
        (["board", "a", "--to=/no/such/folder/x.html"], "a folder that exists"),
        (["board", "a", "--too=x"], "did you mean --to?"),
        (["analyse"], "no run directory was given: name one that `fedjax-nc run` has left"),
        (["analyse", "a", "--onyl=cost"], "did you mean --only?"),
        (["prepare"], "no dataset was given: choose from mnist, fashion_mnist"),
        (["prepare", "cifr10"], "did you mean 'cifar10'?"),
        (["prepare", "mnist", "--data.side=3"], "--data.side has no effect on mnist"),
        (["prepare", "mnist", "--form=x"], "did you mean --from?"),
        (["list", "modles"], "unknown list 'modles': did you mean 'models'?"),
        (["list", "models", "--bytes"], "--bytes has no effect on a list of models"),
        (["list", "--dataset=digits"], "--dataset has no effect without --bytes"),
    ],
)
def test_bad_input_is_one_line(capfd, argv, said):
    assert main.main(argv) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("error: ") and said in printed.err


def test_every_command_parses_without_jax():
    code = """
        import sys
        from fedjax_nc.cli.main import COMMANDS, main
        for name in COMMANDS:
            try:
                main([name, "--help"])
            except SystemExit as stop:
                assert stop.code == 0
        assert not {"jax", "numpy", "matplotlib"} & set(sys.modules)
    """
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: fedjax-nc ") == len(main.COMMANDS)


def test_help_of_compare_shows_where_flags_of_run_go(capsys):
    with pytest.raises(SystemExit):
        main.main(["compare", "--help"])
    text = capsys.readouterr().out
    options = "[--to FILE] [--columns NAME ...] [--targets SHARE ...]"
    assert f"fedjax-nc compare METHOD ... {options} -- FLAGS OF `fedjax-nc run`" in text


def test_installed_and_started_as_a_module(tmp_path):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"fedjax-nc": "fedjax_nc.cli.main:main"}
    argv = [sys.executable, "-m", "fedjax_nc", "prepare", "imagenet100", "--data.dir=x"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "as python -m fedjax_nc prepare imagenet100 --from PATH" in done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.py")), ids=lambda p: p.name)
def test_scripts_only_call_a_command(path):
    last = path.read_text().splitlines()[-2:]
    name = {"run.py": "train", "prepare_data.py": "prepare"}.get(path.name, path.stem)
    assert last == ['if __name__ == "__main__":', f"    sys.exit({name}())"]
    assert getattr(main, name) in [function for _, function in main.COMMANDS.values()]


@pytest.mark.parametrize(
    "started, typed",
    [
        ("/opt/venv/bin/fedjax-nc", "fedjax-nc prepare"),
        (
            "/opt/venv/lib/python3.11/site-packages/fedjax_nc/__main__.py",
            "python -m fedjax_nc prepare",
        ),
        (str(ROOT / "experiments/run.py"), f"python {ROOT}/experiments/prepare_data.py"),
        ("/elsewhere/run.py", "fedjax-nc prepare"),  # somebody's own
        ("/opt/venv/lib/python3.11/site-packages/pytest/__main__.py", "fedjax-nc prepare"),
        ("", "fedjax-nc prepare"),
    ],
)
def test_messages_name_the_command_that_exists_here(monkeypatch, started, typed):
    monkeypatch.setattr(sys, "argv", [started])
    assert errors.command("prepare") == typed
    assert prepared.remedy("cifar10", Path("/d")) == f"run: {typed} cifar10 --data.dir /d"


def test_list_is_a_flag_of_the_script(monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(ROOT / "experiments/curves.py")])
    assert errors.command("list") == f"python {ROOT}/experiments/run.py --list"
    for name in main.COMMANDS:  # every one has a script that exists
        assert Path(errors.command(name).split()[1]).is_file()


def test_plugins_are_read_before_anything_else(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from fedjax_nc.methods.averaging import fedavg\n"
        "from fedjax_nc.methods.registry import base\n\n\n"
        "@base\ndef mine(*, shifts: tuple[float, ...] = (0.5,)):\n    return fedavg()\n"
    )
    flag = f"--plugin={path}"
    try:
        asked = flags.parse([flag, "--method=mine", "--hp.shifts", "1", "2"])
        assert asked.plugins == (str(path),)
        assert asked.configs[0].method == "mine(shifts=(1.0, 2.0))"
        assert main.main(["list", "methods", flag]) == 0
        assert re.search(r"^│   mine +│", capsys.readouterr().out, re.MULTILINE)
        assert main.main(["compare", "mime", "--", flag]) == 2
        assert "did you mean 'mine'?" in capsys.readouterr().err
        assert main.main(["analyse", "/nowhere", "--plugin=/no.py"]) == 2
        assert "there is no such Python file" in capsys.readouterr().err
    finally:
        plugins.forget()
    with pytest.raises(errors.UserError, match="unknown method 'mine'"):
        flags.parse(["--method=mine"])


# --- waiting


def test_a_line_says_what_is_waited_for(capsys, monkeypatch):
    monkeypatch.setattr(console, "PATIENCE", 0.01)
    with console.waiting("starting jax"):
        time.sleep(0.2)
    monkeypatch.setattr(console, "PATIENCE", 60)
    with console.waiting("nothing long"):
        pass
    assert capsys.readouterr().err == "starting jax ...\n"


def test_a_terminal_forgets_what_was_waited_for(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(ValueError), console.waiting("starting jax"):
        assert capsys.readouterr().err == "starting jax ..."
        raise ValueError
    assert capsys.readouterr().err == "\r\x1b[2K"


@pytest.mark.parametrize("extra", [[], ["--dry-run"]])
def test_run_says_what_it_waits_for(capsys, monkeypatch, tmp_path, extra):
    said = []
    waiting = console.waiting
    monkeypatch.setattr(console, "waiting", lambda what: said.append(what) or waiting(what))
    monkeypatch.setattr(dry_run, "facts", lambda job: {})
    monkeypatch.setattr(dry_run, "estimate", lambda job: {})
    assert main.train([*TINY, f"--out={tmp_path}", *extra]) == 0
    assert said[:2] == ["starting jax", "reading digits and building mlp"]
    assert said[2:] == (["compiling a round", "measuring a local step"] if extra else [])
    assert ("fedavg seed 0: compiling\n" in capsys.readouterr().err) is not bool(extra)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.0351, "35 ms"),
        (0.0042, "4.2 ms"),
        (2.04, "2.0 s"),
        (59.0, "59 s"),
        (720.0, "12 min"),
        (36000.0, "10 h"),
        (259200.0, "3 days"),
    ],
)
def test_duration(seconds, text):
    assert dry_run.duration(seconds) == text


def test_estimate_is_steps_times_their_time(monkeypatch):
    """12 steps a client and round; clients are dealt to the devices."""
    monkeypatch.setattr(dry_run, "step_seconds", lambda job, phase: 0.1)
    argv = [*SMALL, "--method=fedavg", "--data.partition=iid", "--rounds=50", "--local.steps=10"]
    job = assemble(flags.parse([*argv, "--execution.executor=scan"]).configs[0])
    assert dry_run.estimate(job)["time"].startswith("about 2.5 min on this machine")  # 3 x 10 x 50
    job = assemble(flags.parse(argv).configs[0])
    assert job.executor.devices == 2
    assert dry_run.estimate(job)["time"].startswith("about 75 s on this machine")
    job = assemble(flags.parse([*argv, "--execution.executor=debug"]).configs[0])
    assert dry_run.estimate(job) == {}


# --- Ctrl-C


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def stopped(capfd, argv):
    assert main.main(argv) == 130
    (line,) = [x for x in capfd.readouterr().err.splitlines() if x.startswith("stopped")]
    return line


@pytest.mark.parametrize(
    "argv, module, name",
    [
        (["compare", "fedavg", "--", *TINY[1:]], run, "execute"),
        (["curves", "runs"], curves, "open_run"),
        (["board", "tests"], board, "find"),
        (["analyse", "runs"], rundir, "read"),
        (["prepare", "mnist"], prepare.preparation, "prepare"),
        (["list"], listing.Table, "add_row"),
    ],
)
def test_ctrl_c_is_one_line(capfd, monkeypatch, argv, module, name):
    monkeypatch.setattr(module, name, interrupt)
    assert main.main(argv) == 130
    printed = capfd.readouterr().err
    assert printed.startswith("stopped") and printed.count("\n") == 1


def test_ctrl_c_of_compare_says_how_many_are_finished(capfd, monkeypatch, tmp_path):
    execute = run.execute
    monkeypatch.setattr(
        run, "execute", lambda a: interrupt() if "moon" in a.configs[0].method else execute(a)
    )
    argv = ["compare", "fedavg", "moon", "--", *TINY[1:], f"--out={tmp_path}"]
    line = stopped(capfd, argv)
    assert line == "stopped: 1 of 2 methods are finished; the same command goes on with the others"


def test_ctrl_c_before_and_after_the_first_checkpoint(capfd, monkeypatch, tmp_path):
    shown = console.Progressing.round
    argv = [*TINY, "--rounds=4", "--execution.checkpoint_every=2", f"--out={tmp_path}"]

    def at(number):
        def show(self, rows, rounds):
            shown(self, rows, rounds)
            if rows[0]["round"] == number:
                raise KeyboardInterrupt

        return show

    monkeypatch.setattr(console.Progressing, "round", at(1))
    assert stopped(capfd, ["run", *argv]) == (
        "stopped: no checkpoint was made yet, so nothing of seed 0 is saved; one is made every 2 "
        "rounds (--execution.checkpoint_every)"
    )
    monkeypatch.setattr(console.Progressing, "round", at(3))
    line = stopped(capfd, ["run", *argv])
    assert line == "stopped: saved after round 2; the same command goes on"
    monkeypatch.setattr(console.Progressing, "round", shown)
    assert main.train(argv) == 0
    assert "resuming after round 2" in capfd.readouterr().err


# a shell starts what runs in its background deaf to Ctrl-C, and so perhaps these tests
HEARING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", ["starting jax", "compiling"])
def test_a_real_ctrl_c(tmp_path, line):
    """Also while jax is being imported, or compiles into an empty cache, when XLA used to crash."""
    argv = [sys.executable, "-c", HEARING, sys.executable, "-m", "fedjax_nc", "compare", "fedavg"]
    argv += ["--", "--rounds=1000", f"--out={tmp_path}"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla"),
    }
    process = subprocess.Popen(
        argv, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    try:
        assert process.stderr
        next(text for text in process.stderr if line in text)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in said
    assert said.splitlines()[-1].startswith("stopped: 0 of 1 methods are finished")


# --- a finished run


def test_track_on_a_finished_run_is_refused(refused, capfd, tmp_path):
    directory = train(tmp_path / "out", TINY)
    before = files_of(directory)
    capfd.readouterr()
    said = refused(*TINY, "--track=collapse,spectrum", "--track_every=1")
    assert said.startswith("--track=collapse,spectrum records while training, and ")
    assert str(directory) in said and said.endswith("add --overwrite to train it again")
    assert files_of(directory) == before
    again = [*TINY, "--track=collapse", "--track_every=1"]
    assert main.train([*again, f"--out={tmp_path / 'out'}", "--overwrite"]) == 0
    assert all("collapse" in row for row in rows_of(directory))
    capfd.readouterr()
    assert main.train([*again, f"--out={tmp_path / 'out'}"]) == 0  # it is there now
    assert "already finished" in capfd.readouterr().err
    assert "--track=spectrum records" in refused(*again, "--track=collapse,spectrum")


def test_finished_run_needs_no_jax(tmp_path):
    out = tmp_path / "out"
    train(out, TINY)
    code = "import sys; from fedjax_nc.cli import main; assert main.train(sys.argv[1:]) == 0\n"
    code += "assert 'jax' not in sys.modules"
    argv = [sys.executable, "-c", code, *TINY, f"--out={out}"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "fedavg on digits" in done.stdout
