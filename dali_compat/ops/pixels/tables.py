"""Tables of 256 values for uint8 images, by which a value becomes another one."""

from __future__ import annotations

import torch


def by_value(images, function):
    """``function`` of each pixel, by way of a table where there are but 256 values."""
    if images.dtype != torch.uint8:
        return function(images)
    levels = torch.arange(256, dtype=torch.uint8, device=images.device).view(1, 1, 1, 256)
    return look_up(as_indices(images), function(levels)[:, 0], images)


def as_indices(images):
    """(N, C, H * W) int64, for gather and scatter."""
    return images.contiguous().flatten(2).to(torch.int64)


def counts_of(indices):
    """Counts each value: (N, C, 256) int64 of indices (N, C, pixels)."""
    n, channels, pixels = indices.shape
    # A GPU adds to one number at a time, and a sky is of one colour: it has several counters for each value.
    counters = 1 if indices.device.type == "cpu" else 32
    first = torch.arange(0, n * channels * counters * 256, counters * 256, device=indices.device).view(n, channels, 1)
    if counters == 1:
        return torch.bincount((indices + first).view(-1), minlength=n * channels * 256).view(n, channels, 256)
    flat = indices.add(torch.arange(pixels, device=indices.device) % counters * 256).add_(first)
    ones = torch.ones(1, dtype=torch.int32, device=indices.device)
    counts = ones.new_zeros(n * channels * counters * 256)
    counts.scatter_add_(0, flat.view(-1), ones.expand(flat.numel()))  # bincount would wait for the GPU
    return counts.view(n, channels, counters, 256).sum(2)


def look_up(indices, tables, images):
    """Each pixel's value in its channel's table, (N, C, 256), or in its image's, (N, 1, 256)."""
    return tables.to(images.dtype).expand(-1, images.shape[1], -1).gather(-1, indices).view(images.shape)
