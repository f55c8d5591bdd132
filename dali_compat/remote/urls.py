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
# In a text. A query or fragment may have a URL in it; it ends with the word.
_URL = re.compile(r"[a-zA-Z][\w+.-]*://(?:(?![a-zA-Z]+://)[^\s\"'<>?#])*(?:[?#][^\s\"'<>]*)?")
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "hf", *_WEB)


class UrlPart(str):
    """Names bytes of an object: from ``start`` up to ``end``, without the ``holes``, (start, end) within these."""

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


def whole(url: str) -> str:
    """Returns the URL of the object that a URL or a UrlPart is of."""
    return url.url if isinstance(url, UrlPart) else url


def is_url(path: Any) -> bool:
    """Returns True if a path is a URL of object storage or a web server."""
    return isinstance(path, str) and path.partition("://")[0].lower() in _SCHEMES and "://" in path


def is_web(url: str) -> bool:
    """Returns True for a URL of a web server."""
    return url.partition("://")[0].lower() in _WEB


def without_scheme(path: Any) -> Any:
    """Returns the path of a ``file://`` URL; any other path as it is."""
    if isinstance(path, str) and path[:7].lower() == "file://":
        return url2pathname(urlsplit(path).path)
    return path


def are_urls(paths: Iterable[Any]) -> bool:
    """Returns True if paths are URLs, and False if none is. Raises ValueError if only some are."""
    kinds = set(map(is_url, paths))
    if len(kinds) > 1:
        raise ValueError("some paths are URLs and others are files: make two data sets, and a ConcatDataset of them")
    return True in kinds


def split(url: str) -> tuple[str, str]:
    """Returns the URL of an object's bucket, or of its server, and its key there. Raises ValueError for credentials in
    the URL, and for a query or a fragment of a web server's."""
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    if (shown(url) if is_web(url) else _without_user(url)) != url:
        what = "a URL with a query, a fragment or a password is not read"
        raise ValueError(f"{what}: {shown(url)}; sign requests by storage_options")
    return f"{scheme}://{host}", unquote(key) if is_web(url) else key


def joined(root: str, key: str) -> str:
    """Returns the URL of a key of split()'s."""
    return f"{root}/{quote(key) if is_web(root) else key}"


def shown(text: str) -> str:
    """Returns a URL, or a text with URLs in it, without what may be a credential: users, passwords, tokens, queries and
    fragments."""
    return _presentable(text) if is_url(text) else _URL.sub(lambda found: _presentable(found[0]), text)


def _presentable(url: str) -> str:
    return re.split(r"[?#]" if is_web(url) else r"\?", _without_user(url), maxsplit=1)[0]


def _without_user(url: str) -> str:
    """Returns a URL without what comes before its host. Passwords may hold any character, "/" and "@" too."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    plain = _HOST.fullmatch(authority) if is_web(url) else ":" not in authority
    if plain or "@" not in rest:
        return url
    before, _, after = rest.rpartition("@")
    return f"{scheme}://{'...' if re.search('[?#]', before) else after}"  # which of these an "@" is in, nobody knows


def failed(url: str, error: Exception) -> Exception:
    """Returns an ImageReadError that names the URL and the reason, without credentials."""
    if isinstance(error, ImageReadError):
        return error
    made = read_error(f"cannot read {shown(url)}: {reason_of(error)}", error)
    made.__cause__ = None  # whose text has whole requests
    return made


def reason_of(error: BaseException) -> str:
    """Returns the class and the first line of an error, without credentials and the server's whole answer."""
    line = str(error).partition("\n")[0].partition(": <")[0]
    return f"{type(error).__name__}: {shown(line)}"
