//! Checks of the sources that no compiler makes: `cargo xtask check`; docs/ci.md lists the rules.

// Rules that read the rest follow.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod comments;
mod imports;
mod layers;
mod modules;
mod promises;
mod source;
mod tree;
mod workspace;

use tree::Tree;
use workspace::Crate;

const USAGE: &str = "usage: cargo xtask check";

/// The workspace, read.
struct Workspace {
    tree: Tree,
    crates: Vec<Crate>,
}

impl Workspace {
    fn read(root: &Path) -> Result<Self, String> {
        let manifests = workspace::manifests(root)?;
        let tree =
            Tree::read(root, &["hmem", "provider", "tests", "include", "ci"]).map_err(|e| e.to_string())?;
        let mut crates = Vec::new();
        for manifest in manifests {
            crates.push(Crate::read(&tree, manifest)?);
        }
        Ok(Self { tree, crates })
    }

    fn check(&self) -> Vec<String> {
        let manifests: Vec<_> = self.crates.iter().map(|c| c.manifest.clone()).collect();
        let mut failures = layers::check(&self.tree, &manifests);
        failures.extend(self.crates.iter().flat_map(|c| &c.modules).flat_map(|m| m.circles()));
        failures.extend(promises::check(&self.tree));
        failures
    }
}

fn run(arguments: &[&str]) -> Result<ExitCode, String> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("ci/xtask"), PathBuf::from);
    let root = own.join("../..").canonicalize().map_err(|e| e.to_string())?;
    if arguments != ["check"] {
        return Err(USAGE.to_owned());
    }
    let workspace = Workspace::read(&root)?;
    let failures = workspace.check();
    failures.iter().for_each(|failure| println!("{failure}"));
    let files: usize = workspace.crates.iter().map(|c| c.production().count()).sum();
    println!(
        "check: {} crates, {files} production files, failures: {}",
        workspace.crates.len(),
        failures.len()
    );
    // The process ends: to free every syntax tree takes a sixth of its time.
    std::mem::forget(workspace);
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(&arguments).unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}
