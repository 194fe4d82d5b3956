"""``lattice-embed models``: the catalogue."""

from __future__ import annotations

import argparse
import json

from lattice_embed.cli.model_sources import ModelReport, report_models

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print what is known about each model, and where its files would come from."""
    reports = report_models()
    if options.json:
        print(json.dumps({"models": [_as_json(report) for report in reports]}))
        return 0
    width = max(len(report.model.slug) for report in reports)
    print(f"{'name':<{width}}  {'dim':>5}  {'tokens':>6}  {'size':>8}  {'licence':<12}  {'runs':<4}  from")
    for report in reports:
        model = report.model
        licence = model.license if len(model.license) <= 12 else "terms"
        weights = model.description.weights_bytes
        size = "" if weights is None else f"{weights / 1e6:,.0f} MB"
        runs = "yes" if report.reason is None else "no"
        print(
            f"{model.slug:<{width}}  {model.native_dimensions:>5}  {model.max_tokens:>6}  {size:>8}  {licence:<12}  "
            f"{runs:<4}  {report.origin if report.reason is None else report.reason}"
        )
    return 0


def _as_json(report: ModelReport) -> dict[str, object]:
    description = report.model.description
    return {
        "name": description.slug,
        "id": description.model_id,
        "dim": description.native_dimensions,
        "max_tokens": description.max_tokens,
        "pooling": description.pooling,
        "query_prompt": description.query_prompt,
        "passage_prompt": description.passage_prompt,
        "supports_output_dim": description.supports_output_dim,
        "license": description.license,
        "weights_bytes": description.weights_bytes,
        "remote": description.is_remote,
        "runs_here": report.reason is None,
        "reason": report.reason,
        "source": None if report.source is None else report.source.source,
        "location": None if report.source is None else report.source.location,
    }
