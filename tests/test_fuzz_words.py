"""Whatever is typed as a method, a flag or a plugin is understood or refused on one line."""

import re
from functools import partial

import pytest
from fuzzing import ANYTHING, LONG, PLAIN, WORDS, answered, fuzz
from hypothesis import example, given
from hypothesis import strategies as st

from fedjax_nc import plugins
from fedjax_nc.cli import flags, run
from fedjax_nc.config import RunConfig, to_dict
from fedjax_nc.errors import LONGEST, Fault, Stopped, UserError
from fedjax_nc.methods import catalogue, registry

NAMES = sorted({*catalogue.bases(), *catalogue.regularisers(), "nope", ""})
HYPER = sorted({key for entry in catalogue.bases().values() for key in entry.hyper})
LITERALS = (
    PLAIN.map(repr) | ANYTHING.map(repr) | LONG | st.sampled_from(("{[]: 1}", "1j", "x", "f(1)"))
)
CALLS = st.builds(
    lambda name, given: f"{name}({', '.join(f'{k}={v}' for k, v in given.items())})",
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(HYPER), LITERALS, max_size=3),
)
SPECS = st.lists(CALLS | st.sampled_from(NAMES) | WORDS, max_size=4).map(" | ".join)
FLAGS = sorted(
    f"--{group}.{name}" if isinstance(values, dict) else f"--{group}"
    for group, values in to_dict(RunConfig()).items()
    for name in (values if isinstance(values, dict) else [group])
)


@fuzz(200)
@example("fedprox(mu={[]: 1})")
@example(f"fedprox(mu={'9' * 400})")
@example(f"fedprox(mu={'-' * 1500}1)")
@example(f"fedprox(mu={'(' * 900}1{')' * 900})")
@example("fedprox(mu=1" + " | fd" * 2000)
@example("fedprox(**{'mu': 1})")
@given(SPECS)
def test_a_specification(spec):
    if answered(catalogue.parse, spec) is not None:
        answered(registry.build, spec)


@fuzz(12, share=0.05)
@example([("--rounds", "9" * 4000)])
@example([("--method", "x" * 20_000)])
@example([("--data.partition_file", "y" * 3000 + ".npz")])
@example([("--dataset", "~nobody/x.npz")])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*FLAGS, "--seeds", "--out", "--plugin", "--hp.mu", "--track"]) | WORDS,
            PLAIN.map(str) | SPECS,
        ),
        max_size=3,
    )
)
def test_flags(words):
    argv = [f"{flag}={value}" for flag, value in words]
    answered(_parse, ["--dataset=digits", "--model=mlp", *argv])


def _parse(argv):
    try:
        return flags.parse(argv)
    except SystemExit as stop:  # --help
        assert not stop.code


@fuzz(100)
@given(st.lists(WORDS, max_size=400), WORDS)
def test_a_message_is_one_short_line_that_ends_in_its_advice(names, given):
    advice = "give another, as --method=fedavg"
    for kind in (UserError, Fault, partial(Stopped, code=75)):
        said = str(kind(f"{given}: choose from {', '.join(names)}: {advice}"))
        assert len(said) <= LONGEST and said.isprintable() and said.endswith(advice)


def test_seeds_of_which_nothing_is_saved_are_told_in_part(tmp_path):
    asked = flags.parse(["--seeds", *map(str, range(100))])
    said = run._saved(asked, {seed: tmp_path / str(seed) for seed in range(100)})
    assert "so nothing of seed 0, 1, 2, 3, 4, 5 and 94 more is saved" in said


def test_a_long_list_is_shortened_and_says_where_all_of_it_is(refused):
    said = refused("--method=nothing_like_it")
    assert re.search(r"choose from (\w+, ){5}\w+ and \d+ more: fedjax-nc list methods$", said)
    assert len(refused(f"--method={'x' * 3000}")) <= LONGEST


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plugins")


PLUGIN = """
import fedjax_nc as fnc
SHARE = {a}
@fnc.base
def mine(*, share: {b} = {c}, other=SHARE):
    '''Mine.'''
fnc.register_dataset("mine", classes={d}, shape={e}, train={f}, test=10, load="a:b", mean={g})
fnc.register_model({h}, module="a:b", min_size={i}, **{j})
"""
GOOD = {
    **dict(zip("abcd", ("0.1", "float", "0.5", "10"), strict=True)),
    **dict(zip("efg", ("(8, 8, 1)", "100", "(0.5,)"), strict=True)),
    **dict(zip("hij", ("'net'", "8", "{}"), strict=True)),
}


@fuzz(60, share=0.5)
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), LITERALS, max_size=3), st.binary(max_size=3))
def test_a_plugin_is_read(folder, parts, more):
    path = folder / "plugin.py"
    path.write_bytes(PLUGIN.format(**GOOD | parts).encode("utf-8", "surrogatepass") + more)
    answered(plugins.read, [str(path)])
    plugins.forget()


def test_a_plugin_that_is_no_file_or_too_large(folder):
    path = folder / "large.py"
    path.write_bytes(b"#" * 2_000_000)
    assert answered(plugins.read, [str(path)]) is None
    assert answered(plugins.read, ["/dev/zero"]) is None
