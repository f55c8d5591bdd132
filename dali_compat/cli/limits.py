"""Determine the bottleneck of loading from the measurements of `bench`, and recommend changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..runtime.messages import in_bytes

BUSY = 0.8  # a resource is the bottleneck if it is busy for at least this share of a batch's time
OTHERS = 0.2  # other programs count as a cause if they use at least this share of the cores
PYTHON, DISK, CPU, DECODER, HOST = "Python", "disk", "CPU", "decoder", "host"
BUSY_MACHINE = "busy machine"


@dataclass(frozen=True)
class Measured:
    """Times of a loader in seconds per batch, and properties of the loader and its data."""

    loading: float  # time from one batch to the next
    read: float  # time to read the bytes of its files, with as many threads as the loader
    host: float  # CPU time of the calling thread in next()
    cpu: float  # CPU time of all threads and processes, including the calling thread
    cores: int  # cores that this process may use
    threads: int  # the loader's threads, or its processes if torchvision does the work
    python: float = 0.0  # time in next() without waiting for DALI; 0 unless Python functions run for each sample
    called: str = ""  # why a transform runs for each sample; "" if none does
    others: float = 0.0  # CPU time of other programs on these cores
    path: str = ""  # path of the data
    folder: bool = False  # whether the path is a folder
    depth: int = 2  # prefetch_factor of the loader
    batch_size: int = 1
    workers: int = 0
    exact: bool = False
    gpu: bool = False
    has_gpu: bool = False  # whether the machine has a GPU
    encoded: float = 0.0  # estimated bytes of all files of the data set
    free: float = 0.0  # bytes of free memory
    fallback: str = ""  # the reason why torchvision does the work


class Bottleneck(NamedTuple):
    """The bottleneck (BUSY_MACHINE, PYTHON, DISK, CPU, DECODER or HOST), and the reason as a clause."""

    limit: str
    why: str


def limit(m: Measured) -> Bottleneck:
    """Return the bottleneck of loading, the first of these that applies.

    - PYTHON: next() runs Python functions, or waits for them, for at least the share BUSY of the time.
    - BUSY_MACHINE: other programs use at least the share OTHERS of the cores, the loader uses less than BUSY, and
      together they use at least BUSY.
    - DISK, HOST, CPU: the busiest of the three, if busy for at least BUSY of the time. DISK is reading the files, HOST
      is the calling thread's Python, and CPU is all cores or the loader's threads.
    - DECODER: no measured resource is busy. The time goes to the GPU, or there are too few batches in flight.
    """
    reading, host = m.read / m.loading, m.host / m.loading
    everywhere, others = (seconds / (m.loading * m.cores) for seconds in (m.cpu, m.others))
    on_threads = (m.cpu - m.host) / (m.loading * max(1, m.threads))
    is_busy = others >= OTHERS and everywhere < BUSY <= everywhere + others
    theirs = f"other programs use {others:.0%} of the {m.cores} cores"
    if m.python >= BUSY * m.loading:
        why = f"functions called sample by sample take {m.python / m.loading:.0%} of the time"
        return Bottleneck(PYTHON, f"{why}, while {theirs}" if is_busy else why)
    if is_busy:
        return Bottleneck(BUSY_MACHINE, theirs)
    shares = [
        (reading, Bottleneck(DISK, "reading the files takes {:.0%} of the time")),
        (host, Bottleneck(HOST, "the calling thread's Python is busy for {:.0%} of the time")),
        (everywhere, Bottleneck(CPU, f"{m.cores} cores are busy for {{:.0%}} of the time")),
        (on_threads, Bottleneck(CPU, f"the loader's threads ({m.threads}) are busy for {{:.0%}} of the time")),
    ]
    share, verdict = max(shares, key=lambda one: one[0])
    if share >= BUSY:
        return Bottleneck(verdict.limit, verdict.why.format(share))
    what = "the GPU's decoder and kernels" if m.gpu else "too few batches in flight"
    busy = f"disk {reading:.0%}, calling thread {host:.0%}, cores {everywhere:.0%}"
    return Bottleneck(DECODER, f"no measured resource is busy all the time ({busy}), which leaves {what}")


def advice(bottleneck: str, m: Measured) -> list[str]:
    """Return recommendations, most relevant first."""
    more_threads = m.threads < m.cores and (bottleneck == CPU or bool(m.fallback))
    few_workers = m.workers < m.cores and not m.fallback
    encoded, free = in_bytes(m.encoded), in_bytes(m.free)
    rows = [
        ({BUSY_MACHINE}, True, "measure again when the other programs have ended"),
        ({HOST}, True, f"larger batches (now {m.batch_size}): part of the work is done once per batch"),
        ({HOST}, True, "a faster collate_fn, target_transform or sampler, if these take long in Python"),
        ({PYTHON}, m.fallback, f"let DALI do the work; torchvision does it, because {m.fallback}"),
        ({PYTHON}, bool(m.called), f"a transform that DALI supports, or a registered translation: {m.called}"),
        ({PYTHON}, few_workers, f"num_workers={m.cores} (now {m.workers}): one worker process per core"),
        ({DISK}, m.folder, f"an archive, read in large blocks: python -m dali_compat pack {m.path} packed.rec"),
        ({CPU, PYTHON}, more_threads, f"num_workers={m.cores} (now {m.threads})"),
        ({CPU}, m.has_gpu and not m.gpu, "device='cuda': the GPU decodes"),
        ({CPU}, m.exact, "exact=False: faster kernels, and the GPU decodes"),
        ({DECODER}, m.exact and m.gpu, "exact=False: the GPU decodes"),
        ({DECODER}, True, f"prefetch_factor={2 * m.depth} (now {m.depth}): more batches in flight"),
        ({DISK}, True, f"a faster disk, or memory for all files ({encoded}; {free} are free)"),
        ({CPU}, True, "smaller images on the disk, or more cores"),
        ({DECODER}, True, "smaller images on the disk"),
    ]
    return [text for bottlenecks, applies, text in rows if bottleneck in bottlenecks and applies]
