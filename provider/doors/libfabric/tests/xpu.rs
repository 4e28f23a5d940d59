//! A C program with include/strait_fi_xpu.h in an installed libfabric. Skipped where there is no libfabric to
//! compile with.

use std::path::Path;
use std::process::Command;

#[test]
fn a_kernel_puts_by_the_table_and_finds_out_that_its_target_was_killed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let dir = std::env::temp_dir().join(format!("strait-fi-xpu-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let built = std::env::current_exe().unwrap().with_file_name("libstrait_fi.so");
    std::fs::copy(&built, dir.join("libstrait-fi.so")).unwrap();
    let program = dir.join("fi");
    let done = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(root.join("tests/xpu/fi.c"))
        .arg("-I")
        .arg(root.join("include"))
        .arg("-lfabric")
        .output();
    let compiled = match done {
        Ok(done) if done.status.success() => true,
        Ok(done) => {
            let why = String::from_utf8_lossy(&done.stderr).into_owned();
            let lacks = why.contains("rdma/fabric.h") || why.contains("-lfabric");
            assert!(lacks, "{why}");
            false
        }
        Err(e) => {
            assert_eq!(e.kind(), std::io::ErrorKind::NotFound);
            false
        }
    };
    if compiled {
        let mut run = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("FI_")) {
            run.env_remove(name);
        }
        let done = run.env("FI_PROVIDER_PATH", &dir).output().unwrap();
        assert!(done.status.success(), "{:?} {}", done.status, String::from_utf8_lossy(&done.stderr));
    } else {
        eprintln!("skipped: no C compiler, or no libfabric to compile with (apt install libfabric-dev)");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
