"""What DALI has of Python's while it works. A thread of DALI's that gives something back needs the interpreter's lock,
and with some versions of Python a process that is forked at that moment hangs."""

import io
import weakref

import numpy as np
import pytest
import torch
from helpers import make_image
from PIL import Image

from dali_compat.data.sources import BYTES, PATHS, PIXELS, Form
from dali_compat.engine.dali import definition
from dali_compat.engine.dali.pipeline import DecodePipeline
from dali_compat.plan import Plan

COUNT, SIDE = 40, 900  # many large ones: DALI is at work when submit() is back
PLAN = Plan((), (), (), exact=False, channels_last=False)


@pytest.fixture(scope="module")
def pixels():
    return make_image(np.random.default_rng(0), SIDE, SIDE)


def images_of(given, pixels, tmp_path):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    path = tmp_path / "image.jpg"
    path.write_bytes(file.getvalue())
    one = {PATHS: str(path), BYTES: np.frombuffer(file.getvalue(), np.uint8), PIXELS: pixels}[given]
    return [one if given == PATHS else one.copy() for _ in range(COUNT)]


def alive_in_dali(given, pixels, tmp_path):
    """How many arrays of a batch that is under way DALI has."""
    pipeline = DecodePipeline(PLAN, torch.device("cpu"), 1, 1, COUNT, Form(given))
    pipeline.receive(pipeline.submit(images_of(given, pixels, tmp_path), []))  # it is built
    ticket = pipeline.submit(images_of(given, pixels, tmp_path), [])
    ours = pipeline._feed.flight[-1].arrays
    pipeline._feed.next = None  # a sample of it, for the source
    refs = [weakref.ref(array) for one in ours for array in (one if isinstance(one, list) else [one])]
    ours[:] = [None, *(array.copy() for array in ours[1:])]  # numbers are compared with those that come out
    count = sum(ref() is not None for ref in refs)
    pipeline.receive(ticket)
    return count


@pytest.mark.parametrize("given", [PATHS, BYTES, PIXELS])
def test_dali_has_copies(given, pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(definition, "COPIES_IMAGES", True)
    assert alive_in_dali(given, pixels, tmp_path) == 0


def test_dali_copies_no_images_without_need(pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(definition, "COPIES_IMAGES", False)
    assert alive_in_dali(BYTES, pixels, tmp_path) == COUNT
