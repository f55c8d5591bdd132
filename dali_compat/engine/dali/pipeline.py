"""One DALI pipeline that runs the DALI part of a plan: submit a batch, receive it later, in order.

DALI is driven by one thread at a time, the caller's or that of epoch/aside.py. schedule_run() calls the external
sources (feed.py), which hand over the submitted batch, and returns while DALI's threads and streams work. The dynamic
executor gives every output memory of its own, so tensors leave by DLPack without a copy, and a batch that fails leaves
the next ones alone.

No batch can come out as another one. Each sample carries a number through DALI beside its pixels, and what comes out is
compared with what went in. A call that does not come to its end (Ctrl-C can stop it anywhere) leaves ``in_step`` false:
such a pipeline is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import nvidia.dali as dali
import torch
from nvidia.dali import fn, types
from nvidia.dali.tensors import TensorGPU, TensorListCPU

from ...data.header import STATED
from ...data.sources import DECODED, PATHS, PIXELS_ON_GPU, Form
from ...draws import Arrays
from ...errors import OutOfStep
from ...plan import Plan
from ..views import Views
from . import affinity, graph, warm
from .feed import Feed, InFlight
from .forks import live

_TYPES = {"float32": types.FLOAT, "int32": types.INT32, "uint8": types.UINT8}
_IMAGES = "images "  # names of outputs, before a number
_SPARE_FILES = 1024  # descriptors, besides those of batches


class PipelineError(RuntimeError):
    """DALI could not produce a batch; the text is DALI's."""


class Received(NamedTuple):
    """What comes out of a pipeline for a batch of N images.

    Attributes:
        images: (N, H, W, C) or (N, C, H, W) on the device, as the plan's last step lays it out, or a list of N where
            sizes differ; Views of these where the plan has views; [] where the form only reads.
        decoded: the same before the first step, (H, W, 3) each, where the form keeps them; else None.
        encoded: DALI's list of the N files' bytes, where it has read files; else None.
        lengths: (N,), their numbers, where it has decoded them, too; else None.
        stated: (N, STATED) uint8, those that stand where the header states the size; None as lengths.
    """

    images: torch.Tensor | list[torch.Tensor] | Views
    decoded: torch.Tensor | list[torch.Tensor] | None
    encoded: TensorListCPU | None
    lengths: np.ndarray | None
    stated: np.ndarray | None


class Meter(Protocol):
    """Counts the time that the caller of next() waits."""

    def waited_for_dali(self, seconds: float) -> None: ...


class DecodePipeline:
    """Runs ``plan.dali`` on batches of images.

    Args:
        plan: what to run.
        form: what it is given, and hands out.
        device: where images come out.
        threads: CPU threads of DALI.
        depth: batches in flight.
        batch_size: the most samples that a batch may have.

    Attributes:
        in_step: no call was stopped in its middle.
        user: the epoch that it works for; routes/dali.py sets it.
        meter: counts the seconds that DALI was waited for.
    """

    user: weakref.ref | None = None
    meter: Meter | None = None

    def __init__(
        self, plan: Plan, device: torch.device, threads: int, depth: int, batch_size: int, form: Form = Form(PATHS)
    ):
        self.form = form
        self.plan, self.device, self.threads, self.depth, self.batch_size = plan, device, threads, depth, batch_size
        self._pipe: Any = None
        self._feed = Feed()
        self._done: dict[int, Any] = {}  # results that came out before they were asked for
        self._wanted: set[int] = set()  # tickets that somebody will ask for
        self._tickets = 0  # given out so far
        self._closed = False
        self._worker = 0  # the thread that is in _worked()
        self.in_step = True
        self._pid = os.getpid()
        live.add(self)

    def submit(self, images: list | np.ndarray, arrays: list[Arrays], stated_at: np.ndarray | None = None) -> int:
        """Start a batch of N images; returns its ticket. Arrays are not copied: they must not change before the batch
        is received.

        Args:
            images: paths, in a list or as _as_matrix() makes them; uint8 arrays of encoded bytes (length,) or of pixels
                (H, W, 3); or what given() made of pixels on the GPU.
            arrays: the per-sample arguments of each step of ``plan.dali``, of one view after another, N rows each.
            stated_at: (N,) int32, where files state their sizes; their beginnings, if it is left out.

        Raises:
            OutOfStep: an earlier call was interrupted.
        """
        return self._worked(self._submit, images, arrays, stated_at)

    def _worked(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function that uses DALI's pipeline. Where another thread calls close() meanwhile, it frees the
        pipeline afterwards."""
        self._refuse_if_unusable()
        self._worker = threading.get_ident()
        try:
            with self._on_device():
                return function(*args)
        finally:
            self._worker = 0
            if self._closed:
                self._free()

    def _submit(self, images: list | np.ndarray, arrays: list[Arrays], stated_at: np.ndarray | None) -> int:
        self.in_step = False  # until this call comes to its end
        if self._pipe is None:
            self._build(arrays)
        while len(self._feed.flight) >= self.depth:
            self._take()
        ticket, self._tickets = self._tickets, self._tickets + 1
        given = images
        arguments = [np.ascontiguousarray(a) for step in arrays for a in step.values()]
        if self.form.given == PATHS:
            given = images if isinstance(images, np.ndarray) else _as_matrix(images)
        if self._states:
            arguments.append((np.zeros(len(images), np.int32) if stated_at is None else stated_at)[:, None])
        self._schedule(InFlight(ticket, [given, _numbers(ticket, len(images)), *arguments]))
        self._wanted.add(ticket)
        self.in_step = True
        return ticket

    @property
    def _states(self) -> bool:
        """Whether it hands out what files state of themselves."""
        return self.form.given == PATHS and not self.form.reads

    def _schedule(self, batch: InFlight) -> None:
        self._feed.next, accepted = batch, len(self._feed.flight)
        try:
            self._pipe.schedule_run()
        except Exception:  # a GPU without memory for the batch: DALI may have a part of it
            while len(self._feed.flight) > accepted:
                self._feed.flight.pop()
            while self._feed.flight:
                self._take()
            self._free()  # the next batch builds another
            self.in_step = True
            raise

    def receive(self, ticket: int) -> Received:
        """A ticket's batch, waiting for it.

        Raises:
            PipelineError: the batch failed; others are not affected.
            OutOfStep: a call was interrupted.
        """
        return self._worked(self._receive, ticket)

    def _receive(self, ticket: int) -> Received:
        self.in_step = False
        while ticket not in self._done:
            self.check_open()  # another thread may close it: the ticket would not come
            self._take()
        outcome = self._done.pop(ticket)
        self._wanted.discard(ticket)
        self.in_step = True
        if isinstance(outcome, Exception):
            raise outcome
        named = dict(zip(self._outputs, outcome, strict=True))
        decoded = _tensors(named["decoded"]) if "decoded" in named else None
        lengths = named["lengths"].as_array()[:, 0] if "lengths" in named else None
        stated = named["stated"].as_array() if "stated" in named else None
        images = [_tensors(outcome) for name, outcome in named.items() if name.startswith(_IMAGES)]
        whole = _apart(images) if self.plan.views else images[0] if images else []
        return Received(whole, decoded, named.get("encoded"), lengths, stated)

    def discard(self, ticket: int) -> None:
        """Nobody will ask for this ticket."""
        self._wanted.discard(ticket)
        self._done.pop(ticket, None)

    def discard_all(self) -> None:
        """Nobody will ask for anything so far."""
        self._wanted.clear()
        self._done.clear()

    def close(self) -> None:
        """Free threads, pinned and device memory. Tensors handed out stay valid."""
        self._closed = True
        self.discard_all()
        if self._worker in (0, threading.get_ident()):
            self._free()

    def _free(self) -> None:
        self._pipe, self._feed = None, Feed()

    def forget(self) -> None:
        """This process is a child of the one that made it: DALI's part is the parent's."""
        self._pipe = None

    @property
    def idle(self) -> bool:
        """Whether the epoch that it worked for is over."""
        epoch = None if self.user is None else self.user()
        return epoch is None or epoch.over

    @property
    def usable(self) -> bool:
        return self.in_step and not self._closed and self._pid == os.getpid()

    def _on_device(self) -> contextlib.AbstractContextManager:
        """CUDA calls within it are this GPU's. A stream without a number of its own, torch's default, and what is
        allocated belong to the current device, which another GPU may be, even one that this process does not use."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def check_open(self) -> None:
        """Looks whether close() was called.

        Raises:
            RuntimeError: it was.
        """
        if self._closed:
            raise RuntimeError("the loader was closed during this epoch; iter(loader) starts another")

    def _refuse_if_unusable(self) -> None:
        self.check_open()
        if not self.in_step:
            raise OutOfStep("an interrupt has stopped this pipeline; iter(loader) starts another epoch")

    def _take(self) -> None:
        """Moves the oldest batch in flight to the results."""
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        begin = perf_counter()
        try:
            outcome = self._pipe.share_outputs(cuda_stream=stream)
        except RuntimeError as error:
            outcome = PipelineError(str(error))
        if self.meter is not None:
            self.meter.waited_for_dali(perf_counter() - begin)
        self._pipe.release_outputs()
        ticket, (_, numbers, *_) = self._feed.flight.popleft()
        if not isinstance(outcome, Exception) and not np.array_equal(outcome[-1].as_array(), numbers):
            raise OutOfStep("DALI gave another batch than the one that was due; iter(loader) starts another epoch")
        if ticket in self._wanted:
            self._done[ticket] = outcome

    def _build(self, template: list[Arrays]) -> None:
        """Builds the pipeline; the first batch's arrays tell how many inputs there are and their types."""
        _allow_open_files()
        decodes_on_gpu = self.device.type == "cuda" and not self.plan.exact and self.form.given not in DECODED
        if decodes_on_gpu:
            warm.wait(self.device.index)
        arrays = [a for step in template for a in step.values()]
        if self._states:
            arrays.append(np.zeros((1, 1), np.int32))  # where they state their sizes
        device_id = self.device.index if self.device.type == "cuda" else None
        near_gpu = device_id is not None and affinity.near_gpu(affinity.allowed(), affinity.numa_nodes())
        pipe = dali.Pipeline(
            self.batch_size,
            self.threads,
            device_id,
            prefetch_queue_depth=self.depth,
            exec_dynamic=True,
            set_affinity=near_gpu,
        )
        with pipe:
            dtypes = [types.UINT8, types.INT64] + [_TYPES[a.dtype.name] for a in arrays]
            ndim = [3 if self.form.given in DECODED else 1, 0] + [a.ndim - 1 for a in arrays]
            layout = ["HWC" if self.form.given in DECODED else "", ""] + [""] * len(arrays)
            if self.form.given == PIXELS_ON_GPU:
                images, *inputs = self._feed.source(dtypes[:1], ndim[:1], None, torch.cuda.Stream(self.device))
                inputs += self._feed.source(dtypes[1:], ndim[1:], layout[1:])
            else:
                images, *inputs = self._feed.source(dtypes, ndim, layout)
            numbers, *inputs = inputs
            rest = iter(inputs)
            nodes = [{name: next(rest) for name in step} for step in template]
            outputs = {}
            if self.form.given == PATHS:
                outputs["encoded"] = images = fn.io.file.read(images, dont_use_mmap=True)
            if self._states:
                outputs["lengths"], outputs["stated"] = images.shape(), graph.part_of(images, next(rest), STATED)
            if not self.form.reads:
                outputs |= self._images(images, nodes)
            outputs["numbers"] = numbers  # the last: _take() looks there
            pipe.set_outputs(*outputs.values())
        pipe.build()
        self._pipe, self._outputs = pipe, list(outputs)
        if decodes_on_gpu:
            warm.drop(self.device.index)

    def _images(self, given, nodes) -> dict:
        """The pipeline's outputs that are pixels."""
        rest = iter(nodes)
        chains = [[(step, next(rest)) for step in plan.dali] for plan in self.plan.chains]
        steps = [] if self.plan.views else chains[0]
        device, window = "mixed" if self.device.type == "cuda" else "cpu", None
        if steps and steps[0][0].op == "crop" and steps[0][0].kwargs["inside"]:
            window = steps.pop(0)[1]
        kept = {}
        capability = torch.cuda.get_device_capability(self.device) if device == "mixed" else (0, 0)
        if self.form.given in DECODED:
            images = graph.decoded(given, device, self.form.given == PIXELS_ON_GPU, window)
        elif self.form.keep or self.form.fancy:  # nvJPEG before 13.2 warns of every window that it decodes so
            images = graph.decode(given, device, self.plan.exact, self.form.fancy, capability=capability)
            kept = {"decoded": images} if self.form.keep else {}
            images = images if window is None else graph.crop(images, window, inside=True)
        else:
            images = graph.decode(given, device, self.plan.exact, window=window, capability=capability)
        made = [_view(images, chain, device) if self.plan.views else _after(images, chain) for chain in chains]
        return {f"{_IMAGES}{number}": one for number, one in enumerate(made)} | kept


def _view(images, steps, device: str):
    """_after(), where the first step may be a window."""
    if device == "cpu" and steps and steps[0][0].op == "crop" and steps[0][0].kwargs["inside"]:
        return _after(graph.decoded(images, device, False, steps[0][1]), steps[1:])
    return _after(images, steps)


def _after(images, steps):
    """Images after the steps of one chain."""
    for step, arrays in steps:
        images = getattr(graph, step.op)(images, arrays, **step.kwargs)
    return images


def _allow_open_files() -> None:
    """DALI opens all files of a batch before it reads the first; systems often allow a process 1024 until it asks."""
    needed = _SPARE_FILES + sum(p.batch_size for p in list(live) if p.form.given == PATHS and p.usable)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def given(images: list[torch.Tensor]) -> list:
    """Images (H, W, 3) on the GPU, as DALI takes them time and again; they are not copied."""
    with torch.cuda.device(images[0].device) if images else contextlib.nullcontext():
        return [TensorGPU(torch.utils.dlpack.to_dlpack(image), "HWC") for image in images]


def undecodable(images: list, device: torch.device, given: str) -> list[int]:
    """Which of the images (as submit() takes them) DALI fails to decode, one by one: the culprits of a failed batch."""
    plan = Plan((), (), (), exact=False, channels_last=False)
    bad = []
    pipeline = DecodePipeline(plan, device, threads=1, depth=1, batch_size=1, form=Form(given))
    for i, image in enumerate(images):
        try:
            pipeline.receive(pipeline.submit([image], []))
        except PipelineError:
            bad.append(i)
    return bad


def _numbers(ticket: int, count: int) -> np.ndarray:
    """(count,) int64, of the samples of a batch: no other sample of the pipeline has them."""
    return (ticket << 32) + np.arange(count)


def _as_matrix(paths: list[str]) -> np.ndarray:
    """(N, L) uint8, one zero-padded path a row, as fn.io.file.read takes them."""
    encoded = np.array([os.fsencode(path) for path in paths])
    return encoded.view(np.uint8).reshape(len(paths), -1)


def _apart(images: list[torch.Tensor | list[torch.Tensor]]) -> Views:
    """Views in memory of their own: DALI computes once what is the same in two."""
    made: list[torch.Tensor | list[torch.Tensor]] = []
    known: set[int] = set()
    for view in images:
        first = view if isinstance(view, torch.Tensor) else view[0]
        if first.data_ptr() in known:
            view = view.clone() if isinstance(view, torch.Tensor) else [image.clone() for image in view]
        known.add(first.data_ptr())
        made.append(view)
    return Views(made)


def _tensors(outputs):
    """Torch's view of DALI's output, without a copy."""
    if outputs.is_dense_tensor():
        return torch.from_dlpack(outputs.as_tensor())
    return [torch.from_dlpack(outputs[i]) for i in range(len(outputs))]
