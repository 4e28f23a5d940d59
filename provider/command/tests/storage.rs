//! `strait storage`: what it says of a file and memory, and what it leaves behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use p2pmem::topology::recording;
use serde_json::Value;

/// A directory on the disk of the build, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn strait(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strait")).arg("storage").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = strait(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 11 + (n >> 9)) as u8).collect()
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_file_is_read_copied_and_made_and_the_bytes_are_reported_by_path() {
    let scratch = Scratch::new("storage-host");
    let (file, other) = (scratch.0.join("file"), scratch.0.join("other"));
    std::fs::write(&file, content(300_000)).unwrap();
    let found = json(&[name(&file), "--reps", "2", "--no-direct"]);
    assert_eq!((&found["bytes"], &found["right"]), (&300_000.into(), &true.into()));
    assert_eq!(found["read"]["path"], "cached");
    assert_eq!(found["read"]["bytes_by_path"], serde_json::json!({"cached": 600_000}));
    assert!(found["read"]["why"].as_str().unwrap().contains("not wanted") && found["write"].is_null());
    assert_eq!(found["read"]["rates"].as_array().unwrap().len(), 2);
    let part = json(&[name(&file), "--size", "64KiB", "--reps", "1"]);
    assert_eq!(part["bytes"], 65_536);

    let copied = json(&[name(&file), "--copy", name(&other)]);
    assert_eq!((&copied["bytes"], &copied["right"]), (&300_000.into(), &true.into()));
    assert_eq!(std::fs::read(&other).unwrap(), content(300_000));
    // What is there is not written over.
    for args in [[name(&file), "--copy", name(&other)].as_slice(), &[name(&file), "--create"]] {
        let output = strait(args);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("exists"), "{args:?}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), content(300_000));

    let fresh = scratch.0.join("fresh");
    let output = strait(&[name(&fresh), "--create", "--size", "1MiB", "--reps", "1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("contents right") && text.contains("write"), "{text}");
    assert!(!fresh.exists(), "what was made is removed");
}

#[test]
fn a_window_that_a_device_publishes_is_memory_too() {
    let scratch = Scratch::new("storage-window");
    let sys = scratch.0.join("sys");
    let tree = include_str!("../../extras/p2pmem/tests/trees/switches-intel.tree");
    let (cpu, raw) = recording::parse(tree).unwrap();
    recording::lay_out(&cpu, &raw, &sys).unwrap();
    let file = scratch.0.join("file");
    std::fs::write(&file, content(300_001)).unwrap();
    let at = ["--sysfs", name(&sys), "--memory"];
    let found = json(&[&at[..], &["nvme0", name(&file), "--reps", "1"]].concat());
    assert_eq!((&found["memory"], &found["right"]), (&"nvme0".into(), &true.into()));
    assert!(found["read"]["bytes_by_path"]["bounce"].as_u64().unwrap() > 0, "{found}");
    for (memory, words) in [("eth0", "no publisher"), ("nvme9", "no PCI function"), ("cuda:x", "cuda:0")] {
        let output = strait(&[&at[..], &[memory, name(&file)]].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(words), "{memory}: {text}");
    }
}

#[test]
fn mistakes_are_reported() {
    for args in [
        &[][..],
        &["--size", "0", "x"],
        &["--reps", "0", "x"],
        &["x", "y"],
        &["--create", "--copy", "y", "x"],
    ] {
        let output = strait(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--help"));
    }
    let output = strait(&["/none/such"]);
    assert!(
        output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("/none/such")
    );
    assert!(String::from_utf8_lossy(&strait(&["--help"]).stdout).contains("Usage: strait storage"));
}

#[test]
fn what_has_no_bytes_by_offset_is_refused_by_name() {
    let scratch = Scratch::new("storage-refused");
    let (pipe, other) = (scratch.0.join("pipe"), scratch.0.join("other"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (file, what) in [(name(&pipe), "a pipe"), ("/dev/zero", "a character device")] {
        for more in [[].as_slice(), &["--copy", name(&other)]] {
            let output = strait(&[&[file], more].concat());
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(1) && why.contains(&format!("{file}: {what}")), "{why}");
            assert!(!other.exists());
        }
    }
}

#[test]
fn a_copy_of_a_file_has_its_permissions_at_last_and_ends_with_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("storage-modes");
    let (file, other) = (scratch.0.join("file"), scratch.0.join("other"));
    std::fs::write(&file, content(3 << 20)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4751)).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    json(&[name(&file), "--copy", name(&other)]);
    assert_eq!(mode(&other), 0o751);
    std::fs::remove_file(&other).unwrap();
    for (args, left) in
        [(["--copy", name(&other), name(&file)], true), (["--create", "--reps=1", name(&other)], false)]
    {
        let output = Command::new("sh")
            .args(["-c", "ulimit -f 2048; exec \"$0\" storage \"$@\"", env!("CARGO_BIN_EXE_strait")])
            .args(args)
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && why.contains(name(&other)), "{:?}: {why}", output.status);
        assert!(other.exists() == left && (!left || mode(&other) == 0o600));
        let _ = std::fs::remove_file(&other);
    }
}
