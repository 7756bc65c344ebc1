"""Write one HTML page to filter, group, sort and draw many runs in a browser.

python experiments/board.py runs --to board.html
"""

import sys

from fedjax_nc.cli.board import board

if __name__ == "__main__":
    sys.exit(board())
