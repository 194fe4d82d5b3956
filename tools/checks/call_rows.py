"""Runs a page's snippets and tables of calls: ``python tools/checks/call_rows.py PAGE.md``.

Our calls run in the namespace that the snippets left. In a table of "the same value" the other library's call runs too, and
both values are compared. The last line says how many calls of ours ran, and how many were compared.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from call_tables import rows_of
from snippets import run_page

PEER_IMPORTS = {
    "coming-from-pot.md": "import ot",
    "coming-from-scikit-learn-mlp.md": "from sklearn.neural_network import MLPClassifier, MLPRegressor",
}
RELATIVE, ABSOLUTE = 1e-6, 1e-8  # what two values may differ by


def run_rows(page: Path) -> tuple[int, int]:
    """Run the page's snippets and calls; return how many calls ran and how many were compared.

    Raises:
        AssertionError: the two calls of a row give different values.
    """
    namespace: dict[str, object] = {}
    run_page(page, namespace)
    peer = dict(namespace)
    rows = [row for row in rows_of(page.read_text(encoding="utf-8")) if row.ours]
    if any(row.compared for row in rows):
        with warnings.catch_warnings():  # the other library's own: its files are compiled on the first import
            warnings.simplefilter("ignore")
            exec(PEER_IMPORTS[page.name], peer)
    for row in rows:
        place = f"{page.name}:{row.line}"
        if not row.compared:
            exec(compile(row.ours, place, "exec"), namespace)
            continue
        ours = np.asarray(eval(compile(row.ours, place, "eval"), namespace))
        theirs = np.asarray(eval(compile(row.theirs, place, "eval"), peer))
        if ours.dtype.kind in "fiu":
            np.testing.assert_allclose(ours, theirs, RELATIVE, ABSOLUTE, err_msg=f"{place}: {row.ours}")
        else:
            assert np.array_equal(ours, theirs), f"{place}: {row.ours}"
    return len(rows), sum(row.compared for row in rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("\n{} calls ran, {} compared".format(*run_rows(Path(sys.argv[1]))))
