"""Finds the keys and values of an LMDB database in its file, without the lmdb package.

LMDB itself believes every page: of the 800 damaged databases that tests/faults/test_archives.py makes of seeds 0 to
399, 35 ended the process (SIGBUS). This walk believes none: whatever a page says is compared with the file's size
first, and there are no more visits than pages. LMDB also has no offsets in the file, which an index needs, and its
environments do not survive a fork.

Source: LMDB 0.9's mdb.c (MDB_page, MDB_node, MDB_db, MDB_meta), of a 64-bit machine. A page has 16 bytes of header
(page number, unused, flags, and where its free room begins and ends), then the positions of its nodes, 2 bytes each. A
node has two halves of 16 bits, flags, the key's size, the key, and in a leaf the value or, where that is large, the
number of the first of its overflow pages. In a branch the halves and the flags are the number of a page. Pages 0 and 1
are metas; the one with the later transaction counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .index import corrupt, refused

_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<IIQQ")  # magic, version, address, size of the map
_DB = struct.Struct("<IHHQQQQQ")  # page size (of the first), flags, depth, pages of 3 kinds, entries, root
_END = struct.Struct("<QQ")  # last page, transaction
_NUMBER = struct.Struct("<Q")
_MAGIC, _VERSION, _NO_PAGE = 0xBEEFC0DE, 1, (1 << 64) - 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_KINDS = 0x6F  # bits of a page's flags; another says that LMDB is writing it
_BIG, _SUB_DATABASE, _DUPLICATES = 1, 2, 4
_SMALLEST, _LARGEST = 512, 1 << 16  # sizes of a page


class Database:
    """The whole file, ``data`` (mapped). Raises ImageReadError if it is damaged, ValueError if it is of a kind that
    cannot be used.

    Attributes:
        entries: keys that it says it has.
    """

    def __init__(self, data: memoryview, path: str):
        self._data, self._path = data, path
        self._page = self._page_size()
        _, self.entries, self._root = max(self._meta(at) for at in (0, self._page))
        self._pages = len(data) // self._page

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Yields (key, begin of the value in the file, its length), in the order of the keys."""
        self._used = bytearray(self._pages)
        todo, found = [] if self._root == _NO_PAGE else [self._root], 0
        while todo:
            number = todo.pop()
            begin, flags, nodes = self._nodes(number)
            self._use(number)
            if flags == _LEAF:
                yield from (self._item(begin, node, number) for node in nodes)
                found += len(nodes)
            else:
                todo += [self._child(begin, node) for node in reversed(nodes)]
        if found != self.entries:
            raise corrupt(self._path, "its pages", f"they hold {found} keys, not the {self.entries} that it says")

    def _page_size(self) -> int:
        if len(self._data) < _HEADER.size + _META.size + _DB.size:
            raise corrupt(self._path, "byte 0", "it is too short for an LMDB database")
        magic, version, _, _ = _META.unpack_from(self._data, _HEADER.size)
        if magic != _MAGIC or version != _VERSION:
            raise corrupt(
                self._path, "byte 16", "it is no LMDB database, or not of a 64-bit machine of this byte order"
            )
        size = _DB.unpack_from(self._data, _HEADER.size + _META.size)[0]
        if not _SMALLEST <= size <= _LARGEST or size & (size - 1):
            raise corrupt(self._path, "byte 40", f"its pages have {size} bytes")
        return size

    def _meta(self, at: int) -> tuple[int, int, int]:
        """Returns (transaction, entries, root) of a meta page."""
        begin = at + _HEADER.size
        if at + self._page > len(self._data):
            raise corrupt(self._path, f"byte {len(self._data)}", "the file ends within its first two pages")
        magic, version, _, _ = _META.unpack_from(self._data, begin)
        flags = _HEADER.unpack_from(self._data, at)[2]
        if magic != _MAGIC or version != _VERSION or not flags & _META_PAGE:
            raise corrupt(self._path, f"byte {at}", "it is no meta page of LMDB")
        main = begin + _META.size + _DB.size
        _, flags, _, _, _, _, entries, root = _DB.unpack_from(self._data, main)
        if flags & _DUPLICATES:
            raise refused(self._path, f"byte {at}", "the database has sorted duplicates, not one value a key")
        return _END.unpack_from(self._data, main + _DB.size)[1], entries, root

    def _nodes(self, number: int) -> tuple[int, int, list[int]]:
        """Returns (begin of a page in the file, its kind, where its nodes begin in it)."""
        begin = number * self._page
        if not 2 <= number < self._pages:
            raise corrupt(self._path, f"page {number}", f"the file has {self._pages} pages")
        found, _, flags, lower, _ = _HEADER.unpack_from(self._data, begin)
        if found != number or flags & _KINDS not in (_BRANCH, _LEAF) or not _HEADER.size <= lower <= self._page:
            raise corrupt(self._path, f"page {number} at byte {begin}", "it is no page of keys")
        count = (lower - _HEADER.size) // 2
        nodes = struct.unpack_from(f"<{count}H", self._data, begin + _HEADER.size)
        if count and not _HEADER.size <= min(nodes) <= max(nodes) <= self._page - _NODE.size:
            raise corrupt(self._path, f"page {number} at byte {begin}", "a key lies outside it")
        return begin, flags & _KINDS, list(nodes)

    def _child(self, begin: int, node: int) -> int:
        low, high, top, _ = _NODE.unpack_from(self._data, begin + node)
        return low | high << 16 | top << 32

    def _item(self, begin: int, node: int, number: int) -> tuple[bytes, int, int]:
        low, high, flags, key_size = _NODE.unpack_from(self._data, begin + node)
        where, size = f"page {number} at byte {begin}", low | high << 16
        if flags & (_SUB_DATABASE | _DUPLICATES):
            raise refused(self._path, where, "it holds another database or sorted duplicates, not one value a key")
        at = begin + node + _NODE.size + key_size
        end = begin + self._page
        inline = _NUMBER.size if flags & _BIG else size
        if at + inline > end:
            raise corrupt(self._path, where, "a key or a value ends outside it")
        key = bytes(self._data[at - key_size : at])
        if flags & _BIG:
            at = self._overflow(_NUMBER.unpack_from(self._data, at)[0], size, where)
        return key, at, size

    def _overflow(self, number: int, size: int, where: str) -> int:
        """Returns the begin of a value that has pages of its own."""
        begin = number * self._page
        if not 2 <= number < self._pages or begin + _HEADER.size + size > len(self._data):
            raise corrupt(self._path, where, f"its value of {size} bytes, at page {number}, is not in the file")
        found, _, flags, _, _ = _HEADER.unpack_from(self._data, begin)
        if found != number or flags != _OVERFLOW:
            raise corrupt(self._path, where, f"page {number} holds no value")
        self._use(number)
        return begin + _HEADER.size

    def _use(self, number: int) -> None:
        """Marks a page as visited. A second way to it is damage: another page is missing there."""
        if self._used[number]:
            raise corrupt(self._path, f"page {number}", "two of its pages or keys lead there")
        self._used[number] = True
