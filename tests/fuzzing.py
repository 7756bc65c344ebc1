"""What the fuzz suites share: how a reader may answer, and inputs that readers do not expect.

By default every property sees some fifty inputs, always the same. `tests/fuzz.py` runs more.
"""

import atexit
import os
import resource
import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedjax_nc.errors import LONGEST, UserError

MORE = int(os.environ.get("FEDJAX_NC_FUZZ", "0"))  # inputs of every property
SECONDS = 10
ASKED = {"inputs": 0, "refused": 0, "longest": (0.0, "")}


def fuzz(few=50, share=1.0):
    """Settings of a property: so many inputs by default, a share of `MORE` when asked."""
    return settings(
        max_examples=max(1, int(MORE * share)) if MORE else few,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def answered(reader, *args, **kwargs):
    """Calls a reader, which may succeed or refuse its input on one short line, within seconds."""
    start = time.perf_counter()
    try:
        return reader(*args, **kwargs)
    except UserError as error:
        said = str(error)
        ASKED["refused"] += 1
        assert said and len(said) <= LONGEST and said.isprintable(), said
        return None
    finally:
        took = time.perf_counter() - start
        ASKED["inputs"] += 1
        ASKED["longest"] = max(ASKED["longest"], (took, reader.__name__))
        assert took < SECONDS


@atexit.register
def _report():
    if MORE:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        took, reader = ASKED["longest"]
        print(
            f"\n{ASKED['inputs']} inputs, {ASKED['refused']} refused, the longest took "
            f"{took:.1f} s ({reader}), at most {peak:.0f} MB in memory"
        )


def damaged(content):
    """Bytes that were valid once: some changed, cut out, doubled or put in."""
    place = st.integers(0, max(0, len(content) - 1))
    change = st.tuples(
        st.sampled_from(("set", "cut", "double", "insert")),
        place,
        st.binary(min_size=1, max_size=8),
    )
    return st.lists(change, min_size=1, max_size=4).map(lambda changes: _changed(content, changes))


def _changed(content, changes):
    for how, place, put in changes:
        if how == "set":
            content = content[:place] + put + content[place + len(put) :]
        elif how == "cut":
            content = content[:place] + content[place + len(put) ** 4 :]
        elif how == "double":
            content = content[:place] + content[max(0, place - 64) :]
        else:
            content = content[:place] + put + content[place:]
    return content


LONG = st.sampled_from(("9" * 400, "-" * 3000 + "1", "(" * 900, "[" * 300 + "]" * 300, "x" * 3000))
WORDS = (
    st.text(max_size=30)
    | LONG
    | st.sampled_from(("", "nope", "\x1b[2J", "\udc80", "a\nb", "~no/x"))
)
NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from((0, -1, 1, 2**31, 2**63, 10**400, float("nan"), float("inf"), 1e308))
)
PLAIN = st.none() | st.booleans() | NUMBERS | WORDS
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def replaced(draw, content):
    """A table of tables in which some value, anywhere, is something else, or is gone."""
    content = dict(content)
    key = draw(st.sampled_from(sorted(content)))
    how = draw(st.sampled_from(("value", "inside", "gone", "new")))
    if how == "inside" and isinstance(content[key], dict) and content[key]:
        content[key] = draw(replaced(content[key]))
    elif how == "inside" and isinstance(content[key], list) and content[key]:
        content[key] = [draw(ANYTHING), *content[key][1:]]
    elif how == "gone":
        del content[key]
    elif how == "new":
        content[draw(WORDS)] = draw(ANYTHING)
    else:
        content[key] = draw(ANYTHING)
    return content
