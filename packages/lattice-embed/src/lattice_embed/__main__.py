"""``python -m lattice_embed``: the command line."""

import sys

from lattice_embed.cli import main

sys.exit(main())
