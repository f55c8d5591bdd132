"""Turns a plan's samples into batches. The only place that imports nvidia.dali; never sees torchvision's transforms."""


class OutOfStep(RuntimeError):
    """An interrupt has stopped an engine in the middle of something. What it held is lost, and has to be made again."""
