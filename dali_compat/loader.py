"""DataLoader: PyTorch's constructor, samplers and length; DALI turns indices into pixels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
import torch.utils.data as data
from PIL.Image import Image
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .epoch.collate import UserCollate
from .epoch.fallback import fallback_iterator
from .epoch.history import History
from .epoch.iterator import OrderedIterator
from .epoch.on_error import Errors, SampleError, checked_policy
from .epoch.preview import preview
from .epoch.resident import ResidentIterator
from .epoch.stats import LoaderStats, Stats
from .epoch.traced import traced_iterator
from .routes import Route, StockRoute, choose, in_processes, in_python
from .routes.dali import DaliRoute
from .routes.decoded_cache import checked_budget, checked_place
from .routes.explain import explain, summary
from .routes.resident import ResidentRoute
from .runtime import Patched
from .runtime.decorators import no_compile
from .runtime.forks import until_the_end
from .runtime.messages import announce, tell_of_fallback

T = TypeVar("T", covariant=True)
_classes_told: set[str] = set()  # of those that are torch's


class DataLoader(data.DataLoader[T], Generic[T]):
    """torch.utils.data.DataLoader, with images decoded and transformed by NVIDIA DALI.

    Takes every argument of torch's DataLoader with torch's meaning. Samplers, batch samplers, ``len()`` and the order
    under a seed are torch's own. DALI does the work for data sets of image files (torchvision's ImageFolder, Food101
    and the like, DALIImageFolder, DALIImageList, DALIImageTable, DALIHuggingFace), archives (DALIRecordIO and the
    like), and Subset and ConcatDataset of them. Images in memory (torchvision's CIFAR10, MNIST and the like,
    DALIArrayDataset) are kept on the device, and torch transforms them there. A custom data set that opens images with
    Pillow is read by torch's own loader, and DALI makes its images (docs/datasets.md). A transform without a
    translation is called sample by sample. For other data sets torch's own loader does the work. Both warn
    (FallbackWarning).

    A batch is a list ``[images, labels]`` on ``device``: images (N, C, H, W) with the dtype and range that the
    transform gives, labels (N,) int64, or whatever default_collate makes of the targets. Batches of a custom
    data set have the structure of its samples.

    Args:
        dataset: as torch's; see above.
        batch_size, shuffle, sampler, batch_sampler, drop_last, generator: as torch's.
        num_workers: DALI's CPU threads. 0: one a core, at most 16; at most 4 where a GPU's JPEG engines decode. Also
            the number of processes for a transform without a translation and for a custom data set; 0: this one.
        collate_fn: takes the list of (image, target) samples, images on ``device``; of a custom data set as torch's, in
            the worker. None is default_collate.
        prefetch_factor: batches in flight. None: four on a GPU, two on the CPU.
        timeout, worker_init_fn, multiprocessing_context: for worker processes, if there are any.
        persistent_workers: as torch's, for torch's own loader and for a custom data set.
        pin_memory, pin_memory_device, in_order: as torch's for torch's own loader; elsewhere without effect.
        device: where batches come out. None is the current CUDA device, or the CPU if there is none.
        exact: torchvision's pixels, nearly all to the last bit (docs/transforms.md has the table), instead of the
            fastest kernels, whose resizing is within .2 of 255 levels on average. JPEGs are then decoded on the CPU, or
            by the GPU's JPEG engine if it has one. Sizes and random parameters are torchvision's either way.
        fallback: if something cannot run in DALI: "warn" once, "silent" (:meth:`explain` says it), or raise an "error".
        memory_format: torch.contiguous_format or torch.channels_last, of the images.
        cache: memory for decoded images, in bytes (an int) or as a share of what is free (a float, at most 1). Each
            image is decoded in the first epoch and kept while there is room; later epochs take it from there.
        cache_device: where they are kept, "cpu" or "cuda" (the GPU that batches are on). None: with the batches; on a
            GPU in at most half of the memory that is free when the first batch is there.
        on_error: what to do with a sample that cannot be read, or is too small for its transform. "raise": its error
            ends the epoch. "replace": another sample of the data set, drawn by the epoch's seed, takes its place, with
            its label and index. "skip": the batch is shorter, and empty batches are skipped, so ``len()`` is an upper
            bound. :attr:`errors` lists such samples. A BadImageWarning reports the first, and later epochs' new ones.
        on_error_in_python: apply on_error to errors of your own functions, too: a Lambda, target_transform.
        snapshot_every_n_steps: of torchdata's StatefulDataLoader; without effect, for states count every batch.

    Raises:
        ValueError, TypeError: for the arguments, as torch does.
        RuntimeError: fallback="error", and something cannot run in DALI.
        ValueError: while iterating, for an image that is too small for its transform; names path and index.
        ImageReadError (an OSError): while iterating, for a file that cannot be decoded. The loader can go on after it.

    Examples:
        >>> loader = DataLoader(DALIImageFolder("train", transform), batch_size=4, shuffle=True, device="cpu")
        >>> images, labels = next(iter(loader))
        >>> images.shape, labels.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4]))
    """

    if TYPE_CHECKING:  # what an editor shows: torch's parameters, of the newest version that is known, and ours

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
            cache: int | float | None = None,
            cache_device: torch.device | Literal["cpu", "cuda"] | None = None,
            on_error: Literal["raise", "skip", "replace"] = "raise",
            on_error_in_python: bool = False,
            snapshot_every_n_steps: int | None = 1,
        ) -> None: ...

    else:  # torch's parameters are those of the version that is installed

        def __init__(self, *args, **kwargs):
            self._prefetch_given = kwargs.get("prefetch_factor") is not None
            super().__init__(*args, **self._take(**kwargs))
            route = self._choose_route()
            self.check_worker_number_rationality()
            if isinstance(route, DaliRoute):
                route.begin_decoder()

    def _take(
        self,
        *,
        device: torch.device | str | int | None = None,
        exact: bool = False,
        fallback: Literal["warn", "silent", "error"] = "warn",
        memory_format: torch.memory_format = torch.contiguous_format,
        cache: int | float | None = None,
        cache_device: torch.device | Literal["cpu", "cuda"] | None = None,
        on_error: Literal["raise", "skip", "replace"] = "raise",
        on_error_in_python: bool = False,
        snapshot_every_n_steps: int | None = 1,
        **torchs: Any,
    ) -> dict[str, Any]:
        """Checks our own arguments (else a ValueError) and keeps them, as attributes; returns torch's."""
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
        self.cache = checked_budget(cache)
        self.cache_device = checked_place(cache_device, device)
        self._route: Route | None = None
        self._told: set[str] = set()
        self._announced: type | None = vars(self).get("_announced")  # the route that was
        return torchs

    @property
    def errors(self) -> list[SampleError]:
        """Returns the samples that could not be read so far, each once: (path, index, epoch, reason)."""
        return self._errors.found

    def explain(self, wide: bool = False) -> str:
        """Returns what this loader does, one line a transform: what it became, where it runs, and how close it is to
        torchvision; for a fallback which transform or argument is in the way, and what to write instead. A notebook
        shows a table, a narrow terminal two lines a transform. ``wide``: transforms with all of their arguments."""
        if self._why_torchs:
            return self._why_torchs
        self._route = choose(self, self._route)
        return explain(self, self._route, wide)

    def preview(self, count: int = 16) -> Image:
        """Returns a picture of the next epoch's first ``count`` samples, with their labels, boxes and masks; a notebook
        shows it, and ``.save("batch.png")`` keeps it. The epoch stays as it would have been."""
        return preview(self, count)

    def stats(self, reset: bool = False) -> LoaderStats:
        """Returns what this loader has given so far, and where the time of next() went; prints as one line. ``reset``:
        counting begins anew. Any thread may ask. ``logging`` has the same line at the end of each epoch,
        of the logger "dali_compat", level INFO. Copies of a loader count for themselves."""
        return self._stats.read(self._kept(), reset)

    def state_dict(self) -> dict[str, Any]:
        """Returns where this loader is: a small dictionary of numbers and texts, for a checkpoint, or JSON. It counts
        the batches that your loop has received, not those in flight. Another process resumes with the next one."""
        return self._history.state(self, self._route or choose(self, None))

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """The next iter() resumes where ``state_dict`` was taken, with the same samples and random numbers, and so do
        the epochs after it. ``strict=False``: even with another data set, batch size, sampler, transform or route.
        An empty dictionary is the beginning, as torchdata's StatefulDataLoader has it.

        Raises:
            ValueError: it is no state, or of another loader; the text names what is not the same.
        """
        self._route = choose(self, self._route)  # the transform may be another one by now
        self._history.load(self, self._route, state_dict, strict)
        self._iterator = None  # of persistent_workers

    def _kept(self) -> DaliRoute | ResidentRoute | None:
        """The route, where it may keep pixels: torch's own keeps none."""
        return None if isinstance(self._route, StockRoute) else self._route

    def close(self) -> None:
        """Free the pipelines' threads, pinned and device memory now; the loader can be iterated again."""
        self._stats.hold(self._kept())
        if self._route is not None and not isinstance(self._route, StockRoute):
            self._route.close()
            self._route = None

    @no_compile
    @until_the_end
    def __iter__(self) -> _BaseDataLoaderIter:
        if isinstance(before := self._iterator, OrderedIterator):
            route = self._choose_route(start=True)
            if isinstance(route, StockRoute):
                before.end()
                self._iterator = fallback_iterator(self, route.device, before.progress)
                return self._iterator
        return super().__iter__()

    @property
    def _why_torchs(self) -> str:  # in full, where a subclass's constructor has not called ours
        why = f"torchvision does the work: {type(self).__name__}.__init__ does not call that of dali_compat.DataLoader"
        return "" if "_history" in vars(self) else why

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self._why_torchs:
            tell_of_fallback(self._why_torchs, "warn", _classes_told)
            return super()._get_iterator()
        route = self._choose_route(start=True)
        if isinstance(route, StockRoute):
            return fallback_iterator(self, route.device)
        if isinstance(route, ResidentRoute):
            return ResidentIterator(self, route)
        if route.table is not None:
            return traced_iterator(self, route)
        return OrderedIterator(self, route)

    @until_the_end
    def _choose_route(self, start: bool = False) -> Route:  # anew each epoch: frameworks change what was given
        self._errors.policy, self._errors.in_python = checked_policy(self.on_error), self.on_error_in_python
        self._route = route = choose(self, self._route, start)
        verbose = Patched.now is not None and Patched.now.verbose and self.fallback != "error"
        if verbose and type(route) is not self._announced:
            announce(summary(route), self.dataset)
            self._announced = type(route)
        if isinstance(route, StockRoute):
            if not verbose:
                self._tell(f"torchvision does the work: {route.reason}")
        else:
            for reason in in_python(route):
                self._tell(f"Python calls a transform sample by sample: {reason}")
        return route

    def check_worker_number_rationality(self) -> None:
        """Give torch's warning of more processes than cores, where there are any."""
        if self._why_torchs or (self._route is not None and in_processes(self._route)):
            super().check_worker_number_rationality()

    def _choose_dali_route(self) -> DaliRoute | ResidentRoute:
        """For an iterator that lives on (persistent_workers), and that iter(loader) has not replaced by torch's."""
        route = self._choose_route(start=True)
        if isinstance(route, StockRoute):
            raise RuntimeError(f"with persistent_workers=True the loader cannot change to torchvision: {route.reason}")
        return route

    def __getstate__(self) -> dict[str, Any]:
        if self._why_torchs:
            return self.__dict__
        return self.__dict__ | {  # pipelines stay here; a copy builds its own
            "_route": None,
            "_stats": Stats(),
            "_history": History(),
            "_user_collate": UserCollate(self.fallback),
        }

    if not TYPE_CHECKING:  # to a type checker every other name is an error

        def __getattr__(self, name):
            if name == "_is_accelerate_prepared" and Patched.now is None:  # which Accelerate asks
                remedy = "call dali_compat.install() first, or do not pass the loader to prepare()"
                self._tell(f"Accelerate's prepare() makes torch's own loader of this one: {remedy}")
            what = f"{type(self).__name__!r} object has no attribute {name!r} {self._why_torchs}"
            raise AttributeError(what.rstrip())

    def _tell(self, what: str) -> None:
        tell_of_fallback(what, self.fallback, self._told)


def _signature() -> inspect.Signature:
    """torch's parameters, whichever this version has, and ours."""
    extra = [p for p in inspect.signature(DataLoader._take).parameters.values() if p.kind is p.KEYWORD_ONLY]
    torchs = inspect.signature(data.DataLoader.__init__)
    return torchs.replace(parameters=[*torchs.parameters.values(), *extra])


DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]  # where inspect.signature looks
