"""Hold how much of each package's public interface has known types, as pyright counts it.

``python ci/check_public_types.py lattice-fann lattice-embed ...`` fails below 97 % for any of them. Needs pyright.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LEAST = 0.97
SHOWN = 20


def completeness(package: str) -> dict[str, Any]:
    """Return pyright's report of a package in this tree."""
    sources = os.pathsep.join(str(path) for path in sorted(ROOT.glob("packages/*/src")))
    done = subprocess.run(
        ["pyright", "--verifytypes", package, "--ignoreexternal", "--outputjson"],
        env={**os.environ, "PYTHONPATH": sources},
        cwd=ROOT / "ci",  # the tree itself is no part of what is looked at
        capture_output=True,
        text=True,
        check=False,  # it fails unless everything is known
    )
    try:
        report: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    except (ValueError, KeyError):
        sys.exit(f"pyright gave no report of {package}: {done.stderr or done.stdout}")
    return report


def main() -> int:
    """Print each package's share, and the names that lack types where it is too low."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", metavar="PACKAGE")
    failed = False
    for name in parser.parse_args().packages:
        report = completeness(name.replace("-", "_"))
        share = report["completenessScore"]
        print(f"{name}: the types of {share:.1%} of {len(report['symbols']):,} names are known (at least {LEAST:.0%})")
        if not share >= LEAST:
            failed = True
            unknown = [found["name"] for found in report["symbols"] if found["isExported"] and not found["isTypeKnown"]]
            print(*unknown[:SHOWN], sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
