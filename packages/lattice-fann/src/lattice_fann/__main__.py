"""``python -m lattice_fann`` is the command line ``lattice-fann``."""

from __future__ import annotations

import sys

from lattice_fann.cli import main

if __name__ == "__main__":
    sys.exit(main())
