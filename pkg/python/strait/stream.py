# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Streams that send: include/strait_stream.h for CuPy, PyTorch, Numba and NumPy. docs/streams.md has the whole story.

    endpoint = stream.Endpoint()
    endpoint.connect(comm.sendrecv(endpoint.blob(), peer, source=peer))
    endpoint.send(x, cupy.cuda.get_current_stream())
    endpoint.receive(y, torch.cuda.current_stream())

A buffer is an object with __cuda_array_interface__ (arrays of CuPy and Numba, CUDA tensors of PyTorch) or with the buffer
protocol (NumPy, bytearray); it is contiguous. An endpoint keeps it, and the stream, until the stream has executed the call, and a
list until the list is closed; what else writes to it is ordered by the program. A stream is an object of CuPy,
PyTorch or Numba, one with __cuda_stream__, a CUstream as a number, or None: the default stream of the thread's context.

Threads wait for each other's calls of an endpoint and its lists. While one is in `connect` or `run_on_cpu`, which wait for the
peer, other calls give EBUSY, but `abort`: that ends the wait. So does the time limit, and of `connect` KeyboardInterrupt, which
`run_on_cpu` raises when the wait has ended.
"""
import ctypes
import errno
import operator
import os
import threading
import warnings
import weakref
from collections import deque, namedtuple
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from . import _buffer

NO_SIGNAL = 0xFFFFFFFF

#: What ended an endpoint: errno, operation ("send", "receive", "put", "wait", "get" or ""), its slot or signal, the peer's process,
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


_ACKNOWLEDGE_AND_PUT = "acknowledge_and_put"
# Parameters behind the endpoint or list. Those of a stream have it first.
_BUFFER = (c_void_p, c_size_t)
_MOVES = {"send": _BUFFER, "receive": _BUFFER, "put": (POINTER(_Transfer),), "get": (POINTER(_Transfer),), "wait": (c_uint32,),
          "acknowledge": (c_uint32,)}
_ENDPOINT = {"register": (c_void_p, c_size_t, POINTER(c_uint32)), "blob": (c_char_p, POINTER(c_size_t)),
             "connect": (c_char_p, c_size_t), "query": (POINTER(_Path),), "failed": (POINTER(_Failure),),
             "error_word": (POINTER(c_void_p),), "abort": (), "close": (), "list_open": (c_size_t, POINTER(c_void_p)),
             "executed": (POINTER(c_uint64), POINTER(c_uint64)), _ACKNOWLEDGE_AND_PUT: (c_void_p, c_uint32, POINTER(_Transfer))}
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


def _aside(call, abort):
    """A call that waits, by a thread of its own in the context of this one: an exception of a handler ends it by `abort`."""
    try:
        driver, context = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD), c_void_p()
        driver.cuCtxGetCurrent(byref(context))
    except OSError:
        driver = None
    failed = []

    def run():
        try:
            if driver is not None:
                driver.cuCtxSetCurrent(context)
            call()
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=run, name="strait-stream-wait")
    try:
        thread.start()
        thread.join()
    except BaseException:
        abort()
        while thread.is_alive():
            thread.join()
        raise
    if failed:
        raise failed[0]


def _find(of, writable):
    """The address and the bytes of a buffer, and what keeps them."""
    address, length, kept = _buffer.find(of, writable)
    if isinstance(kept[1], bytes):
        raise ValueError("the address of a buffer that may not be written is not known: pass a bytearray or an array")
    return address, length, kept


def buffer(of, writable=False):
    """The address and the bytes of a buffer."""
    return _find(of, writable)[:2]


def _number(value, bits, what):
    """A number that has room in so many bits: ctypes would cut it."""
    value = operator.index(value)
    if not 0 <= value < 1 << bits:
        raise ValueError("{} is not a number of {} bits".format(what, bits))
    return value


def _signal(value):
    if value == NO_SIGNAL:
        raise ValueError("no signal has this number: pass None for none")
    return _number(value, 32, "the signal")


def handle(stream):
    """The CUstream of a stream, as a number."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return _number(stream, 64, "the stream")
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("ptr", "cuda_stream", "handle"):
        found = getattr(stream, name, None)
        if found is not None:
            return int(getattr(found, "value", found) or 0)
    raise TypeError("not a stream: pass one of CuPy, PyTorch or Numba, a number, or None")


class _Turn:
    """One thread at a time is in a call of an endpoint and its lists, and none of a forked child."""

    def __init__(self):
        self._lock, self._process, self._owner, self._waits = threading.Lock(), os.getpid(), None, False

    def is_parents(self):
        """Whether this process is a forked child of the endpoint's."""
        return os.getpid() != self._process

    def check(self):
        """ECHILD in a forked child."""
        if self.is_parents():
            raise Error(errno.ECHILD, "the endpoint belongs to the parent of this process: open another")

    def __enter__(self):
        self.check()
        me, of_none = threading.get_ident(), 0
        # This thread's is a call that a handler of a signal has interrupted; and an exception of one may leave the lock taken.
        while self._owner == me or not self._lock.acquire(timeout=0.01):
            of_none = 0 if self._owner else of_none + 1
            if self._waits or self._owner == me or of_none == 100:
                raise Error(errno.EBUSY, "another call of the endpoint is under way: wait for it, or abort")
        self._owner = me

    def __exit__(self, *_):
        self._owner, self._waits = None, False
        self._lock.release()

    def waits(self):
        """The call of this turn waits for the peer."""
        self._waits = True


class _Moves:
    """What endpoints and lists have in common: `self._do(name, stream, kept, *arguments)` does it."""

    def __reduce__(self):
        raise TypeError("an endpoint and its lists are not copied")

    def _transfer(self, name, stream, of, region, offset, signal, writable, *before):
        address, length, kept = _find(of, writable)
        what = _Transfer(ctypes.sizeof(_Transfer), address, length, _number(offset, 64, "the offset"),
                         _number(region, 32, "the registration"), NO_SIGNAL if signal is None else _signal(signal))
        self._do(name, stream, kept, *before, byref(what))

    def _send(self, stream, of):
        address, length, kept = _find(of, False)
        self._do("send", stream, kept, address, length)

    def _receive(self, stream, of):
        address, length, kept = _find(of, True)
        self._do("receive", stream, kept, address, length)


#: Endpoints that the program has no more, and that could not be closed: streams use their buffers.
_left = []


class Endpoint(_Moves):
    """One side of a connection to another process: of the host, or, with a key, of another one."""

    _open = None

    def __init__(self, slots=0, slot_bytes=0, signals=0, timeout=0.0, host_memory=False, by_agent=False, key=None,
                 memory_operations=False):
        """0: the default. `timeout`: how long a stream waits at most for one operation, in seconds. `key`: bytes, a secret of both."""
        for endpoint in _left[:]:
            endpoint._try_to_close()
        if key is not None:
            key = bytes(memoryview(key))
            if not key or 0 in key:
                raise ValueError("a key has a byte at least, and none that is 0: encode it, as by bytes.hex")
        if not 0 <= timeout < 1 << 33:
            raise ValueError("a time limit is 0, which is the default, or a number of seconds")
        ns = max(int(timeout * 1e9), int(timeout > 0))
        self._turn, self._ends = _Turn(), threading.RLock()
        # By lane, sends and the rest: how many calls were queued, and what each of them uses.
        self._queued, self._kept = [0, 0], (deque(), deque())
        self._lists, self._registered, self._cut = [], [], []
        self._counts = byref(c_uint64()), byref(c_uint64())
        made = c_void_p()
        options = _Options(ctypes.sizeof(_Options), _number(slots, 32, "slots"), _number(slot_bytes, 32, "slot_bytes"),
                           _number(signals, 32, "signals"), bool(host_memory) | 2 * bool(by_agent) | 4 * bool(memory_operations),
                           ns, key)
        _call("open", byref(options), byref(made))
        self._open = made

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self._turn.is_parents():
            # A forked child leaves: the endpoint is its parent's.
            return
        if kind is None:
            self.close()
        else:
            self.abort()
            self._try_to_close()

    def __del__(self):
        if self._open and not self._turn.is_parents():
            warnings.warn("an endpoint was not closed", ResourceWarning, source=self)
            self._try_to_close()

    def _try_to_close(self):
        """Later, by another endpoint's opening, if a stream uses it."""
        try:
            self.close()
        except Error:
            if self not in _left:
                _left.append(self)
        else:
            if self in _left:
                _left.remove(self)

    def _do(self, name, stream, kept, *arguments):
        lane, stream_handle = int(name not in ("send", "put", _ACKNOWLEDGE_AND_PUT)), handle(stream)
        with self._turn:
            self._let_go()
            # First, since a handler of a signal may raise what it likes behind the call.
            self._queued[lane] += 1
            self._kept[lane].append((self._queued[lane], kept, stream))
            try:
                _call(name, self._handle(), stream_handle, *arguments)
            except Error:
                # The stream may have a part of it: the endpoint has failed then, by the call that was cut or before.
                if self._open and self._failure().code:
                    self._cut.append((kept, stream))
                self._queued[lane] -= 1
                self._kept[lane].pop()
                raise

    def _let_go(self):
        """What calls used that streams have executed is kept no more."""
        if self._kept[0] or self._kept[1]:
            for done, kept in zip(self._executed(), self._kept):
                while kept and kept[0][0] <= done:
                    kept.popleft()

    def _handle(self):
        if not self._open:
            raise Error(errno.EBADF, "the endpoint is closed")
        return self._open

    def register(self, of):
        """Device memory that the peer may put to and get from: the number of the registration. Before `blob`. It is kept until the
        endpoint is closed."""
        region, (address, length, kept) = c_uint32(), _find(of, True)
        with self._turn:
            self._registered.append(kept)
            try:
                _call("register", self._handle(), address, length, byref(region))
            except Error:
                self._registered.pop()
                raise
        return region.value

    def blob(self):
        """What the peer passes to `connect`."""
        room = 4096
        with self._turn:
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
        blob = bytes(memoryview(blob))

        def call():
            with self._turn:
                self._turn.waits()
                _call("connect", self._handle(), blob, len(blob))

        # Handlers of signals run in the main thread, once no call of the library is in it.
        if threading.current_thread() is threading.main_thread():
            _aside(call, self.abort)
        else:
            call()

    def send(self, of, stream=None):
        """Queues a send."""
        self._send(stream, of)

    def receive(self, of, stream=None):
        """Queues a receive, of a message of the buffer's length."""
        self._receive(stream, of)

    def put(self, of, region, offset=0, signal=None, stream=None, acknowledge=None):
        """Queues a put into the peer's registration, and the signal behind it; with `acknowledge`, first that the peer may put with
        that signal again: before the bytes are read, which are to be outside the memory that the peer puts to then. The stream is
        behind the wait for that signal and behind what uses what it brought; EBUSY while another stream has a wait."""
        if acknowledge is None:
            self._transfer("put", stream, of, region, offset, signal, False)
        else:
            self._transfer(_ACKNOWLEDGE_AND_PUT, stream, of, region, offset, signal, False, _signal(acknowledge))

    def get(self, of, region, offset=0, stream=None):
        """Queues a get from the peer's registration."""
        self._transfer("get", stream, of, region, offset, None, True)

    def wait(self, signal, stream=None):
        """Queues a wait for a signal of the peer's."""
        self._do("wait", stream, None, _signal(signal))

    def acknowledge(self, signal, stream=None):
        """Queues that the peer may put with the signal again."""
        self._do("acknowledge", stream, None, _signal(signal))

    def list(self, entries):
        """A list with room for so many operations."""
        made, entries = c_void_p(), _number(entries, 63, "the room of a list")
        with self._turn:
            _call("list_open", self._handle(), entries, byref(made))
            return List(self, made)

    def query(self):
        """Which way messages go, and why."""
        path = _Path(size=ctypes.sizeof(_Path))
        with self._turn:
            _call("query", self._handle(), byref(path))
        return Path({1: "device", 2: "host", 3: "agent"}[path.path], path.why.decode(errors="replace"), path.polls)

    def _failure(self):
        f = _Failure(size=ctypes.sizeof(_Failure))
        _call("failed", self._handle(), byref(f))
        return f

    def failed(self):
        """What ended the endpoint; None: nothing did."""
        with self._turn:
            f = self._failure()
        names = ("", "send", "receive", "put", "wait", "get")
        return Failure(f.code, names[f.operation], f.index, f.peer, bool(f.by_peer)) if f.code else None

    def executed(self):
        """How many calls without a list streams have executed: sends and puts, and the others."""
        with self._turn:
            return self._executed()

    def _executed(self):
        _call("executed", self._handle(), *self._counts)
        return tuple(count._obj.value for count in self._counts)

    def error_word(self):
        """The address of a word for kernels: not 0 once the endpoint has failed."""
        word = c_void_p()
        with self._turn:
            _call("error_word", self._handle(), byref(word))
        return word.value

    def abort(self):
        """Each wait of a stream passes, and nothing is moved any more. Any thread may call it, also while another one waits; of a
        closed endpoint it does nothing."""
        self._turn.check()
        with self._ends:
            if self._open:
                _call("abort", self._open)

    def close(self):
        """EBUSY: a list is open, or a stream has not executed what it was given. Lists that the program has no more are closed."""
        with self._turn:
            for made in [m for m in self._lists if m.owner() is None]:
                made.close()
                self._lists.remove(made)
            with self._ends:
                if self._open:
                    # A handler of a signal finds it closed, and what that raises leaves it so.
                    made, self._open = self._open, None
                    try:
                        _call("close", made)
                    except Error:
                        self._open = made
                        raise
            for kept in (*self._kept, self._registered):
                kept.clear()


class _Made:
    """A list of the library, and what it uses: for as long as it is open, which may be longer than the program has it."""

    def __init__(self, open_, owner):
        self.open, self.kept, self.stream, self.owner = open_, [], None, weakref.ref(owner)

    def close(self):
        if self.open:
            made, self.open = self.open, None
            try:
                _call("list_close", made)
            except Error:
                self.open = made
                raise
            self.kept = []


class List(_Moves):
    """Operations that a stream, a graph or the CPU executes any number of times. Buffers live as long as the list."""

    def __init__(self, endpoint, made):
        self._endpoint, self._made = endpoint, _Made(made, self)
        endpoint._lists.append(self._made)

    def _do(self, name, _stream, kept, *arguments):
        with self._endpoint._turn:
            self._made.kept.append(kept)
            try:
                self._in_turn(name, *arguments)
            except Error:
                self._made.kept.pop()
                raise

    def _call(self, name, *arguments, waits=False):
        with self._endpoint._turn:
            if waits:
                self._endpoint._turn.waits()
            self._in_turn(name, *arguments)

    def _in_turn(self, name, *arguments):
        if not self._made.open:
            raise Error(errno.EBADF, "the list is closed")
        _call("list_" + name, self._made.open, *arguments)

    def send(self, of):
        """Adds a send."""
        self._send(None, of)

    def receive(self, of):
        """Adds a receive."""
        self._receive(None, of)

    def put(self, of, region, offset=0, signal=None):
        """Adds a put."""
        self._transfer("put", None, of, region, offset, signal, False)

    def get(self, of, region, offset=0):
        """Adds a get."""
        self._transfer("get", None, of, region, offset, None, True)

    def wait(self, signal):
        """Adds a wait for a signal of the peer's."""
        self._do("wait", None, None, _signal(signal))

    def acknowledge(self, signal):
        """Adds that the peer may put with the signal again."""
        self._do("acknowledge", None, None, _signal(signal))

    def run(self, stream=None):
        """Queues the list in a stream. Where that is being captured it becomes part of the graph."""
        into = handle(stream)
        with self._endpoint._turn:
            before, self._made.stream = self._made.stream, stream
            try:
                self._in_turn("run", into)
            except Error:
                # The one before may still execute it, and this one has a part of it if the endpoint has failed.
                if self._endpoint._open and self._endpoint._failure().code:
                    self._made.kept.append(stream)
                self._made.stream = before
                raise

    def run_on_cpu(self):
        """Executes the list by the calling thread."""
        self._call("run_on_cpu", waits=True)

    def add_to_graph(self, graph, after=()):
        """Adds nodes to a CUgraph, behind nodes of it; the node behind all of them, as a number."""
        nodes = [_number(int(node), 64, "a node") for node in after]
        array, last = (c_void_p * max(len(nodes), 1))(*nodes), c_void_p()
        self._call("add_to_graph", _number(int(graph), 64, "the graph"), array, len(nodes), byref(last))
        return last.value

    def close(self):
        """EBUSY: a stream has not executed it."""
        with self._endpoint._turn:
            self._made.close()
            if self._made in self._endpoint._lists:
                self._endpoint._lists.remove(self._made)
