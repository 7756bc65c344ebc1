"""The small mistakes of mutations.yaml can still be made, and the tests they are for exist."""

import mutations
import pytest

MISTAKES = mutations.read()


@pytest.mark.parametrize("number", range(1, len(MISTAKES) + 1))
def test_a_mistake_can_be_made(number):
    """What is replaced is in its file, in one place only, and something else takes its place."""
    mistake = MISTAKES[number - 1]
    text = (mutations.ROOT / "fedjax_nc" / mistake.file).read_text()
    assert text.count(mistake.was) == 1, f"{mistake.file}: {mistake.was!r}"
    assert mistake.becomes != mistake.was
    files = [mutations.ROOT / f"tests/test_{name}.py" for name in mistake.tests]
    assert files and all(file.exists() for file in files)


def test_no_mistake_is_listed_twice():
    made = [(mistake.file, mistake.was, mistake.becomes) for mistake in MISTAKES]
    assert len(set(made)) == len(made) >= 30
