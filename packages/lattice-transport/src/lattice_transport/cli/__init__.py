"""The command line ``lattice-transport``: a thin door over the public Python API.

Exit status: 0 done; 1 the work failed (a file is missing, unreadable, or nothing converged that had to); 2 the request
makes no sense; 130 interrupted; 141 the reader of the output went away. With ``drift --exit-code``, 1 also means drift.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on ``arguments`` (default: the process's) and return the exit status."""
    from lattice_transport.cli.parser import build_parser
    from lattice_transport.errors import InvalidInputError, TransportError

    try:
        options = build_parser().parse_args(arguments)
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter flushes stdout once more at exit: let it find something that takes the bytes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("lattice-transport: interrupted", file=sys.stderr)
        return 130
    except MemoryError:
        print("lattice-transport: error: out of memory; give fewer vectors, or another --method", file=sys.stderr)
        return 1
    except (TransportError, OSError) as error:
        print(f"lattice-transport: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInputError) else 1
    return status
