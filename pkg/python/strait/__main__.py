# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""python -m strait: the settings that turn Strait on, and the command."""
import argparse
import importlib.util
import os
import shlex
import sys

import strait


def command():
    """The command `strait` itself."""
    os.execv(strait.command, [strait.command, *sys.argv[1:]])


def _libucx():
    """The libraries of the package libucx, if that is what this Python has."""
    spec = importlib.util.find_spec("libucx")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if os.path.isdir(os.path.join(place, "lib")):
            return os.path.join(place, "lib")
    return None


def _env(options):
    if options.ucx:
        arguments = [strait.command, "ucx-env"]
        place = _libucx()
        if options.undo:
            arguments.append("--undo")
        elif place:
            arguments += ["--ucx", place]
        os.execv(strait.command, arguments)
    for name, value in strait.settings(options.mpi).items():
        print("unset " + name if options.undo else "export {}={}".format(name, shlex.quote(value)))


def _mpi_env(options):
    """LD_PRELOAD with the library once, before what is there already, or without it."""
    others = [path for path in os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":") if path and path != strait.mpi_library]
    wanted = others if options.undo else [strait.mpi_library, *others]
    print("export LD_PRELOAD=" + shlex.quote(":".join(wanted)) if wanted else "unset LD_PRELOAD")


def main():
    parser = argparse.ArgumentParser(prog="python -m strait", description="The libfabric provider and the UCX transport strait.")
    parts = parser.add_subparsers(dest="part")
    env = parts.add_parser("env", help="the settings for a shell: eval \"$(python -m strait env)\"")
    env.add_argument("--mpi", choices=["mpich", "intel", "openmpi"], help="those of one MPI library alone")
    env.add_argument("--ucx", action="store_true", help="those of UCX: of the package libucx, or the one that programs find")
    env.add_argument("--undo", action="store_true", help="what takes them back")
    preload = parts.add_parser("mpi-env", help="what preloads the library by which an MPI takes device memory: eval \"$(python -m strait mpi-env)\"")
    preload.add_argument("--undo", action="store_true", help="what takes it back")
    parts.add_parser("path", help="the directory for FI_PROVIDER_PATH")
    options = parser.parse_args()
    if options.part is None:
        parser.print_help()
    elif options.part == "path":
        print(strait.provider_path)
    elif options.part == "mpi-env":
        _mpi_env(options)
    else:
        _env(options)


if __name__ == "__main__":
    main()
