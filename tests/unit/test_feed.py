"""Memory of Python objects that DALI refers to while it works.

A DALI thread that releases such an object needs the GIL. With some versions of Python, a process that is forked at that
moment hangs.
"""

import io
import weakref

import numpy as np
import pytest
import torch
from helpers import make_image
from PIL import Image

from dali_compat.data.sources import BYTES, PATHS, Form
from dali_compat.engine.dali import definition
from dali_compat.engine.dali.pipeline import DecodePipeline
from dali_compat.plan import Plan

COUNT, SIDE = 40, 900  # many large images, so that DALI still works when submit() returns
PLAN = Plan((), (), (), exact=False, channels_last=False)


@pytest.fixture(scope="module")
def pixels():
    return make_image(np.random.default_rng(0), SIDE, SIDE)


def images_of(form, pixels, tmp_path):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    path = tmp_path / "image.jpg"
    path.write_bytes(file.getvalue())
    one = {PATHS: str(path), BYTES: np.frombuffer(file.getvalue(), np.uint8)}[form]
    return [one if form == PATHS else one.copy() for _ in range(COUNT)]


def arrays_referenced_by_dali(form, pixels, tmp_path):
    """Count the input arrays that DALI refers to while it processes a batch."""
    pipeline = DecodePipeline(PLAN, torch.device("cpu"), 1, 1, COUNT, Form(form))
    pipeline.receive(pipeline.submit(images_of(form, pixels, tmp_path), []))  # builds the pipeline
    ticket = pipeline.submit(images_of(form, pixels, tmp_path), [])
    ours = pipeline._feed.flight[-1].arrays
    pipeline._feed.next = None  # a sample kept for the source
    refs = [weakref.ref(array) for one in ours for array in (one if isinstance(one, list) else [one])]
    ours[:] = [None, *(array.copy() for array in ours[1:])]  # indices are compared with the returned ones
    count = sum(ref() is not None for ref in refs)
    pipeline.receive(ticket)
    return count


@pytest.mark.parametrize("form", [PATHS, BYTES])
def test_dali_refers_to_no_input_arrays_when_it_copies_images(form, pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(definition, "COPIES_IMAGES", True)
    assert arrays_referenced_by_dali(form, pixels, tmp_path) == 0


def test_dali_refers_to_input_arrays_when_it_does_not_copy_images(pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(definition, "COPIES_IMAGES", False)
    assert arrays_referenced_by_dali(BYTES, pixels, tmp_path) == COUNT
