# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Streams that send: include/strait_stream.h for CuPy, PyTorch, Numba and NumPy. docs/streams.md has the whole story.

    endpoint = stream.Endpoint()
    endpoint.connect(comm.sendrecv(endpoint.blob(), peer, source=peer))
    endpoint.send(x, cupy.cuda.get_current_stream())
    endpoint.receive(y, torch.cuda.current_stream())

A buffer is an object with __cuda_array_interface__ (arrays of CuPy and Numba, CUDA tensors of PyTorch) or with the buffer
protocol (NumPy, bytearray); it is contiguous, and lives until the stream has executed the call. A stream is an object of CuPy,
PyTorch or Numba, one with __cuda_stream__, a CUstream as a number, or None: the default stream of the thread's context.
"""
import ctypes
import errno
from collections import namedtuple
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from . import _buffer

NO_SIGNAL = 0xFFFFFFFF

#: What ended an endpoint: errno, operation ("send", "receive", "put", "wait" or ""), its slot or signal, the peer's process,
#: whether it failed there.
Failure = namedtuple("Failure", "code operation index peer by_peer")
#: Which way messages go ("device", "host" or "agent"), why, and how often an agent has polled.
Path = namedtuple("Path", "path why polls")


class Error(OSError):
    """A call failed: its errno and the library's words."""


class _Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("slots", c_uint32), ("slot_bytes", c_uint32), ("signals", c_uint32), ("flags", c_uint32),
                ("timeout_ns", c_uint64), ("key", c_char_p)]


class _Path(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("path", c_uint32), ("unused", c_uint32), ("why", c_char * 240), ("polls", c_uint64)]


class _Failure(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("code", c_int), ("operation", c_uint32), ("index", c_uint32), ("peer", c_uint32),
                ("by_peer", c_uint32), ("unused", c_uint32)]


class _Transfer(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("local", c_void_p), ("length", c_size_t), ("offset", c_uint64), ("region", c_uint32),
                ("signal", c_uint32)]


# Parameters behind the endpoint or list. Those of a stream have it first.
_BUFFER = (c_void_p, c_size_t)
_MOVES = {"send": _BUFFER, "receive": _BUFFER, "put": (POINTER(_Transfer),), "get": (POINTER(_Transfer),), "wait": (c_uint32,),
          "acknowledge": (c_uint32,)}
_ENDPOINT = {"register": (c_void_p, c_size_t, POINTER(c_uint32)), "blob": (c_char_p, POINTER(c_size_t)),
             "connect": (c_char_p, c_size_t), "query": (POINTER(_Path),), "failed": (POINTER(_Failure),),
             "error_word": (POINTER(c_void_p),), "abort": (), "close": (), "list_open": (c_size_t, POINTER(c_void_p))}
_LIST = {"run": (c_void_p,), "run_on_cpu": (), "close": (),
         "add_to_graph": (c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p))}
_library = None


def load(path=None):
    """The library, opened once: that of the package, or another one."""
    global _library
    if _library is None:
        if path is None:
            from . import xpu_library as path
        found = ctypes.CDLL(path)
        found.strait_stream_error.restype = c_char_p
        found.strait_stream_error.argtypes = ()
        found.strait_stream_open.argtypes = (POINTER(_Options), POINTER(c_void_p))
        for name, types in _ENDPOINT.items():
            getattr(found, "strait_stream_" + name).argtypes = (c_void_p,) + types
        for name, types in _MOVES.items():
            getattr(found, "strait_stream_" + name).argtypes = (c_void_p, c_void_p) + types
            getattr(found, "strait_stream_list_" + name).argtypes = (c_void_p,) + types
        for name, types in _LIST.items():
            getattr(found, "strait_stream_list_" + name).argtypes = (c_void_p,) + types
        _library = found
    return _library


def _call(name, *arguments):
    library = load()
    code = getattr(library, "strait_stream_" + name)(*arguments)
    if code:
        raise Error(-code, (library.strait_stream_error() or b"").decode(errors="replace"))


def buffer(of, writable=False):
    """The address and the bytes of a buffer."""
    if isinstance(of, (bytes, memoryview)) and memoryview(of).readonly:
        raise ValueError("the address of a buffer that may not be written is not known: pass a bytearray or an array")
    address, length, _ = _buffer.find(of, writable)
    return address, length


def handle(stream):
    """The CUstream of a stream, as a number."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("ptr", "cuda_stream", "handle"):
        found = getattr(stream, name, None)
        if found is not None:
            return int(getattr(found, "value", found) or 0)
    raise TypeError("not a stream: pass one of CuPy, PyTorch or Numba, a number, or None")


class _Moves:
    """What endpoints and lists have in common: `self._do(name, stream, *arguments)` does it."""

    def _transfer(self, name, stream, of, region, offset, signal, writable):
        address, length = buffer(of, writable)
        what = _Transfer(ctypes.sizeof(_Transfer), address, length, offset, region, NO_SIGNAL if signal is None else signal)
        self._do(name, stream, byref(what))

    def _send(self, stream, of):
        self._do("send", stream, *buffer(of))

    def _receive(self, stream, of):
        self._do("receive", stream, *buffer(of, True))


class Endpoint(_Moves):
    """One side of a connection to another process: of the host, or, with a key, of another one."""

    def __init__(self, slots=0, slot_bytes=0, signals=0, timeout=0.0, host_memory=False, by_agent=False, key=None):
        """0: the default. `timeout`: how long a stream waits at most for one operation, in seconds. `key`: bytes, a secret of both."""
        self._open = c_void_p()
        options = _Options(ctypes.sizeof(_Options), slots, slot_bytes, signals, int(host_memory) | 2 * int(by_agent),
                           int(timeout * 1e9), key)
        _call("open", byref(options), byref(self._open))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        else:
            self.abort()

    def _do(self, name, stream, *arguments):
        _call(name, self._handle(), handle(stream), *arguments)

    def _handle(self):
        if not self._open:
            raise Error(errno.EBADF, "the endpoint is closed")
        return self._open

    def register(self, of):
        """Device memory that the peer may put to and get from: the number of the registration. Before `blob`."""
        region = c_uint32()
        _call("register", self._handle(), *buffer(of, True), byref(region))
        return region.value

    def blob(self):
        """What the peer passes to `connect`."""
        room = 4096
        while True:
            bytes_, length = ctypes.create_string_buffer(room), c_size_t(room)
            try:
                _call("blob", self._handle(), bytes_, byref(length))
            except Error as e:
                if e.errno != errno.ENOSPC or length.value <= room:
                    raise
                room = length.value
            else:
                return bytes_.raw[: length.value]

    def connect(self, blob):
        """Waits for the peer's call."""
        _call("connect", self._handle(), bytes(blob), len(blob))

    def send(self, of, stream=None):
        """Queues a send."""
        self._send(stream, of)

    def receive(self, of, stream=None):
        """Queues a receive, of a message of the buffer's length."""
        self._receive(stream, of)

    def put(self, of, region, offset=0, signal=None, stream=None):
        """Queues a put into the peer's registration, and the signal behind it."""
        self._transfer("put", stream, of, region, offset, signal, False)

    def get(self, of, region, offset=0, stream=None):
        """Queues a get from the peer's registration."""
        self._transfer("get", stream, of, region, offset, None, True)

    def wait(self, signal, stream=None):
        """Queues a wait for a signal of the peer's."""
        self._do("wait", stream, signal)

    def acknowledge(self, signal, stream=None):
        """Queues that the peer may put with the signal again."""
        self._do("acknowledge", stream, signal)

    def list(self, entries):
        """A list with room for so many operations."""
        made = c_void_p()
        _call("list_open", self._handle(), entries, byref(made))
        return List(made)

    def query(self):
        """Which way messages go, and why."""
        path = _Path(size=ctypes.sizeof(_Path))
        _call("query", self._handle(), byref(path))
        return Path({1: "device", 2: "host", 3: "agent"}[path.path], path.why.decode(errors="replace"), path.polls)

    def failed(self):
        """What ended the endpoint; None: nothing did."""
        f = _Failure(size=ctypes.sizeof(_Failure))
        _call("failed", self._handle(), byref(f))
        names = ("", "send", "receive", "put", "wait")
        return Failure(f.code, names[f.operation], f.index, f.peer, bool(f.by_peer)) if f.code else None

    def error_word(self):
        """The address of a word for kernels: not 0 once the endpoint has failed."""
        word = c_void_p()
        _call("error_word", self._handle(), byref(word))
        return word.value

    def abort(self):
        """Each wait of a stream passes, and nothing is moved any more."""
        _call("abort", self._handle())

    def close(self):
        """EBUSY: a list is open, or a stream has not executed what it was given."""
        if self._open:
            _call("close", self._open)
            self._open = c_void_p()


class List(_Moves):
    """Operations that a stream, a graph or the CPU executes any number of times. Buffers live as long as the list."""

    def __init__(self, made):
        self._open, self._kept = made, []

    def _do(self, name, _stream, *arguments):
        _call("list_" + name, self._handle(), *arguments)

    def _handle(self):
        if not self._open:
            raise Error(errno.EBADF, "the list is closed")
        return self._open

    def send(self, of):
        """Adds a send."""
        self._send(None, of)
        self._kept.append(of)

    def receive(self, of):
        """Adds a receive."""
        self._receive(None, of)
        self._kept.append(of)

    def put(self, of, region, offset=0, signal=None):
        """Adds a put."""
        self._transfer("put", None, of, region, offset, signal, False)
        self._kept.append(of)

    def get(self, of, region, offset=0):
        """Adds a get."""
        self._transfer("get", None, of, region, offset, None, True)
        self._kept.append(of)

    def wait(self, signal):
        """Adds a wait for a signal of the peer's."""
        self._do("wait", None, signal)

    def acknowledge(self, signal):
        """Adds that the peer may put with the signal again."""
        self._do("acknowledge", None, signal)

    def run(self, stream=None):
        """Queues the list in a stream. Where that is being captured it becomes part of the graph."""
        _call("list_run", self._handle(), handle(stream))

    def run_on_cpu(self):
        """Executes the list by the calling thread."""
        _call("list_run_on_cpu", self._handle())

    def add_to_graph(self, graph, after=()):
        """Adds nodes to a CUgraph, behind nodes of it; the node behind all of them, as a number."""
        nodes, last = (c_void_p * max(len(after), 1))(*after), c_void_p()
        _call("list_add_to_graph", self._handle(), graph, nodes, len(after), byref(last))
        return last.value

    def close(self):
        """EBUSY: a stream has not executed it."""
        if self._open:
            _call("list_close", self._open)
            self._open, self._kept = c_void_p(), []
