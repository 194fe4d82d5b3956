"""Calls of tools: what a model may call, how it writes a call, and how an answer is read."""
