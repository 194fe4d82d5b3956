"""Moving a corpus from one model to another."""
