"""One DALI pipeline that runs the DALI part of a plan: submit a batch, receive it later, in order.

DALI is driven by one thread at a time, the caller's or that of epoch/prefetch_thread.py. schedule_run() calls the
external sources (transfer.py), which hand over the submitted batch, and returns while DALI's threads and streams work.
The dynamic executor gives every output memory of its own, so tensors leave by DLPack without a copy, and a batch that
fails leaves the next ones alone.

No batch can come out as another one. Each sample carries a number through DALI beside its pixels, and what comes out is
compared with what went in. A call that does not come to its end (Ctrl-C can stop it anywhere) leaves ``in_step`` false:
such a pipeline is thrown away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import nvidia.dali as dali
import torch
from nvidia.dali.tensors import TensorGPU

from ...data.sources import DECODED, PATHS, Form
from ...errors import OutOfStep
from ...ops.draws import Arrays
from ...plan import Plan
from ...runtime import cores
from ...runtime.decorators import named
from ...runtime.forks import leak_in_child
from ...runtime.open_files import allow_open_files
from . import warm
from .definition import arrays_to_turn, define, states
from .forks import live
from .transfer import Feed, InFlight, Received


class PipelineError(RuntimeError):
    """DALI could not produce a batch; the text is DALI's."""


class DecodePipeline:
    """Runs ``plan.dali`` on batches of images.

    Args:
        plan: what to run.
        form: its inputs and outputs.
        device: where images come out.
        threads: CPU threads of DALI.
        depth: batches in flight.
        batch_size: the most samples that a batch may have.
        load: the share of JPEGs for a GPU's JPEG engines.
    """

    borrower: weakref.ref | None = None  # the epoch that has it; routes/dali.py sets it
    meter: Any = None  # counts the seconds that DALI was waited for
    template: list[Arrays] | None = None  # one row of the arrays of its first batch, once it is open

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        threads: int,
        depth: int,
        batch_size: int,
        form: Form = Form(PATHS),
        load: float = 1.0,
    ):
        self.form, self.load = form, load
        self.plan, self.device, self.threads, self.depth, self.batch_size = plan, device, threads, depth, batch_size
        self._pipe: Any = None
        self._feed = Feed()
        self._done: dict[int, Any] = {}  # results that came out before they were asked for
        self._wanted: set[int] = set()  # tickets that somebody will ask for
        self._tickets = 0  # given out so far
        self._closed = False
        self._worker = 0  # the thread that is in _worked()
        self.in_step = True  # no call was stopped in its middle
        self._pid = os.getpid()
        live.add(self)

    def submit(self, images: list | np.ndarray, arrays: list[Arrays], stated_at: np.ndarray | None = None) -> int:
        """Start a batch of N images; returns its ticket. Images in memory must not change before the batch is received:
        DALI does not copy them, or not at once. Raises OutOfStep if an earlier call was interrupted.

        Args:
            images: paths, in a list or as _as_matrix() makes them; uint8 arrays of encoded bytes (length,) or of pixels
                (H, W, 3); or what without_copy() made of pixels on the GPU.
            arrays: the per-sample arguments of each step of ``plan.dali``, of one view after another, N rows each.
            stated_at: (N,) int32, where files state their sizes; their beginnings, if it is left out.
        """
        return self._worked(self._submit, images, arrays, stated_at)

    def arrays_to_turn(self, arrays: list[Arrays], orientations: np.ndarray, sizes: np.ndarray) -> list[Arrays]:
        """The arrays for submit() of images that are turned; see definition.py."""
        return arrays_to_turn(self.plan, self.form, arrays, orientations, sizes)

    def another(self) -> DecodePipeline:
        """Returns one like it, open; that takes half a second where it opens JPEG engines."""
        assert self.template is not None  # it is open
        settings = self.plan, self.device, self.threads, self.depth, self.batch_size, self.form, self.load
        made = DecodePipeline(*settings)
        made._worked(made._build, self.template)
        return made

    def _worked(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function that uses DALI's pipeline. Where another thread calls close() meanwhile, it frees the
        pipeline afterwards."""
        self.check_open()
        if not self.in_step:
            raise OutOfStep("an interrupt has stopped this pipeline; iter(loader) starts another epoch")
        self._worker = threading.get_ident()
        try:
            # A stream without a number of its own, torch's default, and what is allocated belong to the current device,
            # which another GPU may be, even one that this process does not use
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                return function(*args)
        finally:
            self._worker = 0
            if self._closed:
                self._free()

    @named("submit to DALI")
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
        if states(self.form):
            arguments.append((np.zeros(len(images), np.int32) if stated_at is None else stated_at)[:, None])
        self._schedule(InFlight(ticket, [given, _numbers(ticket, len(images)), *arguments]))
        self._wanted.add(ticket)
        self.in_step = True
        return ticket

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
        """A ticket's batch, waiting for it. Raises PipelineError if the batch failed, which does not affect others, and
        OutOfStep if a call was interrupted."""
        return self._worked(self._receive, ticket)

    @named("wait for DALI")
    def _receive(self, ticket: int) -> Received:
        self.in_step = False
        while ticket not in self._done:
            self.check_open()  # another thread may close it: the ticket would not come
            self._take()
        outcome = self._done.pop(ticket)
        self._wanted.discard(ticket)
        self.in_step = True
        if isinstance(outcome, Exception):
            if os.strerror(errno.EMFILE) in str(outcome):  # those of a failed batch stay open until DALI is freed
                while self._feed.flight:
                    self._take()
                self._free()
            raise outcome
        return Received.of(dict(zip(self._outputs, outcome, strict=True)), bool(self.plan.views))

    def discard(self, ticket: int) -> None:
        """Nobody will ask for this ticket."""
        self._wanted.discard(ticket)
        self._done.pop(ticket, None)

    def discard_all(self) -> None:
        """Nobody will ask for anything so far."""
        self._wanted.clear()
        self._done.clear()

    def close(self) -> None:
        """Free threads, pinned and device memory. Tensors that were returned stay valid."""
        self._closed = True
        self.discard_all()
        if self._worker in (0, threading.get_ident()):
            self._free()

    def _free(self) -> None:
        self._pipe, self._feed = None, Feed()

    def forget(self) -> None:
        """This process is a child of the one that made it: DALI's part is the parent's."""
        leak_in_child((self._feed, self._done))
        self._pipe, self._feed, self._done = None, Feed(), {}

    @property
    def idle(self) -> bool:
        """True if the epoch that it worked for is over."""
        epoch = None if self.borrower is None else self.borrower()
        return epoch is None or epoch.over

    @property
    def usable(self) -> bool:
        return self.in_step and not self._closed and self._pid == os.getpid()

    def check_open(self) -> None:
        """Raises RuntimeError if close() was called."""
        if self._closed:
            raise RuntimeError("the loader was closed during this epoch; iter(loader) starts another")

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
        self.template = [{name: array[:1].copy() for name, array in step.items()} for step in template]
        allow_open_files(sum(p.batch_size for p in list(live) if p.form.given == PATHS and p.usable))
        decodes_on_gpu = self.device.type == "cuda" and not self.plan.exact and self.form.given not in DECODED
        if decodes_on_gpu:
            warm.jpeg_engines(self.device.index)
        device_id = self.device.index if self.device.type == "cuda" else None
        near_gpu = device_id is not None and cores.near_gpu()
        pipe = dali.Pipeline(
            self.batch_size,
            self.threads,
            device_id,
            prefetch_queue_depth=self.depth,
            exec_dynamic=True,
            set_affinity=near_gpu,
        )
        with pipe:
            outputs = define(self.plan, self.form, self.device, self._feed, template, self.load)
            pipe.set_outputs(*outputs.values())  # the samples' numbers are the last: _take() looks there
        pipe.build()
        self._pipe, self._outputs = pipe, list(outputs)
        if decodes_on_gpu:
            warm.drop(self.device.index)


def without_copy(images: list[torch.Tensor]) -> list:
    """Images (H, W, 3) on the GPU, as DALI takes them time and again."""
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
