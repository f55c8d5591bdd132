"""Faults of a bucket raise errors, and cause no wrong or missing data and no hang."""

import contextlib
import json
import os
import pickle
import signal
import time
import warnings
import zipfile
from pathlib import Path
from urllib.request import urlopen

import programs
import pytest
import torch
from contract.both import EXACT, assert_same_epoch, ours, stock
from torchvision.datasets import ImageFolder

from dali_compat import BadImageWarning, DALIImageFolder, DALIImageList, ImageReadError
from dali_compat.remote.urls import redacted, split

KEY = "train/class_b/02.jpg"
SECRETS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "topsecret", "skip_signature": False}


def folder(server, **options) -> DALIImageFolder:
    return DALIImageFolder(f"{server.url}/train", EXACT, storage_options=server.options | options)


@pytest.mark.parametrize(
    "fault, kind, reason",
    [
        ("404", FileNotFoundError, "not found"),
        ("403", OSError, "403 Forbidden"),
        ("503", OSError, "after 3 retries.*503"),
        ("truncated", OSError, ""),
        ("reset", OSError, ""),
        ("etag", ValueError, r"it has changed \(etag .*\); create a new data set"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_raises_with_url_and_index_until_it_is_over(faulty, fault, kind, reason, workers):
    server, set_faults = faulty
    dataset = folder(server)
    loader = ours(dataset, 3, num_workers=workers, device="cpu")
    set_faults({KEY: fault})
    with pytest.raises(ImageReadError, match=rf"cannot read s3://bucket/{KEY}: .*{reason}.* \(index 8\)$") as met:
        list(loader)
    assert isinstance(met.value, kind) and "\n" not in str(met.value)
    with pytest.raises(kind, match=f"cannot read s3://bucket/{KEY}"):
        dataset[8]
    set_faults({})
    local = ImageFolder(Path(dataset.root.replace(server.url, str(files_of(server)))), EXACT)
    assert_same_epoch(loader, stock(local, 3))


def counts(server) -> dict[str, int]:
    with urlopen(f"{server.endpoint}/counts") as answer:
        return json.load(answer)


def files_of(server) -> str:
    return server._process.args[2]


REQUESTS = [("403", 1), ("404", 1), ("416", 1), ("503", 4), ("reset", 4), ("truncated", 4), ("etag", 1)]


@pytest.mark.parametrize("web", [False, True], ids=["bucket", "web"])
@pytest.mark.parametrize("fault, requests", REQUESTS)
def test_only_temporary_faults_are_retried(faulty, fault, requests, web):
    server, set_faults = faulty
    url, options = (server.key(KEY), server.options) if web else (f"{server.url}/{KEY}", server.options)
    if web:
        options = {name: options[name] for name in ("client_options", "retry_config")}
    dataset = DALIImageList([url], storage_options=options)
    dataset[0]  # its etag is known from now on
    set_faults({KEY: fault})
    before = counts(server)["GET"]
    with pytest.raises(ImageReadError):
        dataset[0]
    assert counts(server)["GET"] - before == requests + 1  # counts() itself sends one


def test_given_retry_options_are_used(faulty):
    server, set_faults = faulty
    set_faults({KEY: "503"})
    for retries, message in ((0, "503"), (2, "after 2 retries: .*503")):
        server.options["retry_config"]["max_retries"] = retries
        before = counts(server)["GET"]
        with pytest.raises(ImageReadError, match=message):
            DALIImageList([f"{server.url}/{KEY}"], storage_options=server.options)[0]
        assert counts(server)["GET"] - before == retries + 2


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_on_error_skips_or_replaces_unreadable_objects(faulty, policy):
    server, set_faults = faulty
    dataset = folder(server)
    set_faults({KEY: "404", "train/class_c/03.jpg": "403"})
    loader = ours(dataset, 4, num_workers=2, device="cpu", on_error=policy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BadImageWarning)
        images = torch.cat([batch[0] for batch in loader])
    assert len(images) == (16 if policy == "skip" else 18)
    assert f"s3://bucket/{KEY}, index 8, is {policy}".removesuffix("e") in str(caught[0].message)
    assert {one.path for one in loader.errors} == {f"s3://bucket/{KEY}", "s3://bucket/train/class_c/03.jpg"}
    assert [one.index for one in loader.errors] == [8, 15]
    set_faults({})  # objects are requested again in the next epoch
    with warnings.catch_warnings():
        warnings.simplefilter("error", BadImageWarning)
        assert sum(len(batch[0]) for batch in loader) == 18
    assert torch.equal(images[0], dataset[0][0])


def test_temporary_503_responses_are_retried_and_counted(faulty):
    server, set_faults = faulty
    dataset = folder(server)
    set_faults({"train/": "503 twice"})
    local = ImageFolder(f"{files_of(server)}/train", EXACT)
    loader = ours(dataset, 4, num_workers=3, device="cpu")
    assert_same_epoch(loader, stock(local, 4))
    stats = loader.stats()
    assert (stats.objects, stats.retries) == (18, 36) and "36 retries" in str(stats)


def test_a_damaged_object_raises_a_decoding_error(faulty, tmp_path):
    server, _ = faulty
    made = DALIImageList([f"{server.url}/train/class_c/notes.txt"], [0], EXACT, storage_options=server.options)
    with pytest.raises(ImageReadError, match=r"cannot decode s3://bucket/train/class_c/notes\.txt"):
        made[0]
    with pytest.raises(ImageReadError, match=r"cannot decode s3://bucket/train/class_c/notes\.txt, index 0"):
        list(ours(made, 1, device="cpu"))


def test_an_object_that_changes_between_epochs_raises(faulty):
    server, set_faults = faulty
    urls = [f"{server.url}/train/class_b/0{number}.jpg" for number in range(5)]
    loader = ours(DALIImageList(urls, None, EXACT, storage_options=server.options), 5, device="cpu")
    assert len(list(loader)) == 1
    set_faults({KEY: "etag"})
    with pytest.raises(ImageReadError, match=f"{KEY}: ValueError: it has changed"):
        list(loader)


def test_a_bucket_that_cannot_be_listed_raises(faulty):
    server, set_faults = faulty
    set_faults({"list/": "403"})
    with pytest.raises(ImageReadError, match=r"cannot read s3://bucket/train: .*403"):
        folder(server)


def test_credentials_are_in_no_message_state_repr_or_file(faulty, tmp_path):
    server, set_faults = faulty
    options = server.options | SECRETS
    lists, kept = tmp_path / "lists", tmp_path / "kept"
    dataset = DALIImageFolder(
        f"{server.url}/train", EXACT, storage_options=options, disk_cache=(kept, 1 << 30), index_cache=lists
    )
    loader = ours(dataset, 4, device="cpu", on_error="skip")
    set_faults({KEY: "404"})
    with pytest.warns(BadImageWarning) as caught:
        list(loader)
    made = [str(loader.state_dict()), repr(dataset), loader.explain(), str(loader.errors), *map(str, caught)]
    with pytest.raises(ImageReadError) as met:
        dataset[8]
    made += [str(met.value), repr(met.value), str(pickle.dumps(met.value)), repr(dataset._objects)]
    with pytest.raises(ValueError, match="cannot open s3://bucket") as refused:
        folder(server, **SECRETS, no_such_option="topsecret")
    made.append(str(refused.value))
    written = [path for place in (lists, kept) for path in place.rglob("*") if path.is_file()]
    assert len(written) == 18  # the list, and all objects but one
    for path in written:
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            made += [str(archive.read(name)) for name in archive.namelist()]
        made += [str(path), str(path.read_bytes())]
    assert [text for text in made if "topsecret" in text or "AKIAEXAMPLE" in text] == []


def test_urls_with_secrets_are_refused_and_not_shown():
    for url in ("https://me:pass@host/1.jpg", "https://host/1.jpg?sig=pass"):
        with pytest.raises(ValueError, match="a query, a fragment or a password") as met:
            split(url)
        assert "pass" not in str(met.value).replace("a password", "")
    assert redacted("GET https://a.b/c?sig=x: no (https://me:pw@a/b)") == "GET https://a.b/c no (https://a/b)"
    assert split("s3://bucket/a?b@c") == ("s3://bucket", "a?b@c")


def test_a_slow_object_is_an_error_after_the_timeout(faulty):
    from datetime import timedelta

    server, set_faults = faulty
    server.options["client_options"]["timeout"] = "300ms"
    server.options["retry_config"] |= {"max_retries": 1, "retry_timeout": timedelta(seconds=1)}
    dataset = folder(server)
    set_faults({KEY: "slow"})
    begin = time.monotonic()
    with pytest.raises(ImageReadError, match=f"cannot read s3://bucket/{KEY}"):
        list(ours(dataset, 4, num_workers=1, device="cpu"))
    assert time.monotonic() - begin < 30


WAITING = """
import sys, torch
from torchvision import transforms as T
from dali_compat import DALIImageFolder, DataLoader
options = {"endpoint": sys.argv[1], "skip_signature": True, "region": "us-east-1",
           "client_options": {"allow_http": True, "timeout": "600s"}}
dataset = DALIImageFolder("s3://bucket/train", T.Compose([T.CenterCrop(40), T.ToTensor()]), storage_options=options)
loader = DataLoader(dataset, 3, num_workers=int(sys.argv[2]), device="cpu", fallback="error")
print("begin", flush=True)
if sys.argv[3] == "one":
    dataset[8]
for images, _ in loader:
    print(len(images), flush=True)
"""


def test_torchs_workers_raise_the_same_errors(faulty):
    server, set_faults = faulty
    dataset = folder(server)
    set_faults({KEY: "404"})
    with pytest.raises(FileNotFoundError, match=f"cannot read s3://bucket/{KEY}: "):
        list(stock(dataset, 3, num_workers=1, multiprocessing_context="fork"))


@pytest.mark.parametrize("workers, how", [(0, "all"), (2, "all"), (0, "one")])
def test_an_interrupt_ends_a_program_that_waits_for_an_object(faulty, workers, how):
    server, set_faults = faulty
    set_faults({KEY: "slow"})
    with programs.Program(WAITING, server.endpoint, str(workers), how) as program:
        assert program.stdout.readline() == b"begin\n"
        while not counts(server).get("slow"):
            time.sleep(0.1)
        time.sleep(0.5)  # the object does not arrive
        os.kill(program.pid, signal.SIGINT)
        begin = time.monotonic()
        _, errors = program.communicate(120)
        # of the 600 s that a request may take; shutting down DALI takes seconds on a busy machine
        assert time.monotonic() - begin < 100
        assert "KeyboardInterrupt" in errors and program.returncode in (-signal.SIGINT, 130, 1)


def test_an_abandoned_epoch_ends_its_requests(faulty):
    server, set_faults = faulty
    dataset = folder(server)
    set_faults({"train/class_c/": "slow"})
    batches = iter(ours(dataset, 3, num_workers=4, device="cpu"))
    next(batches)
    fetcher = batches._epoch.fetcher
    begin = time.monotonic()
    del batches
    assert time.monotonic() - begin < 30  # of the 600 s that a request may take
    until = time.monotonic() + 60
    while (fetcher._running or fetcher._jobs) and time.monotonic() < until:
        time.sleep(0.01)
    assert (fetcher._running, len(fetcher._jobs), fetcher._held) == (0, 0, 0)
