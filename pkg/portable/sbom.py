#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The bill of materials of the built libraries and command, as CycloneDX 1.5.

    sbom.py TARGET            prints it: the crates that a build for this target links, with their hashes
    sbom.py --check FILE      whether it is complete: every crate of the products has a hash, a licence and a place in the graph
"""
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PRODUCTS = {"strait-fi": "libstrait-fi.so", "strait-ucx": "libuct_strait.so.0", "libstrait": "libstrait.so.0",
            "libstrait_xpu": "libstrait_xpu.so.0", "strait-rpipe": "libstrait_rpipe.so.0", "strait-mpi": "libstrait_mpi.so.0",
            "strait": "strait"}


def metadata(target):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def hashes():
    """Those of Cargo.lock, by name and version."""
    lock = (ROOT / "Cargo.lock").read_text()
    found = {}
    for package in lock.split("[[package]]")[1:]:
        field = dict(re.findall(r'^(name|version|checksum) = "(.*)"$', package, re.M))
        found[field["name"], field["version"]] = field.get("checksum")
    return found


def linked(nodes, ids):
    """Everything that these need in a build, with the crates that only run in it (procedural macros, build scripts)."""
    seen, queue = {}, list(ids)
    while queue:
        package = queue.pop()
        if package in seen:
            continue
        # A dependency of tests alone has the kind "dev".
        needs = sorted(dep["pkg"] for dep in nodes[package]["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"]))
        seen[package] = needs
        queue.extend(needs)
    return seen


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums):
    checksum = checksums.get((package["name"], package["version"]))
    found = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
        "licenses": [{"expression": package["license"].replace("/", " OR ")}],
    }
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def made(target):
    data = metadata(target)
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    members = [package for package in data["workspace_members"] if packages[package]["name"] in PRODUCTS]
    if len(members) != len(PRODUCTS):
        sys.exit(f"sbom.py: the workspace lacks one of {', '.join(PRODUCTS)}")
    needs = linked(nodes, members)
    checksums = hashes()
    version = packages[members[0]]["version"]
    root = f"pkg:generic/strait@{version}"
    when = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    graph = {reference(packages[package]): sorted(reference(packages[need]) for need in needs[package]) for package in needs}
    digest = hashlib.sha256(json.dumps(graph, sort_keys=True).encode() + target.encode()).digest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}",
        "version": 1,
        "metadata": {
            "timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "bom-ref": root, "name": "strait", "version": version, "purl": root,
                          "licenses": [{"expression": "BSD-2-Clause OR GPL-2.0-only"}]},
            "properties": [{"name": "strait:target", "value": target}],
        },
        "components": sorted((component(packages[package], checksums) for package in needs), key=lambda one: one["bom-ref"]),
        "dependencies": [{"ref": root, "dependsOn": sorted(reference(packages[package]) for package in members)}]
        + [{"ref": ref, "dependsOn": deps} for ref, deps in sorted(graph.items())],
    }


def check(path):
    data = json.loads(pathlib.Path(path).read_text())
    names = {one["name"] for one in data["components"]}
    listed = {one["bom-ref"] for one in data["components"]} | {data["metadata"]["component"]["bom-ref"]}
    faults = [f"no {name}" for name in PRODUCTS if name not in names]
    lock = hashes()
    for one in data["components"]:
        known = lock.get((one["name"], one["version"]), "none")
        if known == "none":
            faults.append(f"{one['bom-ref']} is not in Cargo.lock")
        elif known and one.get("hashes", [{}])[0].get("content") != known:
            faults.append(f"{one['bom-ref']} has not the hash of Cargo.lock")
        elif not one["licenses"][0]["expression"]:
            faults.append(f"{one['bom-ref']} has no licence")
    for edge in data["dependencies"]:
        faults.extend(f"{need} is needed and not listed" for need in [edge["ref"], *edge["dependsOn"]] if need not in listed)
    if faults:
        sys.exit("\n".join(faults))
    crates = sum("hashes" in one for one in data["components"])
    print(f"{path}: {crates} crates with hashes, {len(data['components']) - crates} of this repository")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        check(sys.argv[2])
    elif len(sys.argv) == 2:
        print(json.dumps(made(sys.argv[1]), indent=1, ensure_ascii=False))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
