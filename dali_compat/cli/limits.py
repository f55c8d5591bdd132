"""Which part of loading limits it, by what `bench` has measured, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dali_compat.text import in_bytes

BUSY = 0.8  # of a batch's time, from which on something counts as what limits
KEEPS_UP = 1.05  # times the step's own time, up to which the model counts as what limits
OTHERS = 0.2  # of the cores, from which on other programs are said to have them
PYTHON, DISK, CPU, DECODER, HOST, MODEL = "Python", "disk", "CPU", "decoder", "host", "model"
BUSY_MACHINE = "busy machine"


class Measured(NamedTuple):
    """Seconds for a batch, loading alone.

    Attributes:
        alone: from one batch to the next.
        read: reading its files' bytes and nothing else, with as many threads as the loader.
        host: processor time of the calling thread in next().
        cpu: processor time of all threads and processes, that of the calling thread included.
        cores: that this process may use.
        threads: of the loader; its processes, where torchvision does the work.
        gpu: whether batches come out on a GPU.
        python: of next(), but for waiting for DALI, where Python is called sample by sample; 0 elsewhere.
        others: processor time of other programs on these cores.
    """

    alone: float
    read: float
    host: float
    cpu: float
    cores: int
    threads: int
    gpu: bool
    python: float = 0.0
    others: float = 0.0


class Beside(NamedTuple):
    """Seconds for a synthetic step.

    Attributes:
        step: without a loader.
        together: with a batch of the loader before it.
    """

    step: float
    together: float


class Verdict(NamedTuple):
    """What limits: one of BUSY_MACHINE, PYTHON, DISK, CPU, DECODER, HOST, MODEL; and why, in a sentence."""

    limit: str
    why: str


def limit(m: Measured) -> Verdict:
    """What limits loading alone.

    PYTHON, where next() runs it, or waits for it, for BUSY of the time from one batch to the next. Else a busy machine
    says nothing of the loader: other programs have OTHERS of the cores, and hardly any is left. Of disk, host and CPU
    each has a share of the time in which it is at work: reading the bytes (DISK), the calling thread's Python (HOST),
    and all processor time over all cores, or that of others than the calling thread over the loader's threads (CPU).
    The largest limits, where it is BUSY. Where none is, nothing that was measured explains the time, and it is spent
    waiting for the DECODER: a GPU's work, which the host cannot see, or too few batches on their way.
    """
    others = m.others / (m.alone * m.cores)
    everywhere, on_threads = m.cpu / (m.alone * m.cores), (m.cpu - m.host) / (m.alone * max(1, m.threads))
    is_busy = others >= OTHERS and everywhere < BUSY <= everywhere + others
    theirs = f"other programs have {others:.0%} of the {m.cores} cores"
    if m.python >= BUSY * m.alone:
        why = f"what is called sample by sample takes {m.python / m.alone:.0%} of the time"
        return Verdict(PYTHON, f"{why}, while {theirs}" if is_busy else why)
    if is_busy:
        return Verdict(BUSY_MACHINE, theirs)
    shares = [
        (m.read / m.alone, Verdict(DISK, "reading the files alone takes {:.0%} of the time")),
        (m.host / m.alone, Verdict(HOST, "the calling thread's Python is at work for {:.0%} of the time")),
        (everywhere, Verdict(CPU, f"{m.cores} cores are at work for {{:.0%}} of the time")),
        (on_threads, Verdict(CPU, f"the loader's threads ({m.threads}) are at work for {{:.0%}} of the time")),
    ]
    share, verdict = max(shares, key=lambda one: one[0])
    if share >= BUSY:
        return Verdict(verdict.limit, verdict.why.format(share))
    what = "the GPU's decoder and kernels" if m.gpu else "batches too few on their way"
    busy = f"disk {m.read / m.alone:.0%}, calling thread {m.host / m.alone:.0%}, cores {everywhere:.0%}"
    return Verdict(DECODER, f"nothing that can be seen is at work all the time ({busy}); what is left: {what}")


def limit_beside(m: Measured, b: Beside) -> Verdict:
    """What limits beside a step.

    The MODEL, where a step with a loader takes at most KEEPS_UP times its own time. Loading, by limit(), where it takes
    longer than the step, or the machine is busy. Where it does not and the step is late all the same, host work is paid
    between two steps (PYTHON, HOST), if it makes half of what is lost; else batches that would be there in time come
    late beside a busy device (DECODER).
    """
    lost = b.together - b.step
    if b.together <= KEEPS_UP * b.step:
        return Verdict(MODEL, f"the step has {b.step / b.together:.0%} of its speed without a loader")
    limits, why = limit(m)
    if limits == BUSY_MACHINE:
        return Verdict(limits, why)
    if m.alone > b.step:
        return Verdict(limits, f"loading a batch takes longer than the step; {why}")
    what = f"{1e3 * lost:.1f} ms of a step are lost, though loading alone takes less than the step"
    if max(m.python, m.host) >= lost / 2:
        name, takes = (PYTHON, m.python) if m.python else (HOST, m.host)
        return Verdict(name, f"{what}; next() takes {1e3 * takes:.1f} ms of work on the host between two steps")
    return Verdict(DECODER, f"{what}; batches come late beside a busy device")


@dataclass(frozen=True)
class Setting:
    """What was measured, as far as advice hangs on it.

    Attributes:
        path: of the data.
        folder: whether it is a folder.
        cores, threads, workers, depth, batch_size, exact, gpu: the loader's.
        gpu_there: whether the machine has a GPU.
        encoded, decoded: bytes of the whole data set, estimated from the images that were read.
        free: bytes of memory.
        cached: whether the loader keeps decoded images already.
        fallback: why torchvision does the work; "" where it does not.
        python: what Python calls sample by sample, and why.
    """

    path: str
    folder: bool
    cores: int
    threads: int
    depth: int
    batch_size: int
    workers: int = 0
    exact: bool = False
    gpu: bool = False
    gpu_there: bool = False
    encoded: float = 0.0
    decoded: float = 0.0
    free: float = 0.0
    cached: bool = False
    fallback: str = ""
    python: tuple[str, ...] = ()


def advice(limits: str, s: Setting) -> list[str]:
    """What to change, most telling first."""
    return _REMEDIES[limits](s)


def _python(s: Setting) -> list[str]:
    if s.fallback:
        return [f"what lets DALI do the work; torchvision does, because {s.fallback}", *_threads(s)]
    return [
        *(f"a transform that translates, or a registered one: {reason}" for reason in s.python),
        *([f"num_workers={s.cores} (now {s.workers}): so many processes call it"] if s.workers < s.cores else []),
    ]


def _disk(s: Setting) -> list[str]:
    packed = f"an archive, which is read in long pieces: python -m dali_compat pack {s.path} packed.rec"
    return [
        *([packed] if s.folder else []),
        *_cache(s),
        f"a faster disk, or memory for all files ({in_bytes(s.encoded)}; {in_bytes(s.free)} are free)",
    ]


def _cpu(s: Setting) -> list[str]:
    return [
        *_threads(s),
        *(["device='cuda': the GPU decodes"] if s.gpu_there and not s.gpu else []),
        *(["exact=False: faster kernels, and the GPU decodes"] if s.exact else []),
        *_cache(s),
        "smaller images on the disk, or more cores",
    ]


def _decoder(s: Setting) -> list[str]:
    return [
        *(["exact=False: the GPU decodes"] if s.exact and s.gpu else []),
        f"prefetch_factor={2 * s.depth} (now {s.depth}): more batches on their way",
        *_cache(s),
        "smaller images on the disk",
    ]


def _host(s: Setting) -> list[str]:
    return [
        f"larger batches (now {s.batch_size}): part of the work is paid once a batch",
        "no collate_fn, target_transform or sampler that is slow in Python",
    ]


_REMEDIES = {
    BUSY_MACHINE: lambda s: ["nothing by this run: measure again when the other programs have ended"],
    PYTHON: _python,
    DISK: _disk,
    CPU: _cpu,
    DECODER: _decoder,
    HOST: _host,
    MODEL: lambda s: ["nothing: loading keeps up with the step"],
}


def _threads(s: Setting) -> list[str]:
    return [f"num_workers={s.cores} (now {s.threads})"] if s.threads < s.cores else []


def _cache(s: Setting) -> list[str]:
    """Where all decoded images fit into half of the free memory."""
    fits = not s.cached and not s.fallback and 0 < s.decoded <= s.free / 2
    return (
        [f"cache=0.5: all images decoded take about {in_bytes(s.decoded)}, and {in_bytes(s.free)} are free"]
        if fits
        else []
    )
