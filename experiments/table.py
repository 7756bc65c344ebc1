"""Make a paper's table again at a scale: train what is missing, then write it.

python experiments/table.py feddw/T1 --scale=pocket --to feddw.md
python experiments/table.py fedblade/T1 --scale=full --only_report
"""

import sys

from fedjax_nc.cli.table import table

if __name__ == "__main__":
    sys.exit(table())
