"""URLs of objects, and errors that name them without credentials."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from ..errors import ImageReadError, read_error

_WEB = "http", "https"
_HOST = re.compile(r"[\w-]+(\.[\w-]+)+")
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "hf", *_WEB)
# Finds URLs within a text. A query or fragment extends to the end of the word, because it may contain a URL. A password
# may contain "://", so only a known scheme begins another URL.
_ANOTHER = rf"(?:{'|'.join((*_SCHEMES, 'file'))})://"
_URL = re.compile(rf"[a-zA-Z][\w+.-]*://(?:(?!(?i:{_ANOTHER}))[^\s\"'<>?#])*(?:[?#][^\s\"'<>]*)?")


class UrlPart(str):
    """The bytes of an object from ``start`` up to ``end`` (exclusive), without the ``holes``. A hole is (begin, end)
    relative to ``start``."""

    url: str
    start: int
    end: int
    holes: tuple[tuple[int, int], ...]

    def __new__(cls, url: str, start: int, end: int, holes: tuple[tuple[int, int], ...] = ()) -> UrlPart:
        made = super().__new__(cls, f"{url}, bytes {start} to {end}")
        made.url, made.start, made.end, made.holes = url, start, end, holes
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.url, self.start, self.end, self.holes


def object_url(url: str) -> str:
    """Return the URL of the whole object."""
    return url.url if isinstance(url, UrlPart) else url


def is_url(path: Any) -> bool:
    """Return True if a path is a URL of object storage or a web server."""
    return isinstance(path, str) and path.partition("://")[0].lower() in _SCHEMES and "://" in path


def is_web(url: str) -> bool:
    return url.partition("://")[0].lower() in _WEB


def without_scheme(path: Any) -> Any:
    """Convert a ``file://`` URL to a path. Return any other path or URL unchanged."""
    if isinstance(path, str) and path[:7].lower() == "file://":
        return url2pathname(urlsplit(path).path)
    return path


def are_urls(paths: Iterable[Any]) -> bool:
    """Return True if all paths are URLs, and False if none is. Raise ValueError if only some are."""
    kinds = set(map(is_url, paths))
    if len(kinds) > 1:
        raise ValueError("some paths are URLs and others are files; combine a data set of each with ConcatDataset")
    return True in kinds


def split(url: str) -> tuple[str, str]:
    """Return (URL of the bucket or server, key of the object).

    Raise ValueError if the URL contains credentials, or if a web server's URL has a query or fragment.
    """
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    if (redacted(url) if is_web(url) else _without_user(url)) != url:
        what = "URLs with a query, a fragment or a password are not supported"
        raise ValueError(f"{what}: {redacted(url)}; put credentials into storage_options")
    return f"{scheme}://{host}", unquote(key) if is_web(url) else key


def joined(root: str, key: str) -> str:
    """Join the URL of a bucket or server and the key of an object. This is the inverse of split()."""
    return f"{root}/{quote(key) if is_web(root) else key}"


def redacted(text: str) -> str:
    """Remove user names, passwords, queries and fragments from a URL or the URLs in a text."""
    return _redacted_url(text) if is_url(text) else _URL.sub(lambda found: _redacted_url(found[0]), text)


def _redacted_url(url: str) -> str:
    return re.split(r"[?#]" if is_web(url) else r"\?", _without_user(url), maxsplit=1)[0]


def _without_user(url: str) -> str:
    """Remove user name and password from a URL. A password may contain any character, even "/" and "@"."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    plain = _HOST.fullmatch(authority) if is_web(url) else ":" not in authority
    if plain or "@" not in rest:
        return url
    before, _, after = rest.rpartition("@")
    # the "@" may belong to the password, the query or the fragment
    return f"{scheme}://{'...' if re.search('[?#]', before) else after}"


def as_read_error(url: str, error: Exception) -> Exception:
    """Convert an error to an ImageReadError that names the URL and the reason, without credentials."""
    if isinstance(error, ImageReadError):
        return error
    made = read_error(f"cannot read {redacted(url)}: {reason_of(error)}", error)
    made.__cause__ = None  # the original message contains the whole request, with credentials
    return made


def reason_of(error: BaseException) -> str:
    """Return the class and the first line of an error, without credentials or the body of the response."""
    line = str(error).partition("\n")[0].partition(": <")[0]
    return f"{type(error).__name__}: {redacted(line)}"
