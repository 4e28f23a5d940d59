//! The commit this is built from, if it is built from a repository; a tarball has none.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=STRAIT_COMMIT");
    let commit = commit().map(|commit| format!(" ({commit})")).unwrap_or_default();
    println!("cargo::rustc-env=STRAIT_VERSION={}{commit}", env!("CARGO_PKG_VERSION"));
}

fn commit() -> Option<String> {
    // Named by what makes packages, which may do so from a copy.
    if let Ok(commit) = std::env::var("STRAIT_COMMIT") {
        return Some(commit).filter(|commit| !commit.is_empty());
    }
    // A tarball may lie inside of another repository.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let top = git(&["rev-parse", "--show-toplevel"]);
    if top.and_then(|top| Path::new(&top).canonicalize().ok()) != root.canonicalize().ok() {
        return None;
    }
    // Changed by every commit and every checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        let log = Path::new(env!("CARGO_MANIFEST_DIR")).join(log);
        if log.exists() {
            println!("cargo::rerun-if-changed={}", log.display());
        }
    }
    git(&["describe", "--always", "--dirty", "--tags"])
}

/// What git says of this directory; nothing if there is no git, or no repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
