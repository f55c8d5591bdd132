"""Data sets in object storage have the same lists and batches as those of a local folder with the same files."""

import pickle
import threading
from pathlib import Path

import programs
import pytest
import torch
from contract.both import EXACT, assert_same_epoch, ours, stock
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from dali_compat import DALIImageFolder, DALIImageList, DALIImageTable, DataLoader, FallbackWarning
from dali_compat.remote.fetcher import Fetcher
from dali_compat.runtime.messages import in_bytes

MIXED = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])


@pytest.fixture
def local(files) -> ImageFolder:
    return ImageFolder(files / "train", EXACT)


@pytest.fixture
def folder(bucket) -> DALIImageFolder:
    return DALIImageFolder(f"{bucket.url}/train", EXACT, storage_options=bucket.options)


def urls_of(local, bucket) -> list[str]:
    return [f"{bucket.url}/train{path.removeprefix(str(local.root))}" for path, _ in local.samples]


def test_a_folder_is_listed_as_imagefolder_lists_it(local, folder, bucket):
    assert (folder.classes, folder.class_to_idx, folder.targets) == (local.classes, local.class_to_idx, local.targets)
    assert folder.samples == folder.imgs == list(zip(urls_of(local, bucket), local.targets, strict=True))
    again = DALIImageFolder(f"{bucket.url}/train/", storage_options=bucket.options)
    assert again.samples == folder.samples


def test_the_root_of_a_bucket_is_a_folder(bucket, local):
    assert len(DALIImageFolder(bucket.url, storage_options=bucket.options)) == len(local)


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_equal_torchs_loader_on_local_files(local, folder, workers):
    for _ in range(2):
        loader = ours(folder, 4, num_workers=workers, device="cpu")
        assert loader.explain().startswith("DALI route")
        assert_same_epoch(loader, stock(local, 4))
        assert_same_epoch(loader, stock(local, 4))


def test_shuffled_epochs_equal_those_of_a_local_folder(files, bucket):
    """Includes grayscale, progressive and transparent images, with random crops that depend on the sizes in the
    headers."""
    here = DALIImageFolder(files / "train", MIXED)
    there = DALIImageFolder(f"{bucket.url}/train", MIXED, storage_options=bucket.options)
    made = []
    for dataset in (here, there):
        torch.manual_seed(3)
        made.append([batch for _ in range(2) for batch in ours(dataset, 5, shuffle=True, num_workers=2, device="cpu")])
    for (a, la), (b, lb) in zip(*made, strict=True):
        assert torch.equal(a, b) and torch.equal(la, lb)


def test_samples_equal_local_ones(local, folder):
    for index in (0, 1, 2, -1):
        assert torch.equal(folder[index][0], local[index][0]) and folder[index][1] == local[index][1]
    with pytest.raises(IndexError):
        folder[len(local)]


def test_subsets_concatenations_and_duplicates_equal_local_ones(local, folder):
    indices = [5, 0, 0, 17, 5]
    mine = data.ConcatDataset([data.Subset(folder, indices), folder])
    theirs = data.ConcatDataset([data.Subset(local, indices), local])
    assert_same_epoch(ours(mine, 4, num_workers=2, device="cpu"), stock(theirs, 4))
    beside = data.ConcatDataset([local, folder])
    assert_same_epoch(ours(beside, 5, device="cpu"), stock(data.ConcatDataset([local, local]), 5))


def test_target_transform_and_return_index_apply_to_remote_folders(local, bucket):
    made = DALIImageFolder(
        f"{bucket.url}/train", EXACT, lambda target: target + 10, return_index=True, storage_options=bucket.options
    )
    batches = list(ours(made, 6, num_workers=1, device="cpu"))
    assert torch.cat([batch[1] for batch in batches]).tolist() == [target + 10 for target in local.targets]
    assert torch.cat([batch[2] for batch in batches]).tolist() == list(range(len(local)))
    assert made[3][1:] == (10, 3)


def test_is_valid_file_filters_urls(local, bucket):
    made = DALIImageFolder(
        f"{bucket.url}/train", is_valid_file=lambda url: url.endswith("/00.jpg"), storage_options=bucket.options
    )
    assert [url.rpartition("/")[2] for url, _ in made.samples] == ["00.jpg"] * 3
    with pytest.raises(FileNotFoundError, match="for the classes class_a, class_c"):
        DALIImageFolder(f"{bucket.url}/train", is_valid_file=lambda url: "#1" in url, storage_options=bucket.options)
    with pytest.raises(FileNotFoundError, match="find any class folder in s3://bucket/nothing"):
        DALIImageFolder(f"{bucket.url}/nothing", storage_options=bucket.options)


def test_remote_folders_refuse_overridden_methods_and_unknown_options(bucket):
    class Overriding(DALIImageFolder):
        def find_classes(self, directory):
            return ["a"], {"a": 0}

    with pytest.raises(ValueError, match=r"Overriding overrides .*, so it needs a local folder"):
        Overriding(f"{bucket.url}/train", storage_options=bucket.options)
    with pytest.raises(ValueError, match="cannot open s3://bucket: "):
        DALIImageFolder(f"{bucket.url}/train", storage_options={"no_such_option": 1})


def test_a_custom_loader_receives_urls(folder, local, bucket):
    made = DALIImageFolder(f"{bucket.url}/train", loader=lambda url: url, storage_options=bucket.options)
    assert made[0] == (urls_of(local, bucket)[0], 0)
    with pytest.warns(FallbackWarning, match="a custom loader"):
        assert DataLoader(made, 2, device="cpu").explain().startswith("torchvision route")


def test_image_lists_of_urls_equal_local_ones(local, bucket):
    urls = urls_of(local, bucket)
    made = DALIImageList(urls, local.targets, EXACT, storage_options=bucket.options)
    assert made.samples == list(zip(urls, local.targets, strict=True))
    for _ in range(2):
        assert_same_epoch(ours(made, 5, num_workers=2, device="cpu"), stock(local, 5))
    assert torch.equal(made[4][0], local[4][0])
    names = [url.removeprefix(f"{bucket.url}/train/") for url in urls]
    assert DALIImageList(names, root=f"{bucket.url}/train", storage_options=bucket.options).paths == urls


def test_image_lists_of_a_web_server_equal_local_ones(local, bucket):
    urls = [bucket.key(url.removeprefix(f"{bucket.url}/")) for url in urls_of(local, bucket)]
    options = {"client_options": {"allow_http": True}}
    made = DALIImageList(urls, local.targets, EXACT, storage_options=options)
    assert_same_epoch(ours(made, 5, num_workers=2, device="cpu"), stock(local, 5))


def test_urls_and_files_in_one_list_are_refused(local, bucket):
    with pytest.raises(ValueError, match="some paths are URLs and others are files"):
        DALIImageList([local.samples[0][0], "s3://bucket/1.jpg"])


def test_tables_with_a_remote_root_check_their_files(local, bucket, tmp_path):
    names = [url.removeprefix(f"{bucket.url}/train/") for url in urls_of(local, bucket)]
    table = tmp_path / "table.csv"
    table.write_text("file,label\n" + "".join(f"{name},{name[6]}\n" for name in names))
    there = dict(root=f"{bucket.url}/train", storage_options=bucket.options)
    made = DALIImageTable(table, transform=EXACT, **there)
    assert made.classes == ["a", "b", "c"]
    assert_same_epoch(ours(made, 5, device="cpu"), stock(local, 5))
    table.write_text("file,label\nclass_a/00.jpg,a\nclass_a/gone.jpg,a\n")
    with pytest.raises(FileNotFoundError, match="1 of 2 files are missing: line 3: s3://bucket/train/class_a/gone"):
        DALIImageTable(table, **there)
    assert len(DALIImageTable(table, check_files=False, **there)) == 2


def test_a_file_url_is_a_local_path(local, files):
    made = DALIImageFolder((files / "train").as_uri(), EXACT)
    assert made.samples == local.samples
    uris = [Path(path).as_uri() for path, _ in local.samples]
    assert DALIImageList(uris).paths == [path for path, _ in local.samples]
    assert DALIImageList(["class_a/00.jpg"], root=(files / "train").as_uri()).paths == [local.samples[0][0]]


def test_torchs_loader_reads_objects_in_spawned_workers(local, folder):
    loader = data.DataLoader(folder, 6, num_workers=1, multiprocessing_context="spawn")
    assert torch.equal(folder[0][0], local[0][0])  # obstore is in use in this process
    assert_same_epoch(loader, stock(local, 6))


def test_torchs_loader_reads_objects_in_forked_workers(local, folder):
    """obstore does not work in forked processes."""
    loader = data.DataLoader(folder, 4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        assert_same_epoch(loader, stock(local, 4))


class Listing:
    """A data set that lists a bucket in a worker."""

    def __init__(self, bucket):
        self.bucket = bucket

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return len(DALIImageFolder(f"{self.bucket.url}/train", storage_options=self.bucket.options))


def test_listing_in_a_forked_worker_raises(folder, bucket):
    with pytest.raises(OSError, match="cannot list object storage"):
        next(iter(data.DataLoader(Listing(bucket), num_workers=1, multiprocessing_context="fork")))


def test_a_program_that_abandons_an_iterator_exits_silently(bucket):
    code = f"""
from torchvision import transforms as T
from dali_compat import DALIImageFolder, DataLoader
dataset = DALIImageFolder("{bucket.url}/train", T.Compose([T.CenterCrop(40), T.ToTensor()]),
                          storage_options={bucket.options!r})
batches = iter(DataLoader(dataset, 2, num_workers=3, device="cpu"))
next(batches)
"""
    made = programs.run(code)
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")


def test_a_pickled_folder_keeps_its_list_and_options(local, folder):
    made = pickle.loads(pickle.dumps(folder))
    assert made.samples == folder.samples
    assert_same_epoch(ours(made, 6, device="cpu"), stock(local, 6))


def test_a_rank_fetches_only_its_samples(local, folder):
    for rank in range(2):
        sampler = data.DistributedSampler(folder, 2, rank, shuffle=True, seed=1)
        loader = ours(folder, 3, sampler=sampler, num_workers=2, device="cpu")
        assert_same_epoch(loader, stock(local, 3, sampler=sampler))
        assert loader.stats().objects == 9


@pytest.mark.parametrize("target_transform", [None, lambda target: target + 1], ids=["in a thread", "in the caller's"])
def test_an_epoch_after_an_interrupted_one_is_complete(local, bucket, monkeypatch, target_transform):
    """A target_transform runs in the caller's thread, and the loader waits for objects in that thread as well."""
    mine = DALIImageFolder(f"{bucket.url}/train", EXACT, target_transform, storage_options=bucket.options)
    local.target_transform = target_transform
    take, calls = Fetcher.take, []

    def interrupted(self, records):
        calls.append(threading.current_thread() is threading.main_thread())
        errors = take(self, records)
        if len(calls) in (2, 5):
            raise KeyboardInterrupt
        return errors

    monkeypatch.setattr(Fetcher, "take", interrupted)
    loader = ours(mine, 3, num_workers=2, device="cpu")
    for _ in range(2):
        batches = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            list(batches)
        with pytest.raises(RuntimeError, match="starts another"):
            next(batches)
    assert (False in calls) is (target_transform is None)
    for (a, la), (b, lb) in zip(loader, stock(local, 3), strict=True):
        assert torch.equal(a, b) and torch.equal(la, lb)


def test_stats_and_explain_report_fetched_objects(local, folder, bucket, tmp_path):
    loader = ours(folder, 6, num_workers=2, device="cpu")
    assert loader.stats()[-4:] == (0, 0, 0, 0.0)
    list(loader)
    stats = loader.stats()
    size = sum(Path(path).stat().st_size for path, _ in local.samples)
    assert (stats.objects, stats.hits, stats.fetched) == (18, 0, size) and 0 < stats.network < 30
    assert f"; 18 objects fetched, {in_bytes(size)}, 0 of them from disk; {stats.network:.2f} s waiting" in str(stats)
    list(loader)
    assert loader.stats().objects == 36
    assert "\n  images come from object storage, fetched ahead of their batches\n" in loader.explain() + "\n"
    kept = DALIImageFolder(folder.root, EXACT, storage_options=bucket.options, disk_cache=(tmp_path, 2_000_000))
    loader = ours(kept, 6, device="cpu")
    for hits in (0, 18):
        list(loader)
        assert loader.stats().hits == hits
    assert f"; they are kept on disk ({tmp_path}, 2.0 MB)" in loader.explain()


def test_a_resumed_epoch_has_the_remaining_batches(local, folder):
    torch.manual_seed(0)
    loader = ours(folder, 4, shuffle=True, num_workers=2, device="cpu")
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(batches)
    again = ours(folder, 4, shuffle=True, num_workers=2, device="cpu")
    again.load_state_dict(state)
    for (a, la), (b, lb) in zip(again, rest, strict=True):
        assert torch.equal(a, b) and torch.equal(la, lb)


def test_missing_obstore_raises_with_the_install_command():
    code = """
import sys
sys.modules["obstore"] = None
from dali_compat import DALIImageFolder, DALIImageList
for make in (lambda: DALIImageFolder("s3://bucket/train"), lambda: DALIImageList(["gs://bucket/1.jpg"])):
    try:
        make()
    except ImportError as error:
        print(error)
"""
    made = programs.run(code)
    assert made.returncode == 0 and made.stdout == "object storage needs the obstore package: pip install obstore\n" * 2


def test_batches_from_a_moto_server_equal_local_ones(files, local, monkeypatch):
    """A third-party S3 server with signed requests; the credentials come from the environment."""
    from urllib.request import Request, urlopen

    import obstore

    ThreadedMotoServer = pytest.importorskip("moto.server").ThreadedMotoServer
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        urlopen(Request(f"{endpoint}/photos", method="PUT")).close()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
        options = {"endpoint": endpoint, "region": "us-east-1", "client_options": {"allow_http": True}}
        store = obstore.store.from_url("s3://photos", **options)
        for path in (files / "train").rglob("*.*"):
            if path.is_file():
                obstore.put(store, str(path.relative_to(files)), path)
        made = DALIImageFolder("s3://photos/train", EXACT, storage_options=options)
        assert made.targets == local.targets
        assert_same_epoch(ours(made, 5, num_workers=2, device="cpu"), stock(local, 5))
    finally:
        server.stop()
