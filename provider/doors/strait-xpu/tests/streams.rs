//! tests/xpu/streams.cc, a C++ program with include/strait_stream.h, over the stand-in for CUDA's driver.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with the program and what it loads, removed on drop.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The contents of all files below a directory.
fn contents(dir: &Path, into: &mut DefaultHasher) {
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    for path in all {
        if path.is_dir() {
            contents(&path, into);
        } else {
            (&path, std::fs::read(&path).unwrap()).hash(into);
        }
    }
}

/// The object file of a program of tests/xpu, which compiles longer than most tests of it run: they share it, as long as
/// the sources and the headers are the same. `None` without a compiler.
fn object(compiler: &[&str], source: &Path) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut state = DefaultHasher::new();
    (compiler, source).hash(&mut state);
    contents(&root.join("include"), &mut state);
    contents(&root.join("tests/xpu"), &mut state);
    let name = format!("strait-streams-{}-", source.file_stem().unwrap().to_str().unwrap());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let made = dir.join(format!("{name}{:016x}.o", state.finish()));
    if made.exists() {
        return Some(made);
    }
    // Another test may compile it meanwhile: each to a file of its own.
    let own = made.with_extension(std::process::id().to_string());
    let done = Command::new(compiler[0])
        .args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-c", "-o"])
        .arg(&own)
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/xpu").join(source))
        .status();
    match done {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: no {}", compiler[0]);
            return None;
        }
        done => assert!(done.unwrap().success(), "{} does not compile", source.display()),
    }
    std::fs::rename(&own, &made).unwrap();
    Some(made)
}

/// A program of tests/xpu in such a directory; `None` without a compiler.
fn built(name: &str, compiler: &[&str], source: &Path) -> Option<Scratch> {
    let object = object(compiler, source)?;
    let dir = std::env::temp_dir().join(format!("strait-streams-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let scratch = Scratch(dir);
    let dir = &scratch.0;
    // Cargo builds the libraries for this test; their files are beside the test's own.
    for (library, name) in [("strait_xpu", "libstrait_xpu.so.0"), ("cuda_stand_in", "libcuda.so.1")] {
        let built = std::env::current_exe().unwrap().with_file_name(format!("lib{library}.so"));
        std::fs::copy(&built, dir.join(name)).unwrap();
    }
    let done = Command::new(compiler[0])
        .arg("-o")
        .args([dir.join("program"), object, dir.join("libstrait_xpu.so.0"), dir.join("libcuda.so.1")])
        .arg("-ldl")
        .status();
    assert!(done.unwrap().success(), "{name} is not linked");
    Some(scratch)
}

/// Runs a program, and expects it to say that all was as it is to be.
fn runs(in_dir: &Scratch, args: &[&str], says: &str) {
    runs_with(in_dir, args, &[], says);
}

fn runs_with(in_dir: &Scratch, args: &[&str], variables: &[(&str, &str)], says: &str) {
    let mut program = Command::new(in_dir.0.join("program"));
    let done = program
        .args(args)
        .envs(variables.iter().copied())
        .env("LD_LIBRARY_PATH", &in_dir.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.starts_with(says), "{args:?}: {said}{why}");
}

fn run(args: &[&str]) {
    if let Some(program) = built(&args.concat(), &["c++", "-std=c++17"], Path::new("streams.cc")) {
        runs(&program, args, "ok streams");
    }
}

/// The same by an agent, over TCP alone.
fn run_by_agent(args: &[&str], mode: &str) {
    if let Some(program) = built(&args.concat(), &["c++", "-std=c++17"], Path::new("streams.cc")) {
        let variables = [("FI_STRAIT_LINKS", "tcp"), ("FI_STRAIT_XPU_MODE", mode)];
        runs_with(&program, args, &variables, "ok streams");
    }
}

#[test]
fn a_graph_of_100_exchanges_is_replayed() {
    run(&["replays", "graph", "10"]);
}

#[test]
fn an_agent_carries_batches_of_streams() {
    run_by_agent(&["agent", "stream", "200"], "auto");
}

#[test]
fn an_agent_carries_for_graphs_that_are_replayed() {
    run_by_agent(&["agent", "graph", "200"], "auto");
}

#[test]
fn an_agent_carries_for_processes_without_a_device() {
    run_by_agent(&["agent", "cpu", "400"], "auto");
}

#[test]
fn a_stream_passes_when_the_peer_of_an_agent_is_killed() {
    run_by_agent(&["agent-kill", "5"], "auto");
}

#[test]
fn an_agent_in_economy_mode_polls_at_most_each_100_microseconds() {
    run_by_agent(&["agent-rest"], "economy");
}

/// tests/xpu/gds/latency.c, by libgdsync's names.
fn gds(args: &[&str]) {
    let own = ["cc", "-std=gnu11", "-DSTRAIT_GDS_WITHOUT_VERBS"];
    if let Some(program) = built(&format!("gds{}", args.concat()), &own, Path::new("gds/latency.c")) {
        runs(&program, args, "ok gds_latency");
    }
}

#[test]
fn the_loop_of_libgdsync_exchanges_by_a_stream() {
    gds(&["stream", "1000"]);
}

#[test]
fn the_loop_of_libgdsync_exchanges_by_descriptors() {
    gds(&["descriptors", "1000"]);
}

#[test]
fn the_loop_of_libgdsync_exchanges_by_the_cpu() {
    gds(&["cpu", "1000"]);
}

#[test]
fn libgdsync_s_calls_refuse_what_cannot_be_and_complete_with_an_error_when_the_peer_ends() {
    gds(&["contract"]);
}

/// The header is C and C++, beside rdma-core's header where that is installed, and alone.
#[test]
fn libgdsync_s_names_compile_as_c_and_cpp() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let alone = "-DSTRAIT_GDS_WITHOUT_VERBS";
    let verbs = Path::new("/usr/include/infiniband/verbs.h").exists();
    let flags: &[&str] = if verbs { &[alone, "-DWITH_VERBS"] } else { &[alone] };
    for [language, standard] in [["c", "-std=c11"], ["c++", "-std=c++11"], ["c++", "-std=c++20"]] {
        for flag in flags {
            let done = Command::new("c++")
                .args([standard, flag, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
                .arg(root.join("include"))
                .args(["-x", language])
                .arg(root.join("tests/xpu/gds/syntax.c"))
                .status();
            match done {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return eprintln!("skipped: no c++"),
                done => assert!(done.unwrap().success(), "{standard} {flag}"),
            }
        }
    }
}

/// What a program changes is what docs/streams.md says: the lines of the loop that stand for others with verbs.
#[test]
fn the_port_of_the_loop_changes_less_than_sixty_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let text = std::fs::read_to_string(root.join("tests/xpu/gds/latency.c")).unwrap();
    let changed = text.lines().filter(|l| l.ends_with("/* verbs */")).count();
    let manual = std::fs::read_to_string(root.join("docs/streams.md")).unwrap();
    assert!((5..60).contains(&changed) && manual.contains(&format!("{changed} lines")), "{changed} lines");
}

#[test]
fn each_call_does_what_it_promises_and_each_wait_ends() {
    run(&["contract"]);
}

#[test]
fn parts_of_messages_arrive_by_several_blocks_and_all_of_them_leave_a_wait() {
    run(&["parts"]);
}

#[test]
fn a_stream_passes_its_words_when_they_are_raised_and_stores_behind_what_precedes() {
    run(&["words"]);
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
