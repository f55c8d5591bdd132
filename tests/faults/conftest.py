"""What the tests of faults have in common."""

import pytest
from torch.utils.data import _utils


@pytest.fixture(autouse=True)
def torchs_workers_end_soon(monkeypatch):
    """torch's loader waits 5 seconds for each worker process that does not end by itself, then ends it."""
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
