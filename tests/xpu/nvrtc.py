#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Compile CUDA C++ to machine code with NVRTC, which needs neither nvcc nor a GPU.

    nvrtc.py [-I DIR] [-D NAME[=VALUE]] [--warn] --arch sm_90 -o FILE.cubin FILE.cu

The library is the one of --library, of the environment's NVRTC, of Python's package nvidia-cuda-nvrtc-cu*, or the system's. With --warn what the compiler
says is printed and counts as a failure.
"""
import argparse
import ctypes
import glob
import os
import sys


def candidates(named):
    yield from filter(None, [named, os.environ.get("NVRTC")])
    for place in sys.path:
        yield from sorted(glob.glob(os.path.join(place, "nvidia", "c*", "lib", "libnvrtc.so.*")), reverse=True)
    for version in ("12", "13"):
        yield f"libnvrtc.so.{version}"
    yield from sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so.*"), reverse=True)


def load(named):
    for name in candidates(named):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    sys.exit("no libnvrtc here: pip install nvidia-cuda-nvrtc-cu12, or set NVRTC to its path")


class Program:
    def __init__(self, lib, text, name):
        self.lib, self.handle = lib, ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(self.handle), text.encode(), name.encode(), 0, None, None)

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self.lib.nvrtcGetErrorString(code).decode()}")

    def bytes(self, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", self.handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", self.handle, buffer)
        return buffer.raw[:size.value]

    def compile(self, options):
        array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        self.call("nvrtcCompileProgram", self.handle, len(options), array)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("-o", required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--library")
    parser.add_argument("--warn", action="store_true")
    parser.add_argument("-I", action="append", default=[])
    parser.add_argument("-D", action="append", default=[])
    args = parser.parse_args()
    lib = load(args.library)
    with open(args.source) as file:
        program = Program(lib, file.read(), args.source)
    options = [f"--gpu-architecture={args.arch}", "--std=c++17", "-I" + os.path.dirname(os.path.abspath(args.source))]
    options += [f"-I{i}" for i in args.I] + [f"-D{d}" for d in args.D]
    try:
        program.compile(options)
    except RuntimeError as wrong:
        sys.exit(f"{wrong}\n{program.bytes('ProgramLog').decode(errors='replace')}")
    log = program.bytes("ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
    if log and args.warn:
        sys.exit(log)
    with open(args.o, "wb") as file:
        file.write(program.bytes("CUBIN"))


if __name__ == "__main__":
    main()
