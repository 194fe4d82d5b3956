"""The forms that the CPU keeps weights in: a file for each kind, and a list of all."""
