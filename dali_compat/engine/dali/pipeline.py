"""The DALI pipeline of a plan (a transform's steps). Batches are submitted, and received later.

Only one thread at a time uses the pipeline, either the caller's thread or the one of epoch/prefetch_thread.py. DALI's
schedule_run() reads the submitted batch from the external sources (transfer.py), and does not wait for the result.

Each sample has a number that DALI returns with its pixels. The returned numbers are compared with the submitted ones,
so batches cannot be mixed up. If Ctrl-C interrupts a call, ``is_consistent`` stays False and the pipeline is discarded.
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

from ...data.sources import PATHS, Form
from ...errors import InconsistentEngine
from ...ops.draws import Arrays
from ...plan import Plan
from ...runtime import cores
from ...runtime.decorators import named
from ...runtime.forks import leak_in_child
from ...runtime.open_files import allow_open_files, files_at_once
from . import warm
from .definition import define, has_size_field, rotation_arrays
from .forks import live
from .transfer import Feed, InFlight, Received


class PipelineError(RuntimeError):
    """Raised with DALI's message if DALI cannot produce a batch."""


class DecodePipeline:
    """A DALI pipeline that decodes batches of images and runs ``plan.dali`` on them.

    Args:
        form: form of the inputs and outputs.
        device: device of the outputs.
        depth: maximum number of batches in flight.
        batch_size: maximum number of samples per batch.
        load: share of JPEGs, from 0 to 1, that a GPU's JPEG engines decode.
    """

    borrower: weakref.ref | None = None  # the epoch that uses this pipeline; set by routes/dali.py
    meter: Any = None  # records the seconds spent waiting for DALI
    template: list[Arrays] | None = None  # step arguments of one sample; set when the pipeline is built
    samples = 0  # submitted so far
    has_copy = False  # whether open_copy() was requested

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
        self._done: dict[int, Any] = {}  # outputs or errors by ticket
        self._expected: set[int] = set()  # tickets that were neither received nor discarded
        self._tickets = 0  # number of submitted batches
        self._closed = False
        self._worker = 0  # id of the thread that runs _call(), or 0
        self.is_consistent = True  # False if a call was interrupted
        self._pid = os.getpid()
        live.add(self)

    def submit(self, images: list | np.ndarray, arrays: list[Arrays], size_field_at: np.ndarray | None = None) -> int:
        """Start a batch of N images and return its ticket. Do not modify in-memory images until receive() returns,
        because DALI may not copy them. Raises InconsistentEngine if an earlier call was interrupted.

        Args:
            images: paths, as a list or as returned by _as_matrix(); or encoded images, uint8 arrays (length,).
            arrays: per-sample arguments, of length N, of each step in ``plan.dali``. The steps of the first view come
                first, then those of the second view, and so on.
            size_field_at: (N,) int32, where the header bytes with the image size begin in each file; by default 0.
        """
        return self._call(self._submit, images, arrays, size_field_at)

    def rotation_arrays(self, arrays: list[Arrays], orientations: np.ndarray, sizes: np.ndarray) -> list[Arrays]:
        """Return the arrays that submit() needs for images with an EXIF orientation; see definition.py."""
        return rotation_arrays(self.plan, self.form, arrays, orientations, sizes)

    def open_copy(self) -> DecodePipeline:
        assert self.template is not None  # this pipeline is built
        settings = self.plan, self.device, self.threads, self.depth, self.batch_size, self.form, self.load
        made = DecodePipeline(*settings)
        made._call(made._build, self.template)
        return made

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that uses DALI's pipeline. If another thread calls close() during the call, free the pipeline
        afterwards."""
        self.check_open()
        if not self.is_consistent:
            raise InconsistentEngine(
                "an interrupt has stopped DALI in the middle of a batch; iter(loader) starts another epoch"
            )
        self._worker = threading.get_ident()
        try:
            # allocations and torch's default stream belong to the current device, which may be another GPU
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                return function(*args)
        finally:
            self._worker = 0
            if self._closed:
                self._free()

    @named("submit to DALI")
    def _submit(self, images: list | np.ndarray, arrays: list[Arrays], size_field_at: np.ndarray | None) -> int:
        self.is_consistent = False  # until this call completes
        if self._pipe is None:
            try:
                self._build(arrays)
            except Exception as error:  # such as a thread limit; the next batch builds another pipeline
                self._free()
                self.is_consistent = True
                if files_at_once(8) < 8:  # DALI's error does not mention the limit on open files
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
                raise
        while len(self._feed.flight) >= self.depth:
            self._collect()
        ticket, self._tickets = self._tickets, self._tickets + 1
        given = images
        arguments = [np.ascontiguousarray(a) for step in arrays for a in step.values()]
        if self.form.input == PATHS:
            given = images if isinstance(images, np.ndarray) else _as_matrix(images)
        if has_size_field(self.form):
            arguments.append((np.zeros(len(images), np.int32) if size_field_at is None else size_field_at)[:, None])
        self._schedule(InFlight(ticket, [given, _numbers(ticket, len(images)), *arguments]))
        self._expected.add(ticket)
        self.samples += len(images)
        self.is_consistent = True
        return ticket

    def _schedule(self, batch: InFlight) -> None:
        self._feed.next, accepted = batch, len(self._feed.flight)
        try:
            self._pipe.schedule_run()
        except Exception:  # such as out of GPU memory; DALI may still hold some of the batch's arrays
            while len(self._feed.flight) > accepted:
                self._feed.flight.pop()
            while self._feed.flight:
                self._collect()
            self._free()  # the next batch builds another pipeline
            self.is_consistent = True
            raise

    def receive(self, ticket: int) -> Received:
        """Wait for the batch with this ticket and return it. Raises PipelineError if DALI has failed, and
        InconsistentEngine if an earlier call was interrupted."""
        return self._call(self._receive, ticket)

    @named("wait for DALI")
    def _receive(self, ticket: int) -> Received:
        self.is_consistent = False
        while ticket not in self._done:
            self.check_open()  # the batch never arrives if another thread has called close()
            self._collect()
        outcome = self._done.pop(ticket)
        self._expected.discard(ticket)
        self.is_consistent = True
        if isinstance(outcome, Exception):
            if os.strerror(errno.EMFILE) in str(outcome):  # the batch keeps its files open until the pipeline is freed
                while self._feed.flight:
                    self._collect()
                self._free()
            raise outcome
        return Received.from_outputs(dict(zip(self._outputs, outcome, strict=True)), bool(self.plan.views))

    def discard(self, ticket: int) -> None:
        self._expected.discard(ticket)
        self._done.pop(ticket, None)

    def discard_all(self) -> None:
        self._expected.clear()
        self._done.clear()

    def close(self) -> None:
        """Free the threads, pinned memory and GPU memory. Tensors that were returned stay valid."""
        self._closed = True
        self.discard_all()
        if self._worker in (0, threading.get_ident()):
            self._free()

    def _free(self) -> None:
        self._pipe, self._feed = None, Feed()

    def leak(self) -> None:
        """Leak DALI's objects in a forked child, because they belong to the parent."""
        leak_in_child((self._feed, self._done))
        self._pipe, self._feed, self._done = None, Feed(), {}

    @property
    def idle(self) -> bool:
        """True if no running epoch uses this pipeline."""
        epoch = None if self.borrower is None else self.borrower()
        return epoch is None or epoch.over

    @property
    def usable(self) -> bool:
        return self.is_consistent and not self._closed and self._pid == os.getpid()

    def check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the loader was closed during this epoch; iter(loader) starts another epoch")

    def _collect(self) -> None:
        """Wait for the oldest batch in flight and store its outputs or error."""
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
            raise InconsistentEngine("DALI returned a different batch than expected; iter(loader) starts another epoch")
        if ticket in self._expected:
            self._done[ticket] = outcome

    def _build(self, template: list[Arrays]) -> None:
        """Build DALI's pipeline. The first batch's arrays determine the number and dtypes of its inputs."""
        self.template = [{name: array[:1].copy() for name, array in step.items()} for step in template]
        allow_open_files(sum(p.batch_size for p in list(live) if p.form.input == PATHS and p.usable))
        decodes_on_gpu = self.device.type == "cuda" and not self.plan.exact
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
            pipe.set_outputs(*outputs.values())  # numbers come last, as _collect() expects
        pipe.build()
        self._pipe, self._outputs = pipe, list(outputs)
        if decodes_on_gpu:
            warm.drop(self.device.index)


def undecodable(images: list, device: torch.device, given: str) -> list[int]:
    """Submit images one by one, and return the indices of the undecodable ones. ``given`` is their form, as in
    Form.input."""
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
    """Return the sample numbers of a batch, (count,) int64. They are unique within the pipeline."""
    return (ticket << 32) + np.arange(count)


def _as_matrix(paths: list[str]) -> np.ndarray:
    """Encode paths as (N, L) uint8, one zero-padded path per row, as fn.io.file.read expects them."""
    encoded = np.array(os.fsencode("\0".join(paths)).split(b"\0"))  # one call for all
    if len(encoded) != len(paths):
        raise ValueError("embedded null byte")  # as open() does
    return encoded.view(np.uint8).reshape(len(paths), -1)
