//! C programs with include/strait_xpu.h: a thread of each plays the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles tests/xpu/api.c against the library, as C and as C++ would have it; `None` without a compiler.
fn program(dir: &Path) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Cargo builds the library for this test; its file is beside the test's own.
    let built = std::env::current_exe().unwrap().with_file_name("libstrait.so");
    for name in ["libstrait.so", "libstrait.so.0"] {
        std::fs::copy(&built, dir.join(name)).unwrap();
    }
    let program = dir.join("api");
    let done = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(root.join("tests/xpu/api.c"))
        .arg("-I")
        .arg(root.join("include"))
        .arg("-L")
        .arg(dir)
        .args(["-lstrait", "-Wl,-rpath"])
        .arg(format!("-Wl,{}", dir.display()))
        .status();
    match done {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: no C compiler");
            None
        }
        done => {
            assert!(done.unwrap().success());
            Some(program)
        }
    }
}

/// Runs it in that way.
fn run(way: &str) {
    let dir = std::env::temp_dir().join(format!("strait-c-xpu-{way}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    if let Some(program) = program(&dir) {
        let done = Command::new(program).arg(way).output().unwrap();
        assert!(done.status.success(), "{way}: {}", String::from_utf8_lossy(&done.stderr));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn two_processes_put_by_commands_and_by_stores() {
    run("exchange");
}

#[test]
fn the_kernel_of_a_process_whose_peer_is_killed_finds_error_words() {
    run("killed");
}

#[test]
fn calls_that_are_wrong_are_refused() {
    run("wrong");
}
