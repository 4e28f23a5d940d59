# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""python -m strait: the settings that turn Strait on, and the command."""
import argparse
import glob
import importlib.util
import os
import shlex
import sys

import strait


def command():
    """The command `strait` itself."""
    os.execv(strait.command, [strait.command, *sys.argv[1:]])


def _found(package):
    """The directories of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or []) if spec else []


def _ucx_libraries():
    """By package, the directory of each UCX that this Python's packages have inside: libucx, or a wheel that carries one (NIXL)."""
    places = {"libucx": os.path.join(place, "lib") for place in _found("libucx")}
    for site in sys.path:
        for libs in sorted(glob.glob(os.path.join(glob.escape(site), "*.libs"))):
            places.setdefault(os.path.basename(libs)[: -len(".libs")], libs)
    return {name: place for name, place in places.items() if glob.glob(os.path.join(glob.escape(place), "libuct[-.]*"))}


def _ucx_env(options):
    arguments = [strait.command, "ucx-env"]
    if options.undo:
        return arguments + ["--undo"]
    found = _ucx_libraries()
    if options.ucx and options.ucx not in found:
        sys.exit("python -m strait env: no package {} with a UCX here; there is {}".format(options.ucx, ", ".join(found) or "none"))
    if len(found) > 1 and not options.ucx:
        sys.exit("python -m strait env: several packages have a UCX: --ucx " + " or --ucx ".join(found))
    if found:
        arguments += ["--ucx", found[options.ucx or next(iter(found))]]
    # These connect by the address of a socket.
    if any(map(_found, ("ucxx", "ucp"))):
        arguments.append("--sockaddr")
    return arguments


def _env(options):
    if options.ucx is not None:
        arguments = _ucx_env(options)
        os.execv(arguments[0], arguments)
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
    env.add_argument(
        "--ucx", nargs="?", const="", metavar="PACKAGE",
        help="those of UCX: of the package that has one inside (libucx, nixl_cu12), or the one that programs find",
    )
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
