"""Pack a folder of images into one archive: RecordIO, TFRecord, LMDB or tar.

The files' bytes are stored unchanged. OUT appears only when the archive is complete.
"""

import os
import sys
from contextlib import ExitStack
from tempfile import TemporaryDirectory

import dali_compat
from dali_compat.cli.arguments import UsageError, dataset_class
from dali_compat.remote.urls import is_url, without_scheme


def add_arguments(parser) -> None:
    parser.add_argument("folder", help="folder of class folders of images, as for ImageFolder, or its URL")
    parser.add_argument(
        "out", help="path or URL of the archive; .rec, .tfrecord, .lmdb or .tar at its end selects the format"
    )


def run(args) -> int:
    """Pack a folder, and index the archive. Return 0, or 1 if that fails."""
    from dali_compat.archives.pack import CannotPack, pack, upload

    folder, out = without_scheme(args.folder), without_scheme(args.out)
    if not is_url(folder) and not os.path.isdir(os.path.expanduser(folder)):
        raise UsageError(f"{args.folder} is not a folder")
    if is_url(out) and out.endswith(".lmdb"):
        raise UsageError(f"{out}: LMDB cannot be read from object storage; use .rec, .tfrecord or .tar")
    with ExitStack() as stack:
        local = out
        if is_url(out):
            local = os.path.join(stack.enter_context(TemporaryDirectory()), out.rpartition("/")[2])
        try:
            count = pack(folder, local, True)
            dataset = getattr(dali_compat, dataset_class(local) or "")(local)  # builds its index
            if len(dataset) != count:
                print(f"pack: {local} has {len(dataset)} images, but {count} were packed", file=sys.stderr)
                return 1
            if local != out:
                print(f"uploading {_size(local) / 1e6:,.1f} MB", file=sys.stderr)
                upload(dataset, out)
        except (CannotPack, ImportError, OSError) as error:
            print(f"pack: {error}", file=sys.stderr)
            return 1
        print(f"{args.out}: {count:,} images of {len(dataset.classes):,} classes, {_size(local) / 1e6:,.1f} MB")
        print(f"read it with dali_compat.{type(dataset).__name__}({args.out!r}, transform)")
    return 0


def _size(out: str) -> int:
    return os.path.getsize(os.path.join(out, "data.mdb") if os.path.isdir(out) else out)
