//! Which crate may use which: the table of ARCHITECTURE.md, and what no crate of some layers may name.

use std::collections::{BTreeMap, BTreeSet};

use crate::comments;
use crate::tree::Tree;
use crate::workspace::{Manifest, Used};

const TABLE: &str = "ARCHITECTURE.md";

/// Crates of others that a library may use: without a system library, a build script of note, or
/// dependencies of their own (but for zerocopy's macros, libloading's cfg-if, and those that RustCrypto's
/// hmac and sha2 share).
const LIBRARIES: [&str; 9] =
    ["arrayvec", "bitflags", "hmac", "libc", "libloading", "log", "sha2", "siphasher", "zerocopy"];
/// Programs: they may use any crate that deny.toml lets pass.
const PROGRAMS: [&str; 2] = ["provider/command", "ci/xtask"];

/// Members beside the table, and the members that they may use.
const BESIDE: [(&str, &[&str]); 9] = [
    ("tests/link-kit", &["provider/link/api", "provider/base/wire", "hmem"]),
    ("tests/testkit", &["provider/core/engine", "provider/link/api", "provider/base/wire", "hmem"]),
    ("tests/stand-in", &[]),
    ("tests/cuda-stand-in", &["tests/stand-in"]),
    ("tests/nccl-stand-in", &["tests/stand-in"]),
    ("tests/rocr-stand-in", &["tests/stand-in"]),
    ("tests/ze-stand-in", &["tests/stand-in"]),
    ("tests/verbs-stand-in", &["tests/stand-in", "provider/sys/rdma-sys"]),
    ("ci/xtask", &[]),
];

/// Safe code only.
const SAFE: [&str; 5] = [
    "provider/base/wire",
    "provider/link/api",
    "provider/link/xfer",
    "provider/core/engine",
    "provider/core/collective",
];
/// No name of libfabric in code, and no dependency on it, indirect ones included.
const NAMELESS: [&str; 9] = [
    "provider/base/wire",
    "provider/link/api",
    "provider/link/xfer",
    "provider/core/engine",
    "provider/core/collective",
    "provider/core/runtime",
    "provider/extras/xpu",
    "provider/extras/peerop",
    "provider/extras/stream",
];
const LIBFABRIC: &str = "provider/sys/libfabric-sys";

/// A row of the table: the line, and the folders that the crate may use.
type Rows = BTreeMap<String, (usize, BTreeSet<String>)>;

/// All failures of these rules.
pub fn check(tree: &Tree, members: &[Manifest]) -> Vec<String> {
    let table = match tree.text(TABLE) {
        Ok(text) => rows(&text),
        Err(e) => return vec![format!("{TABLE}:1: layers: {e}")],
    };
    let mut failures = uses(&table, members);
    for dir in SAFE {
        forbids_unsafe(tree, dir, &mut failures);
    }
    for dir in NAMELESS {
        names(tree, dir, &mut failures);
        if reaches(members, dir, LIBFABRIC) {
            failures
                .push(format!("{dir}/Cargo.toml:1: layers: depends on {LIBFABRIC}: remove the dependency"));
        }
    }
    failures
}

fn rows(text: &str) -> Rows {
    let mut rows = Rows::new();
    let lines = text.lines().enumerate().skip_while(|(_, l)| !l.starts_with("| crate |"));
    for (line, text) in lines.take_while(|(_, l)| l.starts_with('|')) {
        let cells: Vec<&str> = text.split('|').collect();
        let crates = cells.get(1).map(|c| c.split('(').next().unwrap_or(c)).map(folders).unwrap_or_default();
        let uses = cells.get(2).map(|c| folders(c)).unwrap_or_default();
        rows.extend(crates.into_iter().map(|c| (c, (line + 1, uses.clone()))));
    }
    rows
}

/// The folders of the crates that a cell names in backticks.
fn folders(cell: &str) -> BTreeSet<String> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.map(|name| if name == "hmem" { name.to_owned() } else { format!("provider/{name}") }).collect()
}

fn uses(table: &Rows, members: &[Manifest]) -> Vec<String> {
    let mut failures = Vec::new();
    for member in members {
        let dir = member.dir.as_str();
        let manifest = format!("{dir}/Cargo.toml:1: layers:");
        let beside = BESIDE.iter().find(|(d, _)| *d == dir);
        let allowed: BTreeSet<String> = match (table.get(dir), beside) {
            (Some((_, allowed)), _) => allowed.clone(),
            (None, Some((_, allowed))) => allowed.iter().map(ToString::to_string).collect(),
            (None, None) => {
                failures.push(format!("{manifest} {dir} has no row in the table of {TABLE}: add one"));
                continue;
            }
        };
        for used in &member.uses {
            match used {
                Used::Member(other) if !allowed.contains(other) => {
                    failures
                        .push(format!("{manifest} uses {other}, which the table of {TABLE} does not allow"));
                }
                Used::Other(name) if !PROGRAMS.contains(&dir) && !LIBRARIES.contains(&name.as_str()) => {
                    failures.push(format!("{manifest} uses the crate {name}, which is not in LIBRARIES"));
                }
                _ => {}
            }
        }
    }
    for (dir, (line, allowed)) in table {
        let Some(member) = members.iter().find(|m| m.dir == *dir) else {
            failures.push(format!("{TABLE}:{line}: layers: {dir} is no member: remove the row"));
            continue;
        };
        for other in allowed.iter().filter(|o| !member.uses.contains(&Used::Member(o.to_string()))) {
            failures
                .push(format!("{TABLE}:{line}: layers: {dir} does not use {other}: remove it from the row"));
        }
    }
    failures
}

fn forbids_unsafe(tree: &Tree, dir: &str, failures: &mut Vec<String>) {
    let path = format!("{dir}/src/lib.rs");
    let text = tree.sources.get(&path).map_or("", String::as_str);
    if !text.lines().any(|line| line == "#![forbid(unsafe_code)]") {
        failures.push(format!("{path}:1: layers: does not forbid unsafe code: add #![forbid(unsafe_code)]"));
    }
}

/// Names of libfabric in code, tests and strings included.
fn names(tree: &Tree, dir: &str, failures: &mut Vec<String>) {
    let prefix = format!("{dir}/src/");
    for (path, text) in tree.sources.iter().filter(|(p, _)| p.starts_with(&prefix) && p.ends_with(".rs")) {
        let code = comments::split(text).1;
        for (line, text) in code.lines().enumerate() {
            let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let Some(name) = words.find(|w| is_libfabric(w)) {
                let line = line + 1;
                failures
                    .push(format!("{path}:{line}: layers: {dir} names libfabric's {name}: use an own name"));
            }
        }
    }
}

fn is_libfabric(word: &str) -> bool {
    let flag =
        word.strip_prefix("FI_").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    flag || word == "libfabric_sys" || (word.starts_with("fi_") && word.ends_with("_attr"))
}

/// Whether a member depends on another one, indirectly too.
fn reaches(members: &[Manifest], from: &str, to: &str) -> bool {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(dir) = next.pop() {
        let uses = members.iter().find(|m| m.dir == dir).into_iter().flat_map(|m| &m.uses);
        for used in uses {
            if let Used::Member(other) = used {
                if reached.insert(other.as_str()) {
                    next.push(other);
                }
            }
        }
    }
    reached.contains(to)
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
