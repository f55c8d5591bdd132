"""No message, representation or state has what may be a credential in a URL."""

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
from dali_compat.remote.urls import shown, split

MARK = "Xq7"  # in each secret, and nowhere else
CHARACTERS = string.ascii_letters + string.digits + "/@:?#%&=+~!$*;,-_."
TRANSFORM = T.Compose([T.CenterCrop(4), T.PILToTensor()])


def _secrets(characters: str = CHARACTERS) -> st.SearchStrategy[str]:
    part = st.text(characters, max_size=6)
    return st.tuples(part, part).map(MARK.join)


@st.composite
def urls(draw, path: str = "/train/1.jpg") -> str:
    """A URL with secrets in one or more of its parts. A token without a password has no "/", as in RFC 3986."""
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
def test_a_url_is_shown_without_its_secrets(url):
    assert MARK not in shown(url)
    for text in (f"GET {url}", f"error sending request for url ({url}): timed out", f"cannot open '{url}', or {url}"):
        assert MARK not in shown(text), shown(text)
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
def test_a_url_without_secrets_is_shown_as_it_is(url):
    assert shown(url) == url and shown(f"GET {url.replace(' ', '')}") == f"GET {url.replace(' ', '')}"
    split(url)


def _told(make) -> str:
    """What a data set, and loaders of it, say."""
    said = []
    try:
        dataset = make()
    except Exception as error:
        return f"{error!r} {error} {error.__cause__!r} {error.__context__!r}"
    said.append(repr(dataset))
    with contextlib.suppress(Exception):
        said.append(str(dataset[0]))
    for policy in ("raise", "skip"):
        loader = DataLoader(dataset, 1, device="cpu", on_error=policy)
        try:
            list(loader)
        except Exception as error:
            said.append(f"{error!r} {error}")
        said += [loader.explain(), str(loader.errors), str(loader.state_dict())]
    return "\n".join(said)


@pytest.mark.filterwarnings("ignore")
@given(urls())
@settings(max_examples=5, deadline=None)
def test_no_data_set_says_a_secret(url):
    for make in (
        lambda: DALIImageFolder(url, TRANSFORM),
        lambda: DALIImageList([url], [0], TRANSFORM),
        lambda: DALIImageTable({"path": [url], "label": [0]}, "path", "label", transform=TRANSFORM),
        *(lambda kind=kind: kind(url, TRANSFORM) for kind in (DALIRecordIO, DALITFRecord, DALIWebDataset)),
    ):
        said = _told(make)
        assert said and MARK not in said, said


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
