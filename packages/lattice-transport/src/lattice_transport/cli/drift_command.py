"""``lattice-transport drift``: has a set of vectors moved away from a reference?"""

from __future__ import annotations

import argparse

from lattice_transport.atomic_file import write_atomically
from lattice_transport.checks import check_count
from lattice_transport.cli.files import Progress, check_output, print_json, read_vectors, set_threads, suggests
from lattice_transport.drift import detect_drift
from lattice_transport.drift.plots import DOTS_PER_INCH, check_plots

__all__ = ["run"]

PICTURES = (".png", ".svg", ".pdf")


@suggests("a smaller --max-samples")
def run(options: argparse.Namespace) -> int:
    """Run the test and print its report."""
    set_threads(options)
    check_count("--worst", options.worst, least=0)
    picture = check_output("--plot", options.plot, PICTURES) if options.plot else None
    if picture:
        check_plots()
    reference, current = read_vectors(options.reference), read_vectors(options.current)
    with Progress("permutations") as progress:

        def show(done: int, total: int) -> None:
            progress.show(f"{done} of {total}")

        report = detect_drift(
            reference,
            current,
            metric=options.metric,
            epsilon=options.epsilon,
            false_alarm_rate=options.false_alarm_rate,
            permutations=options.permutations,
            reindex_effect=options.reindex_effect,
            max_samples=options.max_samples,
            seed=options.seed,
            reference_fingerprint=options.reference_model,
            current_fingerprint=options.current_model,
            observer=show,
        )
    if picture:
        figure = report.plot()
        write_atomically(picture, lambda file: figure.savefig(file, format=picture.suffix[1:], dpi=DOTS_PER_INCH))
    if options.json:
        print_json(report.to_dict())
    else:
        print(f"verdict      {report.verdict.decision.value}")
        for reason in report.verdict.reasons:
            print(f"             {reason}")
        print(f"divergence   {report.divergence:.6g} (alarm from {report.threshold:.6g}), z = {report.z_score:.2f}")
        print(f"p-value      {report.p_value:.4g}")
        print(f"effect size  {report.effect_size:.4g}")
        for test in report.baselines:
            print(f"{test.name:<12} {test.statistic:.6g}, p = {test.p_value:.4g}")
        print(f"outliers     {report.summary.outlier_count} of {report.current_size}")
        for name, cost in report.items.worst(options.worst):
            print(f"             item {name}: expected cost {cost:.6g}")
    return 1 if options.exit_code and report.drifted else 0
