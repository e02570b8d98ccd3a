"""`python -m thunder_fx`: the command line, which is cli.py's."""

import sys

from thunder_fx.cli import main

if __name__ == "__main__":
    sys.exit(main())
