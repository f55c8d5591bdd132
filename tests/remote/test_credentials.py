"""Possible credentials in URLs are in no message, repr or state."""

import contextlib
import http.server
import string
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torchvision import transforms as T

from dali_compat import (
    DALIImageFolder,
    DALIImageList,
    DALIImageTable,
    DALIRecordIO,
    DALITFRecord,
    DALIWebDataset,
    DataLoader,
    ImageReadError,
)
from dali_compat.remote.urls import redacted, split

MARK = "Xq7"  # part of each secret, and of nothing else
CHARACTERS = string.ascii_letters + string.digits + "/@:?#%&=+~!$*;,-_."
TRANSFORM = T.Compose([T.CenterCrop(4), T.PILToTensor()])


def _secrets(characters: str = CHARACTERS) -> st.SearchStrategy[str]:
    part = st.text(characters, max_size=6)
    return st.tuples(part, part).map(MARK.join)


@st.composite
def urls(draw, path: str = "/train/1.jpg") -> str:
    """Draw a URL with secrets in one or more parts. A token without a password has no "/" (RFC 3986)."""
    scheme, host = draw(st.sampled_from([("https", "127.0.0.1"), ("http", "some.host:81"), ("s3", "bucket")]))
    user = draw(st.sampled_from(["", "token", "password"]))
    before, after = "", ""
    if user == "password" or scheme == "s3":
        before = f"{draw(st.text(string.ascii_letters + '.', max_size=4))}:{draw(_secrets())}@"
    elif user == "token":
        before = f"{draw(_secrets(string.ascii_letters + string.digits + '-_.=%'))}@"
    if scheme != "s3":
        after += draw(st.just("") | _secrets().map("?sig={}".format))
        after += draw(st.just("") | _secrets().map("#access_token={}".format))
        if not before + after:
            after = f"?{draw(_secrets())}"
    return f"{scheme}://{before}{host}{path}{after}"


@given(urls())
@example(f"https://127.0.0.1/train/1.jpg?A://{MARK}")
@example(f"s3://:A{MARK}A://@bucket/train/1.jpg")
@settings(max_examples=1000, deadline=None)
def test_shown_removes_secrets_from_urls(url):
    assert MARK not in redacted(url)
    for text in (f"GET {url}", f"error sending request for url ({url}): timed out", f"cannot open '{url}', or {url}"):
        assert MARK not in redacted(text), redacted(text)
    with pytest.raises(ValueError, match="a query, a fragment or a password") as met:
        split(url)
    assert MARK not in str(met.value)


@pytest.mark.parametrize("url", [
    "https://some.host/a/img@2x.jpg",
    "https://some.host/@scope/name@1.0/a b.jpg",
    "http://127.0.0.1:9000/a/1.jpg",
    "s3://bucket/a@b#c.jpg",
    "abfss://container@account.dfs.core.windows.net/a/1.jpg",
])  # fmt: skip
def test_shown_keeps_urls_without_secrets(url):
    assert redacted(url) == url and redacted(f"GET {url.replace(' ', '')}") == f"GET {url.replace(' ', '')}"
    split(url)


def _all_text(make) -> str:
    """Return all text that a data set and its loaders produce."""
    texts = []
    try:
        dataset = make()
    except Exception as error:
        return f"{error!r} {error} {error.__cause__!r} {error.__context__!r}"
    texts.append(repr(dataset))
    with contextlib.suppress(Exception):
        texts.append(str(dataset[0]))
    for policy in ("raise", "skip"):
        loader = DataLoader(dataset, 1, device="cpu", on_error=policy)
        try:
            list(loader)
        except Exception as error:
            texts.append(f"{error!r} {error}")
        texts += [loader.explain(), str(loader.errors), str(loader.state_dict())]
    return "\n".join(texts)


@pytest.mark.filterwarnings("ignore")
@given(urls())
@settings(max_examples=5, deadline=None)
def test_data_sets_and_loaders_show_no_secrets(url):
    for make in (
        lambda: DALIImageFolder(url, TRANSFORM),
        lambda: DALIImageList([url], [0], TRANSFORM),
        lambda: DALIImageTable({"path": [url], "label": [0]}, "path", "label", transform=TRANSFORM),
        *(lambda kind=kind: kind(url, TRANSFORM) for kind in (DALIRecordIO, DALITFRecord, DALIWebDataset)),
    ):
        texts = _all_text(make)
        assert texts and MARK not in texts, texts


class _Redirects(http.server.BaseHTTPRequestHandler):
    to = ""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.to)
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *arguments) -> None:
        pass


def test_a_redirect_to_a_url_with_secrets_is_not_shown():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Redirects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for secret in (f"u:{MARK}@127.0.0.1:9/1.jpg", f"{MARK}@127.0.0.1:9/1.jpg", f"127.0.0.1:9/1.jpg?sig={MARK}"):
            _Redirects.to = f"http://{secret}"
            url = f"http://127.0.0.1:{server.server_address[1]}/1.jpg"
            options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
            dataset = DALIImageList([url], [0], TRANSFORM, storage_options=options)
            with pytest.raises(ImageReadError, match="cannot read http") as met:
                dataset[0]
            assert MARK not in f"{met.value!r} {met.value}"
        server.shutdown()
