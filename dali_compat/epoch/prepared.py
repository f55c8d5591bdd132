"""Results of a batch that were computed before it was asked for."""

from __future__ import annotations

from typing import Any

import torch

from ..runtime.device import current_stream_of, handed_over


class Prepared:
    """Results of a batch that were computed ahead of finish(), on the GPU stream that was current then.

    Attributes:
        images: of the batch.
        made: all of it, where it only had to be stacked.
    """

    images: Any = None
    made: Any = None

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def hand_over(self) -> None:
        """Hands what was made to the stream that is current now."""
        stream, self._stream = self._stream, None
        if stream is not None and stream.cuda_stream != current_stream_of(stream.device):
            if self.made is None:
                self.images = handed_over(self.images, stream)
            else:
                self.made = handed_over(self.made, stream)
