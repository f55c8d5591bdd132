"""Run the tests' programs as forks of one interpreter that has already imported torch, torchvision and DALI.

These imports take seconds. The interpreter does not import dali_compat. Programs end with a normal interpreter exit,
not with os._exit.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import selectors
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import hung

REPOSITORY = Path(__file__).resolve().parents[1]
_TESTS = str(REPOSITORY / "tests")
_NUMBER = struct.Struct("<q")
_SERVER = f"""
import faulthandler, signal
faulthandler.register(signal.SIGUSR1)
import sys; sys.path[:0] = {[str(REPOSITORY), _TESTS]!r}
import programs
import torch, torchvision.transforms.v2, nvidia.dali.fn, nvidia.dali.plugin.base_iterator
exec(programs.serve(int(sys.argv[1])))
"""
_AS_PYTHON = f"""
import os, runpy, sys
given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
sys.path[:] = given + [path for path in sys.path if path not in {["", _TESTS]}]
if sys.argv[1] == "-m":
    del sys.argv[:2]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
_RANKS = """
import os, sys, torch
torch.set_num_threads(1)
pids = []
for rank in range(COUNT):
    pids.append(os.fork())
    if not pids[-1]:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(COUNT), LOCAL_WORLD_SIZE=str(COUNT))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT), TORCHELASTIC_USE_AGENT_STORE="True")
        break
else:
    sys.exit(any([os.waitpid(pid, 0)[1] for pid in pids]))
"""
_server: dict[int, socket.socket] = {}  # keyed by process: a fork of this process starts its own server


class Program:
    """A running program, with its ``pid`` and its ``stdout`` and ``stderr`` as binary files. It is killed when its
    ``with`` block ends."""

    def __init__(self, code: str, *args: str, new_session: bool = False):
        self._code = code
        (out, theirs_out), (err, theirs_err) = os.pipe(), os.pipe()
        try:
            request = code, args, dict(os.environ), os.getcwd(), new_session
            self.pid, self._server = _start(request, (theirs_out, theirs_err))
        finally:
            os.close(theirs_out)
            os.close(theirs_err)
        self.stdout, self.stderr = open(out, "rb", buffering=0), open(err, "rb", buffering=0)
        self.returncode: int | None = None

    def communicate(self, seconds: float = 280) -> tuple[str, str]:
        """Return the remaining output as (stdout, stderr). Waits until all processes have closed both.

        Raises:
            subprocess.TimeoutExpired: The program did not end within ``seconds``; its stacks are on stderr.
        """
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            said = dict.fromkeys((self.stdout, self.stderr), b"")
            for file in said:
                selector.register(file, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0, end - time.monotonic()))
                if not ready:
                    hung.report(self.pid)
                    self._kill()
                    rest = said[self.stderr].decode(errors="replace") + _rest(self.stderr)
                    print(rest, file=hung._stderr, flush=True)
                    raise subprocess.TimeoutExpired(self._code, seconds, *said.values())
                for key, _ in ready:
                    more = os.read(key.fd, 1 << 16)
                    said[key.fileobj] += more
                    if not more:
                        selector.unregister(key.fileobj)
        self._wait()
        out, err = (text.decode() for text in said.values())
        return out, err

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_) -> None:
        self._kill()
        self.stdout.close()
        self.stderr.close()

    def _kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # the process has ended
                os.kill(self.pid, 9)
            self._wait()

    def _wait(self) -> None:
        (status,) = _NUMBER.unpack(_exactly(self._server, _NUMBER.size))
        self.returncode = os.waitstatus_to_exitcode(status)


def run(code: str, *args: str, seconds: float = 280, new_session: bool = False) -> subprocess.CompletedProcess:
    """Run ``code`` and return its result, like subprocess.run(); see Program.communicate()."""
    with Program(code, *args, new_session=new_session) as program:
        out, err = program.communicate(seconds)
    return subprocess.CompletedProcess(code, program.returncode, out, err)


def python(*words: object, seconds: float = 280) -> subprocess.CompletedProcess:
    """Run ``python *words``: a file with arguments, or -m and a module with arguments."""
    return run(_AS_PYTHON, *map(str, words), seconds=seconds)


def ranks(count: int, *words: object, seconds: float = 280) -> subprocess.CompletedProcess:
    """Run ``torchrun --nproc-per-node count *words``, without torchrun's handling of failed ranks."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # on a free port
    code = f"COUNT, PORT = {count}, {store.port}\n{_RANKS}{_AS_PYTHON}"
    return run(code, *map(str, words), seconds=seconds)


def _rest(file) -> str:
    """Read the data that a pipe holds now."""
    os.set_blocking(file.fileno(), False)
    return (file.read() or b"").decode(errors="replace")


def _start(request: tuple, files: tuple[int, int]) -> tuple[int, socket.socket]:
    """Return the program's process id and the socket that its exit status will be sent to."""
    server = _server.get(os.getpid())
    if server is None:
        server, theirs = socket.socketpair()
        command = [sys.executable, "-c", _SERVER, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=REPOSITORY)
        theirs.close()
        _server.clear()
        _server[os.getpid()] = server
        atexit.register(lambda: (server.close(), process.wait()))
    data = pickle.dumps(request)
    socket.send_fds(server, [_NUMBER.pack(len(data))], files)
    server.sendall(data)
    return _NUMBER.unpack(_exactly(server, _NUMBER.size))[0], server


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError("the interpreter that forks programs has ended")
        data += more
    return data


def serve(fileno: int):
    """Serve requests in the forking interpreter. Returns a program's code in each forked process, and never in the
    server."""
    connection = socket.socket(fileno=fileno)
    while True:
        head, files, _, _ = socket.recv_fds(connection, _NUMBER.size, 2)
        if not head:
            os._exit(0)
        code, args, environment, folder, new_session = pickle.loads(_exactly(connection, *_NUMBER.unpack(head)))
        pid = os.fork()
        if pid == 0:
            connection.close()
            for file, standard in zip(files, (1, 2), strict=True):
                os.dup2(file, standard)
                os.close(file)
            if new_session:
                os.setsid()
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv[:] = ["-c", *args]
            return compile(code, "<string>", "exec")
        for file in files:
            os.close(file)
        connection.sendall(_NUMBER.pack(pid))
        connection.sendall(_NUMBER.pack(os.waitpid(pid, 0)[1]))
