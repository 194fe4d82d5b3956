"""The model families: each file turns a configuration into a program.

There are no kernels, threads or fused ops here.
"""
