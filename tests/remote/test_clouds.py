"""gs:// and az:// URLs: Google Cloud Storage's XML protocol on the tests' server, and Azurite if it is installed.

Install Azurite with npm install -g azurite.
"""

import base64
import datetime
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from contract.both import EXACT, assert_same_epoch, ours, stock
from torchvision.datasets import ImageFolder

from dali_compat import DALIImageFolder, DALIImageList, DALIRecordIO, ImageReadError
from dali_compat.archives.pack import pack
from remote.server import Running

ACCOUNT = "devstoreaccount1"
# the public key of all Azurite installations
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(params=["gs", "az"])
def cloud(request, tmp_path) -> Iterator[tuple[str, dict]]:
    """Return the URL of a bucket, and storage_options."""
    if request.param == "gs":
        names = ("client_email", "private_key", "private_key_id")
        with Running(tmp_path / "bucket") as running:
            account = {"gcs_base_url": running.endpoint, "disable_oauth": True, **dict.fromkeys(names, "")}
            yield "gs://bucket", {"service_account_key": json.dumps(account), "client_options": {"allow_http": True}}
        return
    server = shutil.which("azurite-blob")
    if server is None:
        pytest.skip("Azurite is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        server,
        "--silent",
        "--disableTelemetry",
        "--location",
        str(tmp_path / "azurite"),
        "--blobPort",
        f"{port}",
    ]
    process = subprocess.Popen(
        [*command, "--skipApiVersionCheck"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        make_container(endpoint)
        client = {"allow_http": True}
        yield (
            "az://container",
            {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint, "client_options": client},
        )
    finally:
        process.kill()
        process.wait()


def make_container(endpoint: str) -> None:
    """Create a container with Azure's REST operation "Create Container", which obstore lacks, using the shared key."""
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    lines = [f"{name}:{value}" for name, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}/{ACCOUNT}/container", "restype:container"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    until = time.monotonic() + 60
    while True:
        try:
            urlopen(Request(f"{endpoint}/container?restype=container", method="PUT", headers=headers)).close()
            return
        except OSError:  # not started yet
            assert time.monotonic() < until
            time.sleep(0.1)


def put(url: str, options: dict, file: Path | bytes, key: str) -> None:
    import obstore
    from obstore.store import from_url

    obstore.put(from_url(url, **options), key, file)


def test_folders_lists_and_archives_equal_local_ones_and_notice_changes(cloud, files, tmp_path):
    url, options = cloud
    local = ImageFolder(files / "train", EXACT)
    for path in (files / "train").rglob("*.*"):
        put(url, options, path, str(path.relative_to(files)))
    there = DALIImageFolder(f"{url}/train", EXACT, storage_options=options, index_cache=f"{url}/lists")
    urls = [path for path, _ in there.samples]
    assert [one.removeprefix(url) for one in urls] == [path.removeprefix(str(files)) for path, _ in local.samples]
    loader = ours(there, 4, num_workers=2, device="cpu")
    for _ in range(2):
        assert_same_epoch(loader, stock(local, 4))
    assert_same_epoch(
        ours(DALIImageList(urls, local.targets, EXACT, storage_options=options), 4, device="cpu"), stock(local, 4)
    )
    kept = DALIImageFolder(f"{url}/train", EXACT, storage_options=options, index_cache=f"{url}/lists")
    assert kept.samples == there.samples
    pack(files / "train", tmp_path / "all.rec")
    for name in ("all.rec", "all.idx"):
        put(url, options, tmp_path / name, name)
    archive = DALIRecordIO(f"{url}/all.rec", EXACT, storage_options=options)
    assert_same_epoch(ours(archive, 4, device="cpu"), stock(local, 4))
    put(url, options, b"another", urls[9].removeprefix(f"{url}/"))
    with pytest.raises(ImageReadError, match=r"it has changed \(etag"):
        there[9]
    gone = DALIImageList([f"{url}/train/none.jpg"], storage_options=options)
    with pytest.raises(FileNotFoundError, match=rf"cannot read {url}/train/none\.jpg: "):
        gone[0]
