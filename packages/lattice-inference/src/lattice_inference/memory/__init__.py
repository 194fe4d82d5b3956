"""What a model takes of memory, before and after it is loaded."""
