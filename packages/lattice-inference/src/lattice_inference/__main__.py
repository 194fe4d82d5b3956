"""The process of ``lattice`` and ``python -m lattice_inference``, from import to exit.

This module imports nothing ahead: an interrupt is one line and status 130 also while the packages are being imported.
"""

import os
import sys

__all__ = ["run"]


def run() -> None:
    """Run the command line on the process's arguments and end the process with its exit status."""
    try:
        from lattice_inference.cli import main

        status = main()
        if status != 130:
            import signal

            # the work is done and printed: an interrupt while the interpreter ends changes nothing
            signal.signal(signal.SIGINT, lambda *_: os._exit(status))
    except KeyboardInterrupt:
        status = 130
        try:  # noqa: SIM105 -- contextlib need not be imported yet
            os.write(2, b"lattice: interrupted\n")
        except OSError:
            pass  # it is full or broken
    if status == 130:
        # sys.exit would let the interpreter kill itself by the signal, if that came inside an eval as dataclasses make
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
