# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""As much of the interface of CuPy's arrays as mpi4py's tests and its examples use, over libcuda.so.1, without kernels.

An array lies in device memory, which over the stand-in for CUDA's driver the CPU cannot access. Each operation copies to
the host, computes with NumPy, and copies back.
"""

import numpy

from . import cuda

__version__ = "13.0.0"

complex64, complex128 = numpy.complex64, numpy.complex128
float32, float64, int32, int64 = numpy.float32, numpy.float64, numpy.int32, numpy.int64


class ndarray:
    """A contiguous array, or a part of one."""

    def __init__(self, shape, dtype, memory=None, offset=0):
        self.dtype = numpy.dtype(dtype)
        if self.dtype.char in "gG":
            raise ValueError(f"no arrays of {self.dtype}")
        self.shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        self.size = int(numpy.prod(self.shape, dtype=int))
        self.itemsize, self.ndim = self.dtype.itemsize, len(self.shape)
        self.nbytes = self.size * self.itemsize
        self._memory = memory or cuda.Memory(self.nbytes)
        self._at = self._memory.address + offset

    @property
    def __cuda_array_interface__(self):
        return {
            "version": 3,
            "data": (self._at if self.size else 0, False),
            "typestr": self.dtype.str,
            "shape": self.shape,
            "strides": None,
            "stream": None,
        }

    # For dlpackimpl of mpi4py's tests.
    @property
    def typecode(self):
        return self.dtype.char

    def buffer_info(self):
        return self._at, self.size

    device = cuda.Device

    def toDlpack(self):
        import dlpackimpl

        managed = dlpackimpl.make_dl_managed_tensor(self)
        managed.dl_tensor.device = dlpackimpl.DLDevice(dlpackimpl.DLDeviceType.kDLCUDA, 0)
        return dlpackimpl.make_py_capsule(managed, owned=True)

    def get(self):
        """A copy in host memory."""
        host = numpy.empty(self.shape, self.dtype)
        cuda.copy(host.ctypes.data, self._at, self.nbytes)
        return host

    def set(self, values):
        host = numpy.ascontiguousarray(numpy.broadcast_to(numpy.asarray(values).astype(self.dtype), self.shape))
        cuda.copy(self._at, host.ctypes.data, self.nbytes)

    def fill(self, value):
        self.set(value)

    def ravel(self):
        return ndarray((self.size,), self.dtype, self._memory, self._at - self._memory.address)

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self):
        return iter(self.get())

    def __getitem__(self, where):
        if isinstance(where, slice) and self.ndim == 1:
            begin, end, step = where.indices(self.size)
            if step == 1:
                offset = self._at - self._memory.address + begin * self.itemsize
                return ndarray((max(end - begin, 0),), self.dtype, self._memory, offset)
        return self.get()[where]

    def __setitem__(self, where, values):
        host = self.get()
        host[where] = values.get() if isinstance(values, ndarray) else values
        self.set(host)

    def __array__(self, *args, **kwargs):
        raise TypeError("an array in device memory is none of the host: use get()")

    def __eq__(self, other):
        return self.get() == (other.get() if isinstance(other, ndarray) else other)

    def __mul__(self, other):
        return asarray(self.get() * (other.get() if isinstance(other, ndarray) else other))

    __hash__ = None


def empty(shape, dtype=float):
    return ndarray(shape, dtype)


def zeros(shape, dtype=float):
    made = ndarray(shape, dtype)
    made.fill(0)
    return made


def asarray(values, dtype=None):
    if isinstance(values, ndarray):
        values = values.get()
    host = numpy.asarray(values)
    host = host if dtype is None else host.astype(dtype)
    made = ndarray(host.shape, host.dtype)
    made.set(host)
    return made


array = asarray


def empty_like(other):
    return ndarray(other.shape, other.dtype)


def arange(*args, dtype=None):
    return asarray(numpy.arange(*args, dtype=dtype))


def allclose(a, b):
    a, b = (x.get() if isinstance(x, ndarray) else x for x in (a, b))
    return bool(numpy.allclose(a, b))


__all__ = ["allclose", "arange", "array", "asarray", "cuda", "empty", "empty_like", "ndarray", "zeros"]
