"""Helpers for tests: images, folders, call counts, and interrupts at a given function."""

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_compat.cli.demo import make_photo

ALL = os.environ.get("REPETITIONS") == "all"
if_all = pytest.mark.skipif(not ALL, reason="runs with REPETITIONS=all")  # long tests of benchmarks


def some(alike: Sequence) -> Sequence:
    """Return one value of each group of five; return all of them if REPETITIONS=all.

    The position within the group advances from group to group, so that an inner parameter with five values varies.
    """
    groups = [alike[begin : begin + 5] for begin in range(0, len(alike), 5)]
    return alike if ALL else [group[number % len(group)] for number, group in enumerate(groups)]


def make_image(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return a smooth random picture with shapes and some texture, as uint8 (height, width, 3)."""
    return make_photo(rng, height, width)


def make_folder(
    root: Path,
    classes: int = 3,
    per_class: int = 8,
    low: int = 60,
    high: int = 180,
    seed: int = 0,
    special: bool = True,
) -> Path:
    """Write root/class_a/00.jpg and so on, with sides of low to high pixels, and return root.

    If ``special``, the first class has a grayscale JPEG (00), a progressive JPEG (01) and a PNG with alpha (02).
    """
    rng = np.random.default_rng(seed)
    for label in range(classes):
        folder = Path(root) / f"class_{chr(ord('a') + label)}"
        folder.mkdir(parents=True)
        for index in range(per_class):
            pixels = make_image(rng, int(rng.integers(low, high + 1)), int(rng.integers(low, high + 1)))
            kind = index if special and label == 0 else None
            _save(folder / f"{index:02d}", pixels, {0: "gray", 1: "progressive", 2: "alpha"}.get(kind, "plain"))
    return Path(root)


def _save(stem: Path, pixels: np.ndarray, kind: str) -> None:
    picture = Image.fromarray(pixels)
    if kind == "alpha":
        fade = np.linspace(0, 255, pixels.shape[1]).astype(np.uint8)
        picture.putalpha(Image.fromarray(np.broadcast_to(fade, pixels.shape[:2]).copy()))
        picture.save(stem.with_suffix(".png"))
        return
    if kind == "gray":
        picture = picture.convert("L")
    picture.save(stem.with_suffix(".jpg"), quality=92, progressive=kind == "progressive")


def sizes_and_kinds(headers, indices, sources):
    """Return the sizes, (N, 2) as (height, width), and the decoder of each image from its header."""
    keys = np.fromiter(map(hash, sources), np.int64, len(sources))
    facts = headers.facts(np.asarray(indices), keys, sources.__getitem__)
    return facts["sizes"], facts["kinds"]


def each_of(files):
    """Return the contents of the files in ``engine.planes.files.Files`` as uint8 arrays."""
    ends = files.begins + files.lengths
    return [files.memory[begin:end] for begin, end in zip(files.begins.tolist(), ends.tolist(), strict=True)]


def transformers_module() -> types.ModuleType:
    """Import transformers; skip the test if it is missing or does not support this version of torch."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    if not transformers.is_torch_available():
        pytest.skip("this transformers wants a newer torch")
    return transformers


def calls_of(function: Callable[[], object]) -> int:
    """Count the Python and C function calls of ``function()`` in this thread, as a cost that does not depend on the
    machine."""
    counts = {"call": 0, "c_call": 0}
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: counts.update({event: counts.get(event, 0) + 1}))
    try:
        function()
    finally:
        sys.setprofile(before)
    return counts["call"] + counts["c_call"]


@contextlib.contextmanager
def while_within(function: Callable, act: Callable[[], object], when: Callable[[], bool] = lambda: True) -> Iterator:
    """Call ``act()`` repeatedly from another thread while the main thread is in ``function`` and ``when()`` is true.

    This does not depend on timing, so a test works on machines of any speed.
    """
    begun, over, main = threading.Event(), threading.Event(), threading.main_thread().ident

    def look() -> None:
        begun.wait()  # Thread.start() also waits; do not act during it
        while not over.wait(0.01):
            if when() and _is_within(sys._current_frames().get(main), function):
                act()

    thread = threading.Thread(target=look)
    thread.start()
    begun.set()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def interrupted(
    error: Callable[[], BaseException], within: Callable, when: Callable[[], bool] = lambda: True
) -> Iterator:
    """Raise ``error()`` once from a signal handler while the main thread is in ``within`` and ``when()`` is true."""
    raised, main = [], threading.main_thread().ident

    def handler(number: int, frame: types.FrameType | None) -> None:
        if not raised and _is_within(frame, within):
            raised.append(True)
            raise error()  # not stored here, so that its traceback is freed

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with while_within(within, lambda: signal.pthread_kill(main, signal.SIGALRM), when):
            yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _is_within(frame: types.FrameType | None, function: Callable) -> bool:
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None
