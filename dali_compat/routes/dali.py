"""The DALI route, with the pipelines that a loader keeps between epochs."""

from __future__ import annotations

import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..data.base_datasets import Images
from ..data.headers import headers_of
from ..plan import Options, Plan
from ..runtime.forks import new_lock
from ..runtime.installation import hidden_jpeg_engines, most_jpeg_engines
from ..runtime.messages import stack_level
from ..tracing.plans import pipeline_key
from ..tracing.sources import FileTable

if TYPE_CHECKING:
    from ..data.sources import Form
    from ..engine.dali.pipeline import DecodePipeline
    from ..engine.planes.verified import VerifiedEngine


MOST_PIPELINES = 16  # for a custom data set; each has a dozen threads
_READERS = 4  # threads of a pipeline that only reads files
# From this number of JPEG engines on, 4 CPU threads are enough, except for large images. On an H100, ResNet-18 trains
# at .93 of its speed on synthetic data with 4 threads, and at .89 with 8 (benchmarks/results).
_MANY_ENGINES, _GPU_JPEG_THREADS = 7, 4
_PER_ENGINE = 4  # CPU threads that are as fast as one JPEG engine (imagefolder_4mp_h100 in benchmarks/results)


@dataclass
class DaliRoute:
    device: torch.device
    available: int  # maximum number of CPU threads of a pipeline
    depth: int
    batch_size: int  # smallest batch size of pipelines
    plans: list[Plan]  # one per distinct transform, in order
    _plan_of: dict[int, tuple[Images, Plan]] = field(repr=False)  # leaves and their plans, by id() of the leaf
    gpu_jpegs: bool = False  # whether most images are JPEGs and a GPU decodes them
    fancy: bool = False  # whether a GPU's decoder interpolates chroma as libjpeg does
    large: bool = False  # whether most images have a megapixel or more
    # custom data sets: plan of each image of a sample; None if torchvision computes the image
    images: list[Plan | None] = field(default_factory=list, repr=False)
    # custom data sets: properties of the files
    table: FileTable | None = field(default=None, repr=False)
    options: Options | None = field(default=None, repr=False)  # custom data sets
    why: str = ""  # reason why the transform of a data set of files has no translation
    realized: int = 0  # custom data sets: batches without a deferred image
    _representatives: dict[Any, Plan] = field(default_factory=dict, repr=False)
    # all pipelines, including borrowed ones
    _pipelines: list[DecodePipeline] = field(default_factory=list, repr=False)
    # reentrant, since the garbage collector may end an epoch at any time
    _lock: Any = field(default_factory=new_lock, repr=False)

    def plan_of(self, leaf: Images) -> Plan:
        return self._plan_of[id(leaf)][1]

    def representative(self, plan: Plan) -> Plan:
        """Return the first plan with the same DALI steps as ``plan``. Such plans share pipelines."""
        return self._representatives.setdefault(pipeline_key(plan), plan)

    @property
    def jpeg_engines(self) -> int | None:
        """Number of the GPU's JPEG engines, or None if nvJPEG has not started or the GPU does not decode JPEGs."""
        from ..engine.dali import warm

        index = self.device.index
        return warm.known_jpeg_engines(index) if self.gpu_jpegs and index is not None else None

    @property
    def threads(self) -> int:
        """Number of CPU threads of a pipeline. It is small if JPEG engines decode all JPEGs."""
        # more threads would slow training steps
        return min(self.available, _GPU_JPEG_THREADS) if self.engines_decode_all else self.available

    @property
    def load(self) -> float:
        """Share (0 to 1) of JPEGs for the JPEG engines. They take as long as CPU threads and CUDA take for the rest."""
        if self.jpeg_engines is None or self.engines_decode_all:
            return 1.0
        return self.jpeg_engines * _PER_ENGINE / (self.jpeg_engines * _PER_ENGINE + self.available)

    @property
    def engines_decode_all(self) -> bool:
        return (self.jpeg_engines or 0) >= _MANY_ENGINES and not self.large

    @property
    def alternating_pipelines(self) -> int:
        """Number of pipelines that take turns in decoding the batches of one plan."""
        return 2 if self.engines_decode_all else 1

    def open_another(self, pipeline: DecodePipeline) -> None:
        """Open a copy of a pipeline in the background, unless it already has one. idle() returns the copy once it is
        open. Errors, such as lack of memory, are ignored."""
        from ..engine.dali import warm

        if pipeline.has_copy:
            return
        pipeline.has_copy = True

        def opened() -> None:
            with suppress(Exception):
                another = pipeline.open_copy()
                with self._lock:
                    if pipeline in self._pipelines:
                        self._pipelines.append(another)
                        return
                another.close()  # the loader was closed meanwhile

        warm.in_background(opened)

    def idle(self, plan: Plan, form: Form) -> list[DecodePipeline]:
        """Return the pipelines for a plan and form, except those of running epochs."""
        return [one for one in self._pipelines if one.plan is plan and one.form == form and one.idle]

    def borrow(self, plan: Plan, batch_size: int, form: Form, borrower: Any) -> DecodePipeline:
        """Return an idle pipeline for a plan and form, or a new one. It is idle again when the epoch ``borrower`` is
        over or deleted."""
        from ..engine.dali import warm
        from ..engine.dali.pipeline import DecodePipeline

        if self.gpu_jpegs and not form.reads and self.device.index is not None:
            engines = warm.jpeg_engines(self.device.index)
            hidden = hidden_jpeg_engines(self.device.index) if not engines and most_jpeg_engines() else None
            if hidden is not None:
                warnings.warn(str(hidden), stacklevel=stack_level())
        batch_size = max(batch_size, self.batch_size)
        with self._lock:
            self._close_unusable()
            for pipeline in self.idle(plan, form):
                if pipeline.batch_size >= batch_size:
                    pipeline.borrower = weakref.ref(borrower)
                    pipeline.discard_all()  # batches of the previous epoch
                    if pipeline.usable:  # garbage collection may have just closed it
                        return pipeline
            device, threads = self.device, self.threads
            if form.reads:
                device, threads = torch.device("cpu"), min(threads, _READERS)
            for idle in [one for one in self._pipelines if one.idle and self.table is not None]:
                if len(self._pipelines) >= MOST_PIPELINES:
                    self._pipelines.remove(idle)
                    idle.close()
            pipeline = DecodePipeline(plan, device, threads, self.depth, batch_size, form, self.load)
            pipeline.borrower = weakref.ref(borrower)
            self._pipelines.append(pipeline)
            return pipeline

    def jpeg_engine(self) -> VerifiedEngine | None:
        """Return the GPU's JPEG engine, or None if it is not used. Initializes CUDA if the route uses the engine."""
        if not self.uses_jpeg_engine:
            return None
        from ..engine.planes.engines import engine_of

        engine = engine_of(self.device)
        return None if isinstance(engine, str) else engine

    @property
    def uses_jpeg_engine(self) -> bool:
        """True if a plan may use the GPU's JPEG engine."""
        # never with exact=False: ResNet-18 trains 1.7% faster with DALI's decoder (H200, benchmarks/results)
        possible = self.device.type == "cuda" and most_jpeg_engines() > 0
        return possible and any(plan.from_planes for plan in self.plans)

    @property
    def jpegs(self) -> str:
        """Description of the JPEG decoders for explain(), if the route uses the JPEG engine."""
        from ..engine.planes.engines import known_engine

        engine = known_engine(self.device)
        if isinstance(engine, str):
            return f"exact, on the CPU, not on a JPEG engine: {engine}"
        kinds, there = ("", ", if it has one") if engine is None else (f" ({engine.kinds})", "")
        return f"exact: JPEGs{kinds} on the GPU's engine{there}, once they are compared; others on the CPU"

    @property
    def compared_jpegs(self) -> str:
        """Text for explain() on how many files the JPEG engine decodes, or "" if no engine is used."""
        from ..engine.planes.engines import known_engine

        engine = known_engine(self.device) if self.uses_jpeg_engine else None
        if engine is None or isinstance(engine, str):
            return ""
        leaves = [leaf for leaf, plan in self._plan_of.values() if plan.from_planes]
        return engine.describe_counts([(headers_of(leaf), len(leaf)) for leaf in leaves])

    def begin_decoder(self) -> None:
        """Start the GPU's decoder in the background, once per process, if CUDA is initialized."""
        if self.device.type != "cuda" or self.device.index is None or not torch.cuda.is_initialized():
            return
        if self.uses_jpeg_engine:
            from ..engine.planes.engines import begin

            begin(self.device)
        elif not all(plan.exact for plan in self.plans):
            from ..engine.dali import warm

            warm.begin(self.device.index)

    def take_over(self, before: DaliRoute) -> None:
        """Share the pipelines of the previous route ``before``, because its iterators may still use them. Close idle
        pipelines that this route does not need."""
        self._pipelines, self._lock = before._pipelines, before._lock
        self._representatives = before._representatives
        # keep all pipelines of a custom data set, because its plans may recur
        plans = self.plans if self.table is None else [one.plan for one in self._pipelines]
        with self._lock:
            for pipeline in self._pipelines:
                if pipeline.plan not in plans and pipeline.idle:
                    pipeline.close()

    def epoch_is_over(self) -> None:
        """Close idle pipelines. For each plan and form, keep the one or two that the next epoch will use."""
        with self._lock:
            for pipeline in [pipeline for pipeline in self._pipelines if pipeline.idle]:
                same_kind = self.idle(pipeline.plan, pipeline.form)
                if pipeline not in same_kind[-self.alternating_pipelines :]:
                    pipeline.close()
            self._close_unusable()

    def _close_unusable(self) -> None:
        """Close and remove idle pipelines that cannot be used again, for example after an interrupt or a fork."""
        gone = [pipeline for pipeline in self._pipelines if pipeline.idle and not pipeline.usable]
        self._pipelines[:] = [pipeline for pipeline in self._pipelines if pipeline not in gone]
        for pipeline in gone:
            pipeline.close()

    def close(self) -> None:
        while self._pipelines:
            self._pipelines.pop().close()
        if self.device.type == "cuda" and self.device.index is not None:
            from ..engine.dali import warm

            warm.drop(self.device.index)
