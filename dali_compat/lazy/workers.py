"""A data set that is asked in worker processes, as torch's loader with workers asks it: worker_init_fn,
get_worker_info() and the seeds are there, and what it changes of itself stays there."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageOps
from torch._utils import ExceptionWrapper

from ..data.sources import BYTES, PATHS, Record, Source, is_upright, opened
from ..draws import seed_generators
from ..workers.processes import Answer, Processes, serve
from ..workers.samples import dumps
from ..workers.worker import begin, dumped, stay_with_the_parent, wrapped
from .asker import Asker
from .chains import Chain
from .images import LazyImage, later_of
from .later import Later, Notes
from .samples import Sample, Wanted, all_real, exchanged
from .tracer import numbers


class Request(NamedTuple):
    """What a worker is asked.

    Attributes:
        indices: of samples.
        seed: of the generators: the epoch's seed, and the place of the first sample.
        covers: errors that are a sample's own; others end the batch.
        really: no image is left to anybody.
    """

    indices: list[Any]
    seed: tuple[int, ...]
    covers: tuple[type[Exception], ...] = ()
    really: bool = False


class Reply(NamedTuple):
    """What it answers.

    Attributes:
        samples: without stand-ins: None where images are to be, and an Unread for other images. In the place of an
            image's chain is the number of its transforms among ``transforms``.
        transforms: pickled.
        failures: (row, error) of samples that there are not.
        why: as Asker's.
    """

    samples: list[Sample]
    transforms: list[bytes]
    failures: list[tuple[int, str]]
    why: str


class Ticket(NamedTuple):
    """A request, and who answers it."""

    request: Request
    answer: Answer
    processes: Processes


class Unread(NamedTuple):
    """An image that nobody has read."""

    source: Source
    is_rgb: bool
    is_converted: bool


class AskedWorkers:
    """The worker processes of an epoch, or with persistent_workers of all of an iterator's.

    Args:
        asker: of the data set; it counts.
        loader: its num_workers, multiprocessing_context, worker_init_fn and timeout are honoured.
        seed: of the first epoch.
    """

    def __init__(self, asker: Asker, loader: Any, seed: int):
        self._asker, self._seed, self._timeout = asker, seed, loader.timeout
        self._context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        self._count, self._init = loader.num_workers, loader.worker_init_fn
        self._processes: Processes | None = None
        self._chains: dict[tuple[str, bytes], Chain] = {}

    def start(self) -> Processes:
        """The processes: best before DALI's threads are at work, for they are forked.

        Raises:
            OSError: the system gives no more processes, or descriptors.
        """
        if self._processes is not None:
            self._processes.look()
            if self._processes.trouble:
                self.close()
        if self._processes is None:
            arguments = self._seed, self._asker.dataset, self._asker.since, self._asker.sets, self._count, self._init
            self._processes = Processes(self._context, self._count, _work, arguments, in_turn=True)
        return self._processes

    def begin_again(self, asker: Asker) -> None:
        """Another epoch, for which this one counts. What the data set has changed of itself there stays."""
        self._asker, self._chains = asker, {}
        if self._processes is not None:
            self._processes.begin_again()

    def ask(self, request: Request) -> Ticket:
        """What samples() takes. Raises as start(), and where a process has died."""
        answer, processes = Answer(), self.start()
        processes.ask([dumps(request)], [answer])
        return Ticket(request, answer, processes)

    def samples(self, ticket: Ticket, failed: Callable[[int, str], None] | None = None) -> list[Sample]:
        """What they answer. ``failed`` takes rows and errors of samples that there are not.

        Raises:
            Exception: what the data set raises, with the worker's traceback in its text, as torch's loader raises it.
            RuntimeError: a worker has died, or none has answered for the loader's timeout.
        """
        if ticket.processes.trouble and not ticket.answer.there:  # others have met it
            ticket = self.ask(ticket.request)
        try:
            ticket.processes.wait(ticket.answer, self._timeout)
        except RuntimeError:
            if ticket.processes.lost in (None, ticket.answer.process):
                raise
            ticket = self.ask(ticket.request)  # another has died, of another request
            ticket.processes.wait(ticket.answer, self._timeout)
        reply = pickle.loads(ticket.answer.message or b"")  # it is there
        if isinstance(reply, ExceptionWrapper):
            reply.reraise()
        samples = [self._restored(sample, reply.transforms) for sample in reply.samples]
        self._asker.count(samples, reply.why)
        for row, text in reply.failures:
            assert failed is not None  # who asked for them
            failed(row, text)
        return samples

    def close(self) -> None:
        """They end; the next question starts others."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()

    def _restored(self, sample: Sample, transforms: list[bytes]) -> Sample:
        images = tuple([self._wanted(one, transforms) for one in sample.images])
        return Sample(exchanged(sample.value, {Unread}, self._image), images)

    def _wanted(self, image: Any, transforms: list[bytes]) -> Wanted:
        given = PATHS if isinstance(image.source, str) else BYTES
        key = given, transforms[image.chain]
        if key not in self._chains:
            root, several = self._asker.roots[given], pickle.loads(key[1])
            chain = root.follow(several)
            self._chains[key] = root.beyond(several) if chain is None else chain  # each process has found others
        if isinstance(image.source, Record):  # each process counts for itself
            image.source.index = next(numbers)
        return image._replace(chain=self._chains[key])

    def _image(self, unread: Unread) -> LazyImage:
        root = self._asker.roots[PATHS if isinstance(unread.source, str) else BYTES]
        later = Later(unread.source, root, Notes(), lambda before: _read(unread), is_rgb=unread.is_rgb)
        later.is_converted = unread.is_converted
        return LazyImage(later)


def _read(unread: Unread) -> Image.Image:
    with opened(unread.source) as file:
        image: Any = Image.open(file)
        image.load()
    image = ImageOps.exif_transpose(image) if is_upright(unread.source) else image
    return image.convert("RGB") if unread.is_rgb else image


# ---- in a worker


def _work(
    connection: Connection,
    tasks: socket.socket,
    number: int,
    seed: int,
    dataset: Any,
    since: int,
    sets: str,
    count: int,
    init: Any,
) -> None:
    from .verdict import asker_of

    stay_with_the_parent()
    error = begin(number, seed, count, init, dataset)
    asker = asker_of(dataset, since, sets)
    serve(connection, tasks, lambda message: dumped(error or _reply(asker, pickle.loads(message))))


def _reply(asker: Asker, request: Request) -> Reply | ExceptionWrapper:
    try:
        seed_generators(*request.seed)
        failures: list[tuple[int, str]] = []

        def failed(row: int, error: Exception) -> None:
            if not isinstance(error, request.covers):
                raise error
            failures.append((row, f"{type(error).__name__}: {error}"))

        if request.really:
            samples = [asker.really(index) for index in request.indices]
        else:
            samples = asker.ask(request.indices, failed if request.covers else None)
        return _portable(samples, failures, asker.why)
    except Exception:
        return wrapped()


def _portable(samples: Sequence[Sample], failures: list[tuple[int, str]], why: str) -> Reply:
    numbers: dict[int, int] = {}
    transforms: list[bytes] = []
    made = []
    for sample in samples:
        images: list[Any] = []
        for paths, chain, *others in sample.images:
            if id(chain) not in numbers:
                numbers[id(chain)] = _add(transforms, chain)
            images.append(Wanted(paths, numbers[id(chain)], *others))  # type: ignore[arg-type]  # as Reply says
        if -1 in [image.chain for image in images]:
            sample, images = all_real(sample), []
        value = exchanged(sample.filled(*[None] * len(images)), {LazyImage}, _unread)
        made.append(Sample(value, tuple(images)))
    return Reply(made, transforms, failures, why)


def _add(transforms: list[bytes], chain: Chain) -> int:
    """The number of a chain's transforms; -1 where they do not travel."""
    try:
        if chain.packed is None:
            chain.packed = dumps(chain.copies)
        transforms.append(chain.packed)
    except Exception:  # of a class that pickle does not find, say
        return -1
    return len(transforms) - 1


def _unread(image: LazyImage) -> Any:
    later = later_of(image)
    plain = not later.is_real and not later.chain.transforms
    return Unread(later.source, later.is_rgb, later.is_converted) if plain else later.value("")
