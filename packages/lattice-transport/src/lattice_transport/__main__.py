"""``python -m lattice_transport`` is the command line ``lattice-transport``."""

import sys

from lattice_transport.cli import main

sys.exit(main())
