"""``python -m lattice_inference``: the command line."""

import sys

from lattice_inference.cli import main

sys.exit(main())
