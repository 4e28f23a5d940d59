# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The driver: memory and copies."""

import ctypes
import types

_driver = ctypes.CDLL("libcuda.so.1")


def _call(name, *args):
    code = getattr(_driver, name)(*args)
    if code:
        raise RuntimeError(f"{name}: {code}")


_call("cuInit", 0)
_context = ctypes.c_void_p()
_call("cuDevicePrimaryCtxRetain", ctypes.byref(_context), 0)
_call("cuCtxSetCurrent", _context)


class Memory:
    """An allocation, freed with its last array."""

    def __init__(self, length):
        address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(length, 1)))
        self.address = address.value

    def __del__(self):
        _driver.cuMemFree_v2(ctypes.c_uint64(self.address))


def copy(to, source, length):
    if length:
        _call("cuMemcpy", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(length))


class Device:
    id = 0


class Stream:
    def synchronize(self):
        _call("cuCtxSynchronize")


def get_current_stream():
    return Stream()


runtime = types.SimpleNamespace(is_hip=False)
