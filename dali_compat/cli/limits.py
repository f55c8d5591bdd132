"""Names what limits loading, by what `bench` has measured, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..runtime.messages import in_bytes

BUSY = 0.8  # of a batch's time, from which on something counts as what limits
KEEPS_UP = 1.05  # times the step's own time, up to which the model counts as what limits
OTHERS = 0.2  # of the cores, from which on other programs are said to have them
PYTHON, DISK, CPU, DECODER, HOST, MODEL = "Python", "disk", "CPU", "decoder", "host", "model"
BUSY_MACHINE = "busy machine"


@dataclass(frozen=True)
class Measured:
    """A loader, its data and its seconds for a batch, loading alone."""

    alone: float  # from one batch to the next
    read: float  # reading its files' bytes and nothing else, with as many threads as the loader
    host: float  # processor time of the calling thread in next()
    cpu: float  # processor time of all threads and processes, that of the calling thread included
    cores: int  # that this process may use
    threads: int  # of the loader; its processes, if torchvision does the work
    python: float = 0.0  # of next(), without waiting for DALI, if Python is called sample by sample; else 0
    called: tuple[str, ...] = ()  # what Python calls sample by sample, and why
    others: float = 0.0  # processor time of other programs on these cores
    path: str = ""  # of the data
    folder: bool = False  # it is a folder
    depth: int = 2  # of the loader, as the next ones
    batch_size: int = 1
    workers: int = 0
    exact: bool = False
    gpu: bool = False
    gpu_there: bool = False  # the machine has a GPU
    encoded: float = 0.0  # bytes of the whole data set, estimated from the images that were read
    decoded: float = 0.0  # of its images once they are decoded, as well
    free: float = 0.0  # bytes of memory
    cached: bool = False  # the loader keeps decoded images already
    fallback: str = ""  # why torchvision does the work


class Beside(NamedTuple):
    """Seconds for a synthetic step."""

    step: float  # without a loader
    together: float  # with a batch of the loader before it


class Bottleneck(NamedTuple):
    """A limit, one of BUSY_MACHINE, PYTHON, DISK, CPU, DECODER, HOST, MODEL; and the reason, in a sentence."""

    limit: str
    why: str


def shares(m: Measured) -> dict[str, float]:
    """Returns for each resource the share of a batch's time in which it is at work, loading alone."""
    return {
        "Python": m.python / m.alone,
        "reading the files": m.read / m.alone,
        "calling thread": m.host / m.alone,
        "all cores": m.cpu / (m.alone * m.cores),
        "loader's threads": (m.cpu - m.host) / (m.alone * max(1, m.threads)),
        "other programs": m.others / (m.alone * m.cores),
    }


def limit(m: Measured) -> Bottleneck:
    """Returns what limits loading alone.

    PYTHON, if next() runs it, or waits for it, for BUSY of the time from one batch to the next. Else BUSY_MACHINE, if
    other programs have OTHERS of the cores, and hardly any is left: this says nothing of the loader. Of disk, host and
    CPU each has a share of the time in which it is at work: reading the bytes (DISK), the calling thread's Python
    (HOST), and all processor time over all cores, or that of other threads over the loader's threads (CPU). The largest
    limits, if it is BUSY. If none is, nothing that was measured explains the time, and it is spent waiting for the
    DECODER: a GPU's work, which the host cannot see, or too few batches in flight.
    """
    _, reading, host, everywhere, on_threads, others = shares(m).values()
    is_busy = others >= OTHERS and everywhere < BUSY <= everywhere + others
    theirs = f"other programs have {others:.0%} of the {m.cores} cores"
    if m.python >= BUSY * m.alone:
        why = f"what is called sample by sample takes {m.python / m.alone:.0%} of the time"
        return Bottleneck(PYTHON, f"{why}, while {theirs}" if is_busy else why)
    if is_busy:
        return Bottleneck(BUSY_MACHINE, theirs)
    of_time = [
        (reading, Bottleneck(DISK, "reading the files alone takes {:.0%} of the time")),
        (host, Bottleneck(HOST, "the calling thread's Python is at work for {:.0%} of the time")),
        (everywhere, Bottleneck(CPU, f"{m.cores} cores are at work for {{:.0%}} of the time")),
        (on_threads, Bottleneck(CPU, f"the loader's threads ({m.threads}) are at work for {{:.0%}} of the time")),
    ]
    share, verdict = max(of_time, key=lambda one: one[0])
    if share >= BUSY:
        return Bottleneck(verdict.limit, verdict.why.format(share))
    what = "the GPU's decoder and kernels" if m.gpu else "too few batches in flight"
    busy = f"disk {reading:.0%}, calling thread {host:.0%}, cores {everywhere:.0%}"
    return Bottleneck(DECODER, f"no resource that is measured is at work all the time ({busy}), which leaves {what}")


def limit_beside(m: Measured, b: Beside) -> Bottleneck:
    """Returns what limits beside a step.

    The MODEL, if a step with a loader takes at most KEEPS_UP times its own time. Loading, by limit(), if it takes
    longer than the step, or the machine is busy. Otherwise the step is late although loading is fast enough: because
    of work on the host between two steps (PYTHON, HOST), if that makes half of what is lost; else because batches come
    late beside a busy device (DECODER).
    """
    lost = b.together - b.step
    if b.together <= KEEPS_UP * b.step:
        return Bottleneck(MODEL, f"the step has {b.step / b.together:.0%} of its speed without a loader")
    limits, why = limit(m)
    if limits == BUSY_MACHINE:
        return Bottleneck(limits, why)
    if m.alone > b.step:
        return Bottleneck(limits, f"loading a batch takes longer than the step; {why}")
    what = f"{1e3 * lost:.1f} ms of a step are lost, though loading alone takes less than the step"
    if max(m.python, m.host) >= lost / 2:
        name, takes = (PYTHON, m.python) if m.python else (HOST, m.host)
        return Bottleneck(name, f"{what}; next() takes {1e3 * takes:.1f} ms of work on the host between two steps")
    return Bottleneck(DECODER, f"{what}; batches come late beside a busy device")


def advice(limits: str, m: Measured) -> list[str]:
    """Returns what to change, most telling first."""
    fits = not m.cached and not m.fallback and 0 < m.decoded <= m.free / 2
    more_threads = m.threads < m.cores and (limits == CPU or bool(m.fallback))
    decoded, encoded, free = in_bytes(m.decoded), in_bytes(m.encoded), in_bytes(m.free)
    rows = [
        ({BUSY_MACHINE}, True, "measure again when the other programs have ended"),
        ({MODEL}, True, "nothing: loading keeps up with the step"),
        ({HOST}, True, f"larger batches (now {m.batch_size}): part of the work is done once a batch"),
        ({HOST}, True, "no collate_fn, target_transform or sampler that is slow in Python"),
        ({PYTHON}, m.fallback, f"let DALI do the work; torchvision does it, because {m.fallback}"),
        *(({PYTHON}, not m.fallback, f"a transform that translates, or a registered one: {why}") for why in m.called),
        (
            {PYTHON},
            not m.fallback and m.workers < m.cores,
            f"num_workers={m.cores} (now {m.workers}): one process a core calls it",
        ),
        (
            {DISK},
            m.folder,
            f"an archive, read in large blocks: python -m dali_compat pack {m.path} packed.rec",
        ),
        ({CPU, PYTHON}, more_threads, f"num_workers={m.cores} (now {m.threads})"),
        ({CPU}, m.gpu_there and not m.gpu, "device='cuda': the GPU decodes"),
        ({CPU}, m.exact, "exact=False: faster kernels, and the GPU decodes"),
        ({DECODER}, m.exact and m.gpu, "exact=False: the GPU decodes"),
        ({DECODER}, True, f"prefetch_factor={2 * m.depth} (now {m.depth}): more batches in flight"),
        ({DISK, CPU, DECODER}, fits, f"cache=0.5: all images decoded take about {decoded}, and {free} are free"),
        ({DISK}, True, f"a faster disk, or memory for all files ({encoded}; {free} are free)"),
        ({CPU}, True, "smaller images on the disk, or more cores"),
        ({DECODER}, True, "smaller images on the disk"),
    ]
    return [text for of, holds, text in rows if limits in of and holds]
