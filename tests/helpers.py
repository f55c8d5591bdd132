"""Images and folders for tests, and what happens to the main thread at a certain place."""

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


def some(alike: Sequence) -> Sequence:
    """One of each three: the first of the first three, the second of the next. All of them with REPETITIONS=all.

    So an argument of three values, of a test with several, does not have the same one each time.
    """
    threes = [alike[begin : begin + 3] for begin in range(0, len(alike), 3)]
    return alike if ALL else [three[number % len(three)] for number, three in enumerate(threes)]


def make_image(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A smooth random picture with shapes and some texture: uint8, (height, width, 3). Not pure noise."""
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
    """Write root/class_a/00.jpg and so on, sides drawn from low..high pixels. Returns root.

    special: the first class holds one gray JPEG (00), one progressive JPEG (01) and one PNG with alpha (02).
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
    """Of images that come from these sources: (N, 2), (height, width), and who decodes them (data/header.py)."""
    keys = np.fromiter(map(hash, sources), np.int64, len(sources))
    facts = headers.facts(np.asarray(indices), keys, sources.__getitem__)
    return facts["sizes"], facts["kinds"]


def each_of(files):
    """Of engine/planes/files.Files, (length,) uint8 each."""
    ends = files.begins + files.lengths
    return [files.memory[begin:end] for begin, end in zip(files.begins.tolist(), ends.tolist(), strict=True)]


def transformers_module() -> types.ModuleType:
    """Skips where it is not there, or wants a newer torch."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    if not transformers.is_torch_available():
        pytest.skip("this transformers wants a newer torch")
    return transformers


def calls_of(function: Callable[[], object]) -> int:
    """How many functions of Python's and of C's it calls, in this thread: what it costs, on any machine."""
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
    """Another thread calls ``act()``, again and again, while the main thread is in a function and ``when()`` is true.

    What a test waits for a time to reach is certain so, however slow the machine is.
    """
    begun, over, main = threading.Event(), threading.Event(), threading.main_thread().ident

    def look() -> None:
        begun.wait()  # who starts a thread waits itself
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
    """A signal's handler raises ``error()`` in the main thread, once, when that is in a function and ``when()`` is
    true."""
    raised, main = [], threading.main_thread().ident

    def handler(number: int, frame: types.FrameType | None) -> None:
        if not raised and _is_within(frame, within):
            raised.append(True)
            raise error()  # which no frame of here keeps, and with it those of its traceback

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
