"""Tests of the workspace itself: the manual's snippets and the rules of the tree."""
