"""The model families: each file turns a config into a program. No kernels, no threads, no fused ops."""
