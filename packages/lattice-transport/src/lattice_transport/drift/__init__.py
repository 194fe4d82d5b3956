"""Drift of a corpus or embedding model: tests of two vector sets, and a stream detector."""

from lattice_transport.drift.detect import detect_drift
from lattice_transport.drift.online import DriftObservation, OnlineDriftDetector
from lattice_transport.drift.report import DriftItems, DriftReport, DriftSummary, DriftVerdict, TestResult, Verdict
from lattice_transport.drift.samples import VectorSet

__all__ = [
    "DriftItems",
    "DriftObservation",
    "DriftReport",
    "DriftSummary",
    "DriftVerdict",
    "OnlineDriftDetector",
    "TestResult",
    "VectorSet",
    "Verdict",
    "detect_drift",
]
