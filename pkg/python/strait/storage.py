# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Files to memory of any kind and back: include/strait_storage.h for CuPy, PyTorch, Numba, NumPy and anything with DLPack.

    with storage.File("model-00001.safetensors") as file:
        file.read(tensor, offset=4096)                       # when it returns the bytes are there
        future = file.read_async(other)                      # a concurrent.futures.Future of the number of bytes
        await asyncio.wrap_future(file.read_async(third))
        file.read_on(stream, array).result()                 # when the stream comes to it
    storage.read_many([("a.bin", x), ("b.bin", y, 4096)])    # many files at once

A buffer is an object with __cuda_array_interface__, __array_interface__, DLPack or the buffer protocol. It is contiguous. What is
under way keeps it, and the file. A transfer takes the whole buffer, or `size` bytes of it; what is short at the end of a file is
not an error: the number of bytes says so. The kernels that write a device's buffer, or use what was there, have to be done before
a call of this module; those of a stream need not be before read_on and write_on. docs/storage.md has the whole story.
"""
import ctypes
import operator
import os
import threading
from collections import namedtuple
from concurrent.futures import Future
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from . import _buffer
from .stream import handle as _handle

_WRITE, _CREATE, _NO_DIRECT, _NO_CUFILE = 1, 2, 4, 8
_PATHS = ("none", "direct", "cufile", "bounce", "cached")

#: The path of the last transfer, why it was no better one, and the bytes by each path.
Report = namedtuple("Report", "path why direct cufile bounce cached")


class Error(OSError):
    """A call or a transfer failed: its errno, and the library's words, which name the file."""


class _Op(ctypes.Structure):
    _fields_ = [("addr", c_void_p), ("len", c_size_t), ("offset", c_uint64), ("write", c_uint32), ("reserved", c_uint32),
                ("result", c_int64)]


class _Info(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("path", c_uint32), ("reserved", c_uint32), ("direct", c_uint64), ("cufile", c_uint64),
                ("bounce", c_uint64), ("cached", c_uint64), ("why", c_char * 240)]


_TYPES = {
    "open": (c_char_p, c_uint32, POINTER(c_void_p)), "close": (c_void_p,), "query": (c_void_p, POINTER(_Info)),
    "submit_files": (POINTER(c_void_p), POINTER(_Op), c_size_t, POINTER(c_void_p)),
    "submit_on_stream": (c_void_p, POINTER(_Op), c_size_t, c_void_p, POINTER(c_void_p)),
    "wait": (c_void_p, c_int), "release": (c_void_p,),
}
_library = None
_add_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_drop_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


def load(path=None):
    """The library, opened once: that of the package, or another one."""
    global _library
    if _library is None:
        if path is None:
            from . import library as path
        found = ctypes.CDLL(path)
        found.strait_storage_error.restype, found.strait_storage_error.argtypes = c_char_p, ()
        for name, types in _TYPES.items():
            getattr(found, "strait_storage_" + name).argtypes = types
        _library = found
    return _library


def _words():
    return (load().strait_storage_error() or b"").decode(errors="replace")


def _call(name, *arguments):
    code = getattr(load(), "strait_storage_" + name)(*arguments)
    if code < 0:
        raise Error(-code, _words() or os.strerror(-code))
    return code


class _Handle:
    """An open file of the library's. It is closed when nothing has it any more: a call that is being made has it."""

    def __init__(self, path, flags):
        self.library, self.at = load(), c_void_p()
        _call("open", path, flags, byref(self.at))

    def __del__(self):
        at = getattr(self, "at", None)
        if at:
            self.library.strait_storage_close(at)


def _number(name, what, number):
    """A number that the library can be given: ctypes takes the lowest 64 bits of any."""
    number = operator.index(number)
    if not 0 <= number < 1 << 63:
        raise ValueError("{}: {} is {}".format(name, what, number))
    return number


class _Transfers:
    """Transfers that are under way, and all that they use. From `begin` until the library has done them all, they have a
    reference of their own: no exception, and no end of the interpreter, frees what the library still writes to."""

    def __init__(self, wants, write):
        count = len(wants)
        self.ops, self.kept, self.names = (_Op * count)(), [], [file.name for file, _, _, _ in wants]
        self.handle = c_void_p()
        for n, (file, buffer, offset, size) in enumerate(wants):
            address, length, kept = _buffer.find(buffer, writable=not write)
            offset = _number(file.name, "the offset", offset)
            if size is not None and _number(file.name, "the size", size) > length:
                raise ValueError("{}: {} bytes, and the buffer has {}".format(file.name, size, length))
            self.kept.append((file._open(), kept))
            self.ops[n] = _Op(address, length if size is None else size, offset, int(write), 0, 0)

    def begin(self, stream=None):
        """Gives them to the library. If this raises and `handle` is set they are under way."""
        files = (c_void_p * len(self.ops))(*(file.at for file, _ in self.kept))
        _add_reference(self)
        try:
            if stream is None:
                _call("submit_files", files, self.ops, len(self.ops), byref(self.handle))
            else:
                _call("submit_on_stream", files[0], self.ops, 1, c_void_p(stream), byref(self.handle))
        except Error:
            _drop_reference(self)
            raise

    def wait(self):
        """How many bytes each has come to. The first that failed is an error with all others' done."""
        # The words are those of this thread's last failure: of one of the transfers.
        code = load().strait_storage_wait(self.handle, -1)
        words = _words()
        self.settle()
        if code < 0:
            raise Error(-code, words)
        results = [op.result for op in self.ops]
        for name, result in zip(self.names, results):
            if result < 0:
                known = words if words.startswith(name) else "{}: {}".format(name, os.strerror(-int(result)))
                raise Error(-int(result), known)
        return results

    def settle(self):
        """Returns when the library uses nothing of them any more, whatever signals raise meanwhile: that is raised then."""
        interrupted = None
        while self.handle:
            try:
                load().strait_storage_wait(self.handle, -1)
                # An exception between these lines leaves the reference: then nothing is released, or released twice.
                handle, self.handle = self.handle, None
                load().strait_storage_release(handle)
                self.kept = None
                _drop_reference(self)
            except BaseException as e:  # noqa: B902: it is raised below
                interrupted = e
        if interrupted is not None:
            raise interrupted


def _now(wants, write):
    """What they come to."""
    transfers = _Transfers(wants, write)
    try:
        transfers.begin()
        return transfers.wait()
    finally:
        transfers.settle()


def _later(wants, write, take, stream=None):
    """A future of what they come to. A thread of its own waits, so that a stream which never comes to them holds no other."""
    transfers, begun, future = _Transfers(wants, write), threading.Event(), Future()
    future.set_running_or_notify_cancel()

    def work():
        begun.wait()
        try:
            if transfers.handle:
                future.set_result(take(transfers.wait()))
        except BaseException as e:  # noqa: B902: it is the future's
            future.set_exception(e)

    # Where there is no thread to be had nothing has begun.
    try:
        threading.Thread(target=work, name="strait-storage", daemon=True).start()
        transfers.begin(stream)
    finally:
        begun.set()
    return future


def _first(results):
    return results[0]


class File:
    """A file or a disk. Its methods may be called in any thread.

    mode      "r", or "w": it is made if it is not there; what it has stays
    direct    with O_DIRECT where that goes
    cufile    with NVIDIA's cuFile where it takes the file
    """

    def __init__(self, path, mode="r", direct=True, cufile=True):
        if mode not in ("r", "w"):
            raise ValueError("mode is 'r' or 'w', not {!r}".format(mode))
        self._held, self.name, path = None, os.fsdecode(path), os.fsencode(path)
        if b"\0" in path:
            raise ValueError("{!r}: a path has no NUL".format(self.name))
        flags = (_WRITE | _CREATE if mode == "w" else 0) | (0 if direct else _NO_DIRECT) | (0 if cufile else _NO_CUFILE)
        self._held = _Handle(path, flags)

    def _open(self):
        held = self._held
        if held is None:
            raise ValueError("{}: the file is closed".format(self.name))
        return held

    def read(self, buffer, offset=0, size=None):
        """Reads from byte `offset` on; how many bytes."""
        return _now([(self, buffer, offset, size)], False)[0]

    def write(self, buffer, offset=0, size=None):
        """Writes from byte `offset` on; how many bytes."""
        return _now([(self, buffer, offset, size)], True)[0]

    def read_async(self, buffer, offset=0, size=None):
        """Begins to read; a future of the number of bytes."""
        return _later([(self, buffer, offset, size)], False, _first)

    def write_async(self, buffer, offset=0, size=None):
        """Begins to write; a future of the number of bytes."""
        return _later([(self, buffer, offset, size)], True, _first)

    def read_on(self, stream, buffer, offset=0, size=None):
        """Queues a read on a stream of CUDA's, of CuPy, PyTorch or Numba, or a number; a future of the number of bytes."""
        return _later([(self, buffer, offset, size)], False, _first, _handle(stream))

    def write_on(self, stream, buffer, offset=0, size=None):
        """Queues a write on a stream of CUDA's; a future of the number of bytes."""
        return _later([(self, buffer, offset, size)], True, _first, _handle(stream))

    def report(self):
        """Which paths its bytes have taken, and why no better one."""
        info, held = _Info(size=ctypes.sizeof(_Info)), self._open()
        _call("query", held.at, byref(info))
        why = info.why.decode(errors="replace")
        return Report(_PATHS[info.path], why, info.direct, info.cufile, info.bounce, info.cached)

    def close(self):
        """What is under way goes on, also in other threads."""
        self._held = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _wants(items, write):
    wants, mode, opened = [], "w" if write else "r", {}
    for item in items:
        file, buffer, offset, size = (*item, *(0, None)[len(item) - 2:])
        if not isinstance(file, File):
            name = os.fsdecode(file)
            if name not in opened:
                opened[name] = File(name, mode)
            file = opened[name]
        wants.append((file, buffer, offset, size))
    return wants


def read_many(items):
    """Reads many files at once. Each item is (path or File, buffer[, offset[, size]]). A list of the numbers of bytes; the first
    that fails is an Error that names its file, once all others are done."""
    return _now(_wants(items, False), False)


def write_many(items):
    """Writes many files at once, as read_many reads them."""
    return _now(_wants(items, True), True)


def read_many_async(items):
    """Begins to read many files; a future of the list of the numbers of bytes."""
    return _later(_wants(items, False), False, list)


def write_many_async(items):
    """Begins to write many files; a future of the list of the numbers of bytes."""
    return _later(_wants(items, True), True, list)
