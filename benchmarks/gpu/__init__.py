"""Checks, then times the attention kernels on a CUDA device, beside what else can run there."""
