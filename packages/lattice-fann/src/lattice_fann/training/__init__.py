"""Training: losses, optimizers, schedules and the trainers that use them."""
