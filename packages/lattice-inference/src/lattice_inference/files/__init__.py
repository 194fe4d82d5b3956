"""Finds the files of a model, checks that they are whole, and tells them apart."""
