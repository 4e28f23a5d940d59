# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""As much of Numba's interface as mpi4py's demo use_numba.py uses, over the arrays of the module cupy beside this one.

A kernel runs on the host, one thread after another, on copies of its arrays.
"""

import types

import cupy

_thread = 0


class _Array(cupy.ndarray):
    copy_to_host = cupy.ndarray.get


class _Kernel:
    def __init__(self, function):
        self.function = function

    def __getitem__(self, shape):
        blocks, threads = shape

        def launch(*args):
            global _thread
            host = [a.get() if isinstance(a, cupy.ndarray) else a for a in args]
            for _thread in range(blocks * threads):
                self.function(*host)
            for array, now in zip(args, host):
                if isinstance(array, cupy.ndarray):
                    array.set(now)

        return launch


cuda = types.SimpleNamespace(
    default_stream=cupy.cuda.get_current_stream,
    device_array=_Array,
    grid=lambda dimensions: _thread,
    jit=lambda: _Kernel,
)
