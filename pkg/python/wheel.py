#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The wheel, of a tree as pkg/install makes it.

    wheel.py TREE PLATFORM DIRECTORY      PLATFORM as in manylinux_2_28_x86_64

A wheel is a zip archive (https://packaging.python.org, "Binary distribution format"). This one has fixed dates and a fixed
order, so that it is the same for the same files; it has no Python code to compile.
"""
import base64
import hashlib
import os
import pathlib
import re
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAME = "strait-fabric"
CARRIED = {
    "lib/libfabric/libstrait-fi.so": "lib/libfabric/libstrait-fi.so",
    "lib/strait/ucx/libuct_strait.so.0": "lib/strait/ucx/libuct_strait.so.0",
    "lib/libstrait.so.0": "lib/libstrait.so.0",
    "lib/libstrait_xpu.so.0": "lib/libstrait_xpu.so.0",
    "bin/strait": "bin/strait",
    "lib/libstrait_rpipe.so.0": "lib/libstrait_rpipe.so.0",
    "lib/strait/libstrait_mpi.so.0": "lib/strait/libstrait_mpi.so.0",
}
# A wheel has no links: UCX looks for the transport by the ending of its own libraries' names.
COPIES = {"lib/strait/ucx/libuct_strait.so.0": ["lib/strait/ucx/libuct_strait.so.0.0.0", "lib/strait/ucx/libuct_strait.so"]}


def metadata(version):
    text = (ROOT / "pkg/python/README.md").read_text()
    return f"""Metadata-Version: 2.4
Name: {NAME}
Version: {version}
Summary: libfabric provider and UCX transport for the processes of one Linux host, GPUs included
License-Expression: BSD-2-Clause OR GPL-2.0-only
License-File: LICENSES/BSD-2-Clause.txt
License-File: LICENSES/GPL-2.0-only.txt
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

{text}"""


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    tree, platform, to = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    label = f"{NAME.replace('-', '_')}-{version}"
    info = f"{label}.dist-info"
    files = {}
    for source in sorted((ROOT / "pkg/python/strait").glob("*.py")):
        files[f"strait/{source.name}"] = (source.read_bytes(), 0o644)
    headers = {str(header.relative_to(tree)): str(header.relative_to(tree)) for header in sorted(tree.glob("include/**/*")) if header.is_file()}
    if not headers:
        sys.exit(f"wheel.py: {tree} has no headers")
    for source, target in {**CARRIED, **headers}.items():
        mode = 0o755 if os.access(tree / source, os.X_OK) else 0o644
        for name in [target, *COPIES.get(source, [])]:
            files[f"strait/{name}"] = ((tree / source).read_bytes(), mode)
    files[f"{info}/METADATA"] = (metadata(version).encode(), 0o644)
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: strait\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n".encode(), 0o644)
    files[f"{info}/entry_points.txt"] = (b"[console_scripts]\nstrait = strait.__main__:command\n", 0o644)
    for licence in sorted((ROOT / "LICENSES").iterdir()):
        files[f"{info}/licenses/LICENSES/{licence.name}"] = (licence.read_bytes(), 0o644)

    record = []
    for name, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}\n")
    record.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = ("".join(record).encode(), 0o644)

    date = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]
    wheel = to / f"{label}-py3-none-{platform}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (content, mode) in files.items():
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(f"{wheel}: {wheel.stat().st_size} bytes")


if __name__ == "__main__":
    main()
