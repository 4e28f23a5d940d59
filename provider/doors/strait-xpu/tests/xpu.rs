//! C programs with include/strait_xpu.h: a thread of each plays the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory for a test, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("strait-c-xpu-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    /// Compiles a program of tests/xpu/host against these libraries; `None` without a compiler.
    fn program(&self, name: &str, libraries: &[&str]) -> Option<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        for library in libraries {
            // Cargo builds the libraries for this test; their files are beside the test's own.
            let built = std::env::current_exe().unwrap().with_file_name(format!("lib{library}.so"));
            for ending in ["so", "so.0"] {
                std::fs::copy(&built, self.0.join(format!("lib{library}.{ending}"))).unwrap();
            }
        }
        let program = self.0.join(name);
        let done = Command::new("cc")
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .arg(root.join(format!("tests/xpu/host/{name}.c")))
            .arg("-I")
            .arg(root.join("include"))
            .arg("-L")
            .arg(&self.0)
            .args(libraries.iter().map(|library| format!("-l{library}")))
            .arg(format!("-Wl,-rpath,{}", self.0.display()))
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
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program, and expects it to succeed.
fn run(name: &str, libraries: &[&str], args: &[&str]) {
    let scratch = Scratch::new(&format!("{name}{}", args.concat()));
    if let Some(program) = scratch.program(name, libraries) {
        let done = Command::new(program).args(args).output().unwrap();
        assert!(done.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn two_processes_put_by_commands_and_by_stores() {
    run("api", &["strait_xpu"], &["exchange"]);
}

#[test]
fn threads_that_rest_are_woken_and_go_on() {
    run("api", &["strait_xpu"], &["resting"]);
}

#[test]
fn the_kernel_of_a_process_whose_peer_is_killed_finds_error_words() {
    run("api", &["strait_xpu"], &["killed"]);
}

#[test]
fn calls_that_are_wrong_are_refused() {
    run("api", &["strait_xpu"], &["wrong"]);
}

#[test]
fn commands_reach_memory_of_a_client_that_libstrait_has() {
    run("client", &["strait", "strait_xpu"], &[]);
}
