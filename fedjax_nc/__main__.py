"""`python -m fedjax_nc`: the command `fedjax-nc` without installing it."""

import sys

from fedjax_nc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
