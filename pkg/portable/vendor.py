#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The crates that a build without network needs.

    vendor.py DIRECTORY      makes it, with `cargo vendor`

Crates that are for other systems or for tests alone are in Cargo.lock, and cargo wants to see them; they are
reduced to a manifest and an empty library. What is left is what a build for GNU/Linux on x86_64 or aarch64 compiles.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import sbom  # noqa: E402

TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]


def compiled():
    """Name and version of each crate that a product needs on one of the targets."""
    found = set()
    for target in TARGETS:
        data = sbom.metadata(target)
        packages = {package["id"]: package for package in data["packages"]}
        nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
        members = [package for package in data["workspace_members"] if packages[package]["name"] in sbom.PRODUCTS]
        found |= {(packages[one]["name"], packages[one]["version"]) for one in sbom.linked(nodes, members)}
    return found


def value(manifest, table, key):
    part = re.search(rf"^\[{table}\]\n(.*?)(?=^\[|\Z)", manifest, re.M | re.S)
    found = part and re.search(rf"^{key} = \"(.*)\"$", part[1], re.M)
    return found[1] if found else None


def reduce(crate, manifest):
    """The manifest without programs, tests and benchmarks; the library and the build script are empty."""
    manifest = re.sub(r"^\[\[(bin|test|bench|example)\]\]\n.*?(?=^\[|\Z)", "", manifest, flags=re.M | re.S)
    library = value(manifest, "lib", "path") or "src/lib.rs"
    script = value(manifest, "package", "build")
    shutil.rmtree(crate)
    (crate / library).parent.mkdir(parents=True)
    (crate / "Cargo.toml").write_text(manifest)
    (crate / library).write_text("")
    if script:
        (crate / script).parent.mkdir(parents=True, exist_ok=True)
        (crate / script).write_text("fn main() {}\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    to = pathlib.Path(sys.argv[1])
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cargo", "vendor", "--locked", "--versioned-dirs", "--quiet", to], cwd=sbom.ROOT, check=True, stdout=subprocess.DEVNULL)
    keep = compiled()
    kept = 0
    for crate in sorted(to.iterdir()):
        manifest = (crate / "Cargo.toml").read_text()
        checksum = json.loads((crate / ".cargo-checksum.json").read_text())
        if (value(manifest, "package", "name"), value(manifest, "package", "version")) in keep:
            kept += 1
            # Debian's tools take .orig for what patch(1) leaves, and delete it; programs for Windows serve tests of a crate.
            for name in [name for name in checksum["files"] if name.endswith((".orig", ".rej", ".dll"))]:
                (crate / name).unlink()
                del checksum["files"][name]
        else:
            reduce(crate, manifest)
            checksum["files"] = {}
        (crate / ".cargo-checksum.json").write_text(json.dumps(checksum, sort_keys=True))
    print(f"{to}: {kept} crates, and {len(list(to.iterdir())) - kept} reduced to a manifest")


if __name__ == "__main__":
    main()
