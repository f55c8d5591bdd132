"""A data set that is asked in worker processes, as torch's loader with workers asks it: worker_init_fn,
get_worker_info() and the seeds are there, and what it changes of itself stays there."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper

from ..data.sources import Record
from ..errors import file_of
from ..randoms import seed_generators
from ..workers.processes import Answer, Processes, serve
from ..workers.samples import dumps
from ..workers.worker import begin, dumped, stay_with_the_parent, wrapped
from .asker import Asker
from .deferred import Deferred, Notes
from .images import LazyFile, LazyImage, later_of
from .operations import CONSTANT
from .record import Recording
from .samples import IMAGES, Sample, TracedSample, exchanged
from .tracer import numbers


class Request(NamedTuple):
    """A request to a worker.

    Attributes:
        indices: of samples.
        seed: of the generators: the epoch's.
        places: of the samples in the epoch, by which the generators are seeded before each.
        covers: errors that are a sample's own; others end the batch.
        really: no image is left to anybody.
    """

    indices: list[Any]
    seed: int
    places: list[int]
    covers: tuple[type[Exception], ...] = ()
    really: bool = False


class Reply(NamedTuple):
    """A worker's reply.

    Attributes:
        samples: without stand-ins: None where images are to be, and the Recording of others.
        failures: (row, error, file) of samples that there are not.
        why: as Asker's.
    """

    samples: list[Sample]
    failures: list[tuple[int, str, str]]
    why: str


class Ticket(NamedTuple):
    """A request, and who answers it."""

    request: Request
    answer: Answer
    processes: Processes


class TracingWorkers:
    """The worker processes of an epoch, or with persistent_workers of all of an iterator's.

    Args:
        asker: of the data set; it counts.
        loader: its num_workers, multiprocessing_context, worker_init_fn and timeout are honoured.
        seed: of the first epoch.
    """

    def __init__(self, asker: Asker, loader, seed: int):
        self._asker, self._seed, self._timeout = asker, seed, loader.timeout
        self._context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        self._count, self._init = loader.num_workers, loader.worker_init_fn
        self._processes: dict[int, Processes] = {}  # one each, by its number: they have states of their own
        self._asked = 0  # requests of this epoch, which they take in turn, as torch's loader has it

    def start(self) -> None:
        """Starts the processes: best before DALI's threads are at work, for they are forked.

        Raises:
            OSError: the system gives no more processes, or descriptors.
        """
        for number in range(self._count):
            self._process(number)

    def _process(self, number: int) -> Processes:
        """One of them, which works; another one in its place where it has died."""
        made = self._processes.get(number)
        if made is not None:
            made.look()
        if made is None or made.trouble:
            arguments = self._seed, self._asker.dataset, self._asker.since, self._count, self._init
            made = self._processes[number] = Processes(self._context, [number], _work, arguments)
        return made

    def begin_again(self, asker: Asker) -> None:
        """Another epoch, for which this one counts. What the data set has changed of itself there stays."""
        self._asker, self._asked = asker, 0

    def ask(self, request: Request) -> Ticket:
        """Returns what samples() takes. Raises as start(), and where a process has died."""
        answer, processes = Answer(), self._process(self._asked % self._count)
        self._asked += 1
        processes.ask([dumps(request)], [answer])
        return Ticket(request, answer, processes)

    def samples(self, ticket: Ticket, failed: Callable[[int, str, str], None] | None = None) -> list[Sample]:
        """Returns what they answer. ``failed`` takes rows, errors and files of samples that there
        are not.

        Raises:
            Exception: what the data set raises, with the worker's traceback in its text, as torch's loader raises it.
            RuntimeError: a worker has died, or none has answered for the loader's timeout.
        """
        if ticket.processes.trouble and not ticket.answer.there:  # another request has ended it
            ticket = self.ask(ticket.request)
        ticket.processes.wait(ticket.answer, self._timeout)
        reply = pickle.loads(ticket.answer.message or b"")  # it is there
        if isinstance(reply, ExceptionWrapper):
            reply.reraise()
        for image in [image for sample in reply.samples for image in sample.images]:
            if isinstance(image.record.source, Record):  # each process counts for itself
                image.record.source.index = next(numbers)
        samples = [one._replace(value=exchanged(one.value, {Recording}, _waiting)) for one in reply.samples]
        self._asker.why = self._asker.why or reply.why
        for failure in reply.failures:
            assert failed is not None  # who asked for them
            failed(*failure)
        return samples

    def close(self) -> None:
        """They end; the next question starts others."""
        while self._processes:
            self._processes.popitem()[1].close()


def _waiting(recording: Recording) -> LazyImage:
    return (LazyImage if recording.calls else LazyFile)(
        Deferred(recording.source, Notes(), lambda before: recording.made(), recording)
    )


# ---- in a worker


def _work(connection: Connection, tasks: socket.socket, number: int, seed: int, dataset, since: int, count: int, init):
    from .verdict import asker_of

    stay_with_the_parent()
    error = begin(number, seed, count, init, dataset)
    asker = asker_of(dataset, since)
    serve(connection, tasks, lambda message: dumped(error or _reply(asker, pickle.loads(message))))


def _reply(asker: Asker, request: Request) -> Reply | ExceptionWrapper:
    try:
        failures: list[tuple[int, str, str]] = []

        def failed(row: int, error: Exception) -> None:
            if not isinstance(error, request.covers):
                raise error
            failures.append((row, f"{type(error).__name__}: {error}", file_of(error)))

        def seeded(row: int) -> None:
            seed_generators(request.seed, request.places[row])

        if request.really:
            seeded(0)
            samples = [asker.really(index) for index in request.indices]
        else:
            samples = asker.ask(request.indices, failed if request.covers else None, seeded, _without_stand_ins)
        return Reply(samples, failures, asker.why)
    except Exception:
        return wrapped()


def _without_stand_ins(traced: TracedSample) -> Sample:
    """A sample that travels."""
    if any(later.record is None or not _travels(later.record) for _, later in traced.images if not later.is_real):
        for _, later in traced.images:
            later.value("")
    sample = traced.sample()
    return sample._replace(value=exchanged(sample.value, IMAGES, _recording))


def _recording(image: LazyImage) -> Any:
    later = later_of(image)
    recording = None if later.is_real else later.record
    return later.value("") if recording is None or not _travels(recording) else recording


def _is_plain(value) -> bool:
    kind = type(value)
    return all(map(_is_plain, value)) if kind in (list, tuple) else kind in CONSTANT or kind is torch.Tensor


def _travels(recording: Recording) -> bool:
    """Returns whether pickle takes what the user's code has called operations with."""
    if all(call.owner != "called" and _is_plain((*call.args, *call.kwargs.values())) for call in recording.calls):
        return True
    try:
        dumps(recording)
    except Exception:
        return False
    return True
