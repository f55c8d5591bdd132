"""Turns a plan's samples into batches, by DALI (dali/), by torch on batches (kernels/) and
image by image (replay.py)."""
