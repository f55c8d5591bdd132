"""DataLoader, a subclass of PyTorch's with its own iterators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
import torch.utils.data as data
from PIL.Image import Image
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .epoch.collate import UserCollate, add_remedy
from .epoch.fallback import MultiProcessIterator, SingleProcessIterator
from .epoch.history import History
from .epoch.iterator import OrderedIterator
from .epoch.on_error import Errors, SampleError, checked_policy
from .epoch.preview import preview
from .epoch.progress import Progress
from .epoch.resident import ResidentIterator
from .epoch.samplers import loop_dependent
from .epoch.stats import LoaderStats, Stats
from .epoch.traced import TracedMultiProcess, TracedSingleProcess
from .errors import with_remedy
from .routes import FallbackRoute, Route, choose, in_processes
from .routes.dali import DaliRoute
from .routes.explain import explain, summary
from .routes.resident import ResidentRoute
from .runtime import Patched
from .runtime.dataset_base import suppress_warning
from .runtime.decorators import no_compile
from .runtime.forks import end_daemons_at_exit
from .runtime.internals import PREPARED
from .runtime.messages import announce, report_fallback

T = TypeVar("T", covariant=True)
_reported_classes: set[str] = set()  # fallback messages about subclasses


class DataLoader(data.DataLoader[T], Generic[T]):
    """torch.utils.data.DataLoader, with images decoded and transformed by NVIDIA DALI.

    Every argument of torch's DataLoader is accepted, and has the same meaning unless described otherwise below.
    Samplers, batch samplers, ``len()`` and the order for a given seed are torch's own. For files and arrays, the order
    is that of torch's loader with workers. The data set determines how images are loaded:

    - DALI reads, decodes and transforms files and archives (torchvision's ImageFolder, Food101 and the like,
      DALIImageFolder, DALIImageList, DALIImageTable, DALIHuggingFace, DALIRecordIO and the like, and Subset and
      ConcatDataset of them).
    - torch transforms arrays of images (torchvision's CIFAR10, MNIST and the like, DALIArrayDataset) on the device.
    - torch's own loader reads custom data sets that open images with Pillow or torchvision.io. It also reads files
      whose transform has no translation. DALI decodes and transforms these images, unless your code needs their
      pixels (docs/datasets.md).
    - torch's own loader loads any other data set, with a FallbackWarning.

    A batch is a list ``[images, labels]`` on ``device``. Images have shape (N, C, H, W) and the transform's dtype and
    range. Labels are int64 of shape (N,), or the result of default_collate if targets are not ints. Batches of a custom
    data set have the structure of its samples.

    Args:
        dataset: see above.
        batch_size, shuffle, sampler, batch_sampler, drop_last, generator: as torch's.
        num_workers: number of DALI's CPU threads. 0 means one per core, at most 16. The processes of torchrun share the
            cores. If a GPU has enough JPEG engines to decode all JPEGs, at most 4 threads are used. For a custom data
            set, a transform without a translation or torch's own loader, this is also the number of worker processes.
            0 then means the main process.
        collate_fn: takes the list of (image, target) samples, with images on ``device``. If it fails for images on a
            GPU, it is called with images on the CPU, with a warning. For a custom data set, a transform without a
            translation or torch's own loader, it runs in the worker process, as in torch. None is default_collate.
        prefetch_factor: number of batches in flight in DALI. None means four on a GPU and two on the CPU. With worker
            processes, it is also the number of batches per worker, as in torch.
        timeout, worker_init_fn, multiprocessing_context: as torch's, if worker processes are used.
        persistent_workers: as torch's. Without worker processes, it only determines the seeds of later epochs.
        pin_memory, in_order: as torch's, if worker processes or torch's own loader are used. No effect otherwise.
        pin_memory_device: as torch's for torch's own loader. No effect otherwise.
        device: device of the batches. None is the current CUDA device, or the CPU if there is none.
        exact: if True, compute torchvision's pixels bit for bit, with the exceptions in docs/transforms.md. JPEGs are
            then decoded on the CPU, or by the GPU's JPEG engine if it has one. If False, use the fastest kernels. After
            decoding and resizing on a GPU, pixels differ by less than 0.3 of 255 levels on average
            (docs/transforms.md). Image sizes and the distributions of random parameters are torchvision's.
        fallback: what to do if something cannot run in DALI. "warn": issue a warning once. "silent": report it only in
            :meth:`explain`. "error": raise an error.
        memory_format: memory format of the images, torch.contiguous_format or torch.channels_last.
        on_error: what to do with a sample that cannot be read or is too small for its transform. "raise": raise the
            error. "replace": use another sample, with its own label and index, drawn with the epoch's seed. "skip":
            leave the sample out of the batch, and skip batches that become empty; ``len()`` is then an upper bound.
            :attr:`errors` lists these samples. A BadImageWarning reports the first one at once. If an epoch has new
            failures, another warning at its end gives its number of failures. If images in memory are too small, the
            error is always raised.
        on_error_in_python: apply on_error to errors of your own functions, too, such as a Lambda or target_transform.
            For a custom data set or a transform without a translation, these include images that are too small.
        snapshot_every_n_steps: accepted for compatibility with torchdata's StatefulDataLoader. No effect, because
            states count every batch.

    Raises:
        ValueError, TypeError: an argument is invalid, as in torch.
        RuntimeError: something cannot run in DALI, and fallback="error".
        ValueError: during iteration, if an image is too small for its transform. For files with a
            translated transform, the message has the path and index.
        ImageReadError: during iteration, if a file cannot be decoded. With a custom data set or a transform without a
            translation, Pillow's error is raised instead. The next call of next() returns the next batch.

    Examples:
        >>> loader = DataLoader(DALIImageFolder("train", transform), batch_size=4, shuffle=True, device="cpu")
        >>> images, labels = next(iter(loader))
        >>> images.shape, labels.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4]))
    """

    if TYPE_CHECKING:  # parameters of the newest known torch and of this class, for editors

        def __init__(
            self,
            dataset: data.Dataset[T],
            batch_size: int | None = 1,
            shuffle: bool | None = None,
            sampler: data.Sampler[Any] | Iterable[Any] | None = None,
            batch_sampler: data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
            num_workers: int = 0,
            collate_fn: Callable[[list[Any]], Any] | None = None,
            pin_memory: bool = False,
            drop_last: bool = False,
            timeout: float = 0,
            worker_init_fn: Callable[[int], object] | None = None,
            multiprocessing_context: BaseContext | str | None = None,
            generator: torch.Generator | None = None,
            *,
            prefetch_factor: int | None = None,
            persistent_workers: bool = False,
            pin_memory_device: str = "",
            in_order: bool = True,
            device: torch.device | str | int | None = None,
            exact: bool = False,
            fallback: Literal["warn", "silent", "error"] = "warn",
            memory_format: torch.memory_format = torch.contiguous_format,
            on_error: Literal["raise", "skip", "replace"] = "raise",
            on_error_in_python: bool = False,
            snapshot_every_n_steps: int | None = 1,
        ) -> None: ...

    else:  # parameters of the installed torch

        def __init__(self, *args, **kwargs):
            self._prefetch_given = kwargs.get("prefetch_factor") is not None
            try:
                super().__init__(*args, **self._store_arguments(**kwargs))
            except TypeError as error:
                add_remedy(error, vars(self).get("dataset"))
                raise
            route = self._choose_route()
            self.check_worker_number_rationality()
            if isinstance(route, DaliRoute):
                route.begin_decoder()

    def _store_arguments(
        self,
        *,
        device: torch.device | str | int | None = None,
        exact: bool = False,
        fallback: Literal["warn", "silent", "error"] = "warn",
        memory_format: torch.memory_format = torch.contiguous_format,
        on_error: Literal["raise", "skip", "replace"] = "raise",
        on_error_in_python: bool = False,
        snapshot_every_n_steps: int | None = 1,
        **torch_arguments: Any,
    ) -> dict[str, Any]:
        """Check and store the arguments that torch's loader does not have. Return torch's arguments."""
        if fallback not in ("warn", "silent", "error"):
            raise ValueError(f"fallback must be 'warn', 'silent' or 'error', got {fallback!r}")
        if memory_format not in (torch.contiguous_format, torch.channels_last):
            known = "torch.contiguous_format or torch.channels_last"
            raise ValueError(f"memory_format must be {known}, got {memory_format}")
        self.device, self.exact, self.fallback, self.memory_format = device, exact, fallback, memory_format
        self.on_error, self.on_error_in_python = checked_policy(on_error), on_error_in_python
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._errors = Errors(on_error, on_error_in_python)
        self._stats, self._history = Stats(), History()
        self._user_collate = UserCollate(fallback)
        self._route: Route | None = None
        self._reported: set[str] = set()
        self._announced: type | None = vars(self).get("_announced")  # type of the last route that was announced
        return torch_arguments

    @property
    def errors(self) -> list[SampleError]:
        """The samples that were replaced or skipped so far, each once, as (path, index, epoch, reason)."""
        return self._errors.found

    def explain(self, wide: bool = False) -> str:
        """Return a text that describes where each transform runs, and how close its pixels are to torchvision's. For a
        fallback, the text names the cause, and a remedy if one is known. If ``wide`` is True, transforms are printed
        with all of their arguments."""
        if self._fallback_reason:
            return self._fallback_reason
        self._route = choose(self, self._route)
        return explain(self, self._route, wide, loop_dependent(self))

    def preview(self, count: int = 16) -> Image:
        """Return a picture of the next epoch's first ``count`` samples, with their labels, boxes and masks. The next
        epoch is not affected, unless a custom sampler or data set keeps a position and has no state_dict()."""
        return preview(self, count)

    def stats(self, reset: bool = False) -> LoaderStats:
        """Return the numbers of batches and images that this loader has returned, and the time spent in next(). If
        ``reset`` is True, restart the counters at zero. Thread-safe. The logger "dali_compat" logs the counts at level
        INFO after each epoch."""
        return self._stats.read(self._route, reset)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state after the last batch that next() has returned, as plain data for a checkpoint or
        JSON. If your own data set or sampler has a ``state_dict()``, this may add other objects. Batches in flight are
        not part of the state, and are loaded again after resuming."""
        return self._history.state(self, self._route or choose(self, None))

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Make the next iter() resume where ``state_dict`` was taken. The rest of that epoch and all later epochs have
        the same samples and random numbers as without the interruption, with the exceptions in docs/resume.md. An empty
        dictionary means the beginning, as in torchdata's StatefulDataLoader. If ``strict`` is False, a state of a
        loader with another data set, batch size, sampler, transform or route is accepted.

        Raises:
            ValueError: ``state_dict`` is not a loader state, or ``strict`` is True and a different loader has saved it.
        """
        self._route = choose(self, self._route)  # the user may have replaced the transform
        self._history.load(self, self._route, state_dict, strict)
        self._iterator = None  # drop the iterator that persistent_workers keeps

    def close(self) -> None:
        """Free the pipelines' threads, pinned memory and device memory. The loader can be iterated again."""
        self._stats.hold(self._route)
        if self._route is not None and not isinstance(self._route, FallbackRoute):
            self._route.close()
            self._route = None

    @no_compile
    @end_daemons_at_exit
    @with_remedy()
    def __iter__(self) -> _BaseDataLoaderIter:
        try:
            if isinstance(before := self._iterator, OrderedIterator):
                route = self._choose_route(start=True)
                if in_processes(route) or type(route) is not type(before.route):
                    before.end()
                    self._iterator = self._iterator_of(route, before.progress)
                    return self._iterator
            return super().__iter__()
        except Exception as error:
            add_remedy(error, self.dataset)
            raise

    @property
    def _fallback_reason(self) -> str:
        why = f"torchvision does the work: {type(self).__name__}.__init__ does not call dali_compat.DataLoader.__init__"
        return "" if "_history" in vars(self) else why

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self._fallback_reason:
            report_fallback(self._fallback_reason, "warn", _reported_classes)
            return super()._get_iterator()
        return self._iterator_of(self._choose_route(start=True))

    def _iterator_of(self, route: Route, before: Progress | None = None) -> _BaseDataLoaderIter:
        """Return a new iterator. ``before`` is the progress of the persistent iterator that it replaces, or None."""
        if isinstance(route, ResidentRoute):
            return ResidentIterator(self, route)
        if isinstance(route, DaliRoute) and route.table is None:
            route.begin_decoder()  # if CUDA was not initialized in the constructor
            return OrderedIterator(self, route)
        suppress_warning()  # of data sets that torch's loader reads
        several = self.num_workers > 0
        if isinstance(route, FallbackRoute):
            return (MultiProcessIterator if several else SingleProcessIterator)(self, route, before)
        made = (TracedMultiProcess if several else TracedSingleProcess)(self, route, before)
        route.begin_decoder()  # not before the workers are forked, because a fork waits for it
        return made

    @end_daemons_at_exit
    @with_remedy()
    def _choose_route(self, start: bool = False) -> Route:
        # called in each epoch, because frameworks change attributes of the loader
        self._errors.policy, self._errors.in_python = checked_policy(self.on_error), self.on_error_in_python
        self._route = route = choose(self, self._route, start)
        verbose = Patched.now is not None and Patched.now.verbose and self.fallback != "error"
        if verbose and type(route) is not self._announced:
            announce(summary(route), self.dataset)
            self._announced = type(route)
        if isinstance(route, FallbackRoute) and not verbose:
            self._report(f"torchvision does the work: {route.reason}")
        return route

    def check_worker_number_rationality(self) -> None:
        """Issue torch's warning about more processes than cores, if this loader uses processes."""
        if self._fallback_reason or (self._route is not None and in_processes(self._route)):
            super().check_worker_number_rationality()

    def __getstate__(self) -> dict[str, Any]:
        if self._fallback_reason:
            return self.__dict__
        return self.__dict__ | {  # pipelines are not copied; a copy builds its own
            "_route": None,
            "_stats": Stats(),
            "_history": History(),
            "_user_collate": UserCollate(self.fallback),
        }

    if not TYPE_CHECKING:  # type checkers report any other name

        def __getattr__(self, name):
            if name == PREPARED and Patched.now is None:
                remedy = "call dali_compat.install() first, or do not pass the loader to prepare()"
                self._report(f"Accelerate's prepare() replaces this loader with torch's own; {remedy}")
            what = f"{type(self).__name__!r} object has no attribute {name!r} {self._fallback_reason}"
            raise AttributeError(what.rstrip())

    def _report(self, what: str) -> None:
        report_fallback(what, self.fallback, self._reported)


def _signature() -> inspect.Signature:
    """Return a signature with the parameters of the installed torch's DataLoader, followed by those of this class."""
    extra = [p for p in inspect.signature(DataLoader._store_arguments).parameters.values() if p.kind is p.KEYWORD_ONLY]
    torch_arguments = inspect.signature(data.DataLoader.__init__)
    return torch_arguments.replace(parameters=[*torch_arguments.parameters.values(), *extra])


DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]  # inspect.signature reads it
