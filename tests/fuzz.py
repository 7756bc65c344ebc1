"""Runs the fuzz suites on many inputs: `python tests/fuzz.py 3000` gives every property 3,000.

It prints how many inputs there were, the longest time of one, and the most memory.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    each = sys.argv[1] if len(sys.argv) > 1 else "2000"
    files = sorted(map(str, HERE.glob("test_fuzz_*.py")))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-s", "--timeout=0", *files]
    env = os.environ | {"FEDJAX_NC_FUZZ": each}
    raise SystemExit(subprocess.run(command, cwd=HERE.parent, env=env, check=False).returncode)
