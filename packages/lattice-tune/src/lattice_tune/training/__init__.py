"""Optimizers, schedules, early stopping and checkpoints of the student's trainer."""
