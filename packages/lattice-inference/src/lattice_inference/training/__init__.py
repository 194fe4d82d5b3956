"""Runs a model forward and backward, for the training of low-rank adapters.

It holds no loop, optimizer or data.
"""

from lattice_inference.graph.training_batch import Dropout, Noise
from lattice_inference.training.opening import open_training_program
from lattice_inference.training.trained_sites import TrainedSite
from lattice_inference.training.training_program import TrainingProgram

__all__ = ["Dropout", "Noise", "TrainedSite", "TrainingProgram", "open_training_program"]
