"""From bytes on disk to named, typed arrays.

Nothing in here knows a model, and nothing trusts a file.
"""
