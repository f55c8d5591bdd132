"""Damaged and unusual image files, compared with torchvision one by one.

Run ``python tests/faults/run.py --files 100000``.
"""
