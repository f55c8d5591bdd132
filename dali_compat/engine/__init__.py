"""Turns a plan's samples into batches. The only place that imports nvidia.dali; never sees torchvision's transforms."""
