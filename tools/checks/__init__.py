"""Tests of the workspace itself: the manual's snippets and the house rules."""
