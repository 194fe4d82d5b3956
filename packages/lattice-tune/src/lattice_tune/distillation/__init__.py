"""A small network learns from a teacher's labels."""
