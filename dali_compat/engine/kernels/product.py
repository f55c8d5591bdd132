"""A helper: products of matrices with all bits of float32. How many a model's have, the user says by
torch.set_float32_matmul_precision; pixels have nothing to do with it."""

import torch


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a`` times ``b``: matrices, or batches of matrices."""
    times = torch.bmm if a.ndim == 3 else torch.mm
    if a.dtype == torch.float32 and _may_be_rounded():
        return times(a.double(), b.double()).float()
    return times(a, b)


def _may_be_rounded() -> bool:
    try:
        if torch.get_float32_matmul_precision() != "highest":
            return True
    except RuntimeError:  # the settings that follow are there beside that one
        return True
    backends = torch.backends.cuda, torch.backends.mkldnn
    matmuls = (getattr(backend, "matmul", None) for backend in backends)
    return any(getattr(matmul, "fp32_precision", "none") not in ("none", "ieee") for matmul in matmuls)
