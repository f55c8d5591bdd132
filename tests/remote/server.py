"""A local object server for tests and benchmarks: S3's GET, PUT and lists for a folder, with latency and faults.

Runs in a separate process: python tests/remote/server.py FOLDER SECONDS PAGE [FAULTS]

A list has PAGE entries at a time. FAULTS is a JSON file, {key: fault}, read at every request; a key that ends with "/"
applies to all objects below it.
Faults: "403", "404", "416", "503", "503 twice" (the third request succeeds), "truncated", "reset", "slow" (no answer
for an hour), "etag".
GET /counts returns the number of requests so far.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


class Server:
    def __init__(self, root: Path, latency: float, page: int, faults: Path | None):
        self.root, self.latency, self.page, self.faults = root, latency, page, faults
        self.counts: dict[str, int] = {}
        self.tried: dict[str, int] = {}
        self.bodies: dict[Path, bytes] = {}

    def fault(self, key: str) -> str:
        faults = json.loads(self.faults.read_text()) if self.faults and self.faults.exists() else {}
        below = (fault for name, fault in faults.items() if name[-1] == "/" and key.startswith(name))
        return faults.get(key) or next(below, "")

    def body(self, key: str) -> bytes | None:
        path = self.root / key
        if path not in self.bodies or self.faults:
            if not path.is_file():
                return None
            self.bodies[path] = path.read_bytes()
        return self.bodies[path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
                method, target, _ = head[0].split(" ", 2)
                self.counts[method] = self.counts.get(method, 0) + 1
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                await asyncio.sleep(self.latency)
                if method == "PUT":
                    path = self.root / unquote(urlsplit(target).path).removeprefix(f"/{BUCKET}/")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    body = await reader.readexactly(int(headers["content-length"]))
                    denied = self.fault("put/") == "403"
                    if not denied:
                        path.write_bytes(body)
                        self.bodies.pop(path, None)
                    status = "403 Forbidden" if denied else '200 OK\r\nETag: "0"'
                    await self.send(writer, status, b"<Error><Code>AccessDenied</Code></Error>" if denied else b"")
                    continue
                if not await self.answer(target, headers, writer, method == "HEAD"):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, target: str, headers: dict[str, str], writer: asyncio.StreamWriter, head: bool) -> bool:
        """Answer a request; return True if the connection stays open."""
        url = urlsplit(target)
        if url.path == "/counts":
            return await self.send(writer, "200 OK", json.dumps(self.counts).encode())
        key = unquote(url.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        if "list-type" in url.query:
            query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            if self.fault("list/") == "403":
                return await self.send(writer, "403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>")
            return await self.send(writer, "200 OK", self.list_page(query))
        fault, body = self.fault(key), self.body(key)
        self.tried[key] = self.tried.get(key, 0) + 1
        if fault == "404" or body is None:
            return await self.send(writer, "404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
        if fault == "403":
            return await self.send(writer, "403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>")
        if fault == "416":
            return await self.send(writer, "416 Range Not Satisfiable", b"")
        if fault == "503" or (fault == "503 twice" and self.tried[key] <= 2):
            return await self.send(writer, "503 Slow Down", b"<Error><Code>SlowDown</Code></Error>")
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "slow":
            self.counts["slow"] = self.counts.get("slow", 0) + 1
            await asyncio.sleep(3600)
        etag = hashlib.md5(body).hexdigest() + ("-2" if fault == "etag" else "")
        extra = f'ETag: "{etag}"\r\nLast-Modified: Wed, 25 Nov 2026 13:00:00 GMT\r\n'
        status = "200 OK"
        if "range" in headers:
            first, last = headers["range"].removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last or len(body)) + 1, len(body))
            status, extra = "206 Partial Content", f"{extra}Content-Range: bytes {begin}-{end - 1}/{len(body)}\r\n"
            body = body[begin:end]
        length = len(body)
        if fault == "truncated":
            body = body[: length // 2]
        body = b"" if head else body
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{extra}\r\n".encode() + body)
        await writer.drain()
        return fault != "truncated"

    async def send(self, writer: asyncio.StreamWriter, status: str, body: bytes) -> bool:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return True

    def list_page(self, query: dict[str, str]) -> bytes:
        """Return a page of ListObjectsV2."""
        page, prefix, delimiter, after = (
            self.page,
            query.get("prefix", ""),
            query.get("delimiter"),
            query.get("continuation-token", ""),
        )
        keys = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())
        keys = [key for key in keys if key.startswith(prefix)]
        folders = {f"{prefix}{key[len(prefix) :].partition('/')[0]}/" for key in keys if "/" in key[len(prefix) :]}
        if delimiter:
            keys = sorted([key for key in keys if "/" not in key[len(prefix) :]] + list(folders))
        keys = [key for key in keys if key > after]
        rows = []
        for key in keys[:page]:
            if key.endswith("/"):
                rows.append(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>")
                continue
            data = (self.root / key).read_bytes()
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-25T13:00:00.000Z</LastModified>"
                f'<ETag>"{hashlib.md5(data).hexdigest()}"</ETag><Size>{len(data)}</Size></Contents>'
            )
        more = len(keys) > page
        token = f"<NextContinuationToken>{escape(keys[page - 1])}</NextContinuationToken>" if more else ""
        return (
            f"<?xml version='1.0'?><ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(rows)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(rows)}</ListBucketResult>"
        ).encode()


async def run(root: Path, latency: float, page: int, faults: Path | None) -> None:
    server = await asyncio.start_server(
        Server(root, latency, page, faults).serve, "127.0.0.1", 0, limit=1 << 20, backlog=1000
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


class Running:
    """Context manager that runs the server in a process.

    Attributes:
        options: storage_options for a data set.
        url: URL of the served folder, s3://bucket.
    """

    def __init__(self, root: Path, latency: float = 0.0, page: int = 1000, faults: Path | None = None):
        command = [sys.executable, __file__, str(root), str(latency), str(page), *([str(faults)] if faults else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.url, self.web = f"s3://{BUCKET}", f"{self.endpoint}/{BUCKET}"
        self.options = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "skip_signature": True,
            "client_options": {"allow_http": True, "timeout": "5s"},
        }

    def key(self, key: str) -> str:
        return f"{self.web}/{quote(key)}"

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error) -> None:
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    asyncio.run(
        run(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
    )
