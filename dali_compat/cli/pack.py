"""Pack a folder of images into one archive: RecordIO, TFRecord, LMDB or tar.

The files' bytes are stored as they are. An interrupted run continues when it is started again.
"""

import os
import shutil
import sys
from typing import Any

from tqdm import tqdm

from dali_compat.cli.arguments import UsageError, dataset_class, is_interrupt
from dali_compat.remote.urls import is_url, without_scheme


def add_arguments(parser) -> None:
    parser.add_argument("folder", help="of class folders of images, as ImageFolder takes it, or its URL")
    parser.add_argument(
        "out", help="what to write, a path or a URL: its ending, .rec, .tfrecord, .lmdb or .tar, says the format"
    )


def run(args) -> int:
    """Packs, then indexes what was packed. Returns 0, 1 if it cannot be done, 130 after Ctrl-C."""
    from dali_compat.archives.pack import CannotPack, pack, upload

    folder, out = without_scheme(args.folder), without_scheme(args.out)
    if not is_url(folder) and not os.path.isdir(os.path.expanduser(folder)):
        raise UsageError(f"{args.folder} is not a folder")
    local = _local(out) if is_url(out) else out
    bar: Any = None

    def begun(total: int, before: int) -> None:
        nonlocal bar
        if before:
            print(f"{before:,} of {total:,} images are packed already")
        bar = tqdm(total=total, initial=before, desc="packing", unit="img")

    try:
        count = pack(folder, local, begun, lambda: bar.update())
        bar.close()
        dataset = _reader(local)
        if len(dataset) != count:
            print(f"pack: {local} shows {len(dataset)} images after {count} were packed", file=sys.stderr)
            return 1
        if local != out:
            print(f"uploading {_size(local) / 1e6:,.1f} MB", file=sys.stderr)
            upload(dataset, out)
    except (CannotPack, ImportError) as error:
        print(f"pack: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        kept = "\nWhat is packed is kept: the same command continues." if bar is not None else ""
        print(f"pack: {error}{kept}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, RuntimeError) as error:
        if not is_interrupt(error):
            raise
        print("\npack: interrupted; the same command continues", file=sys.stderr)
        return 130
    finally:
        if bar is not None:
            bar.close()
    print(f"{args.out}: {count:,} images of {len(dataset.classes):,} classes, {_size(local) / 1e6:,.1f} MB")
    print(f"read it with dali_compat.{type(dataset).__name__}({args.out!r}, transform)")
    if local != out:
        shutil.rmtree(os.path.dirname(local))
    return 0


def _local(out: str) -> str:
    """Returns where an archive is written before it is uploaded: the same at the next run, which continues."""
    from dali_compat.runtime.saved import cache_folder, digest

    folder, name = cache_folder() / "pack" / digest(out), out.rpartition("/")[2]
    if name.endswith(".lmdb"):
        raise UsageError(f"{out}: LMDB is not read from object storage; .rec, .tfrecord and .tar are")
    if (folder / name).exists():  # whole, but it could not be uploaded: its folder may have changed since
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / name)


def _reader(out: str):
    """Returns the data set of an archive; making it builds the index, so that training starts at once."""
    import dali_compat

    return getattr(dali_compat, dataset_class(out) or "")(out)


def _size(out: str) -> int:
    return os.path.getsize(os.path.join(out, "data.mdb") if os.path.isdir(out) else out)
