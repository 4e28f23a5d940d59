//! tests/xpu/streams.cc, a C++ program with include/strait_stream.h, over the stand-in for CUDA's driver.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with the program and what it loads, removed on drop.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the program, and expects it to say that all was as it is to be. Without a compiler nothing is run.
fn run(args: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let dir = std::env::temp_dir().join(format!("strait-streams-{}-{}", args.concat(), std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let scratch = Scratch(dir);
    let dir = &scratch.0;
    // Cargo builds the libraries for this test; their files are beside the test's own.
    for (library, name) in [("strait_xpu", "libstrait_xpu.so.0"), ("cuda_stand_in", "libcuda.so.1")] {
        let built = std::env::current_exe().unwrap().with_file_name(format!("lib{library}.so"));
        std::fs::copy(&built, dir.join(name)).unwrap();
    }
    let program = dir.join("streams");
    let built = Command::new("c++")
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(root.join("tests/xpu/streams.cc"))
        .arg("-I")
        .arg(root.join("include"))
        .arg(dir.join("libstrait_xpu.so.0"))
        .arg("-ldl")
        .status();
    match built {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return eprintln!("skipped: no C++ compiler"),
        built => assert!(built.unwrap().success()),
    }
    let done = Command::new(program).args(args).env("LD_LIBRARY_PATH", dir).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.starts_with("ok streams"), "{args:?}: {said}{why}");
}

#[test]
fn each_call_does_what_it_promises_and_each_wait_ends() {
    run(&["contract"]);
}

#[test]
fn streams_exchange_batches_through_device_memory() {
    run(&["exchange", "stream", "400"]);
}

#[test]
fn streams_exchange_batches_through_host_memory() {
    run(&["exchange", "host", "400"]);
}

#[test]
fn captured_graphs_are_replayed_with_contents() {
    run(&["exchange", "graph", "1000"]);
}

#[test]
fn graphs_made_of_nodes_are_replayed_with_contents() {
    run(&["exchange", "nodes", "1000"]);
}

#[test]
fn processes_without_a_device_exchange_by_the_cpu() {
    run(&["exchange", "cpu", "2000"]);
}

#[test]
fn a_stream_passes_when_its_peer_is_killed_and_nothing_behind_the_wait_is_moved() {
    run(&["kill", "10"]);
}
