"""Encoders and cross-encoders: texts to vectors, pairs of texts to scores."""
