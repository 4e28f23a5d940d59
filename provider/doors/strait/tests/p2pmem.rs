//! C programs with include/strait_p2pmem.h, over a tree that is laid out as sysfs is, and a daemon.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use p2pmem::daemon::Server;
use p2pmem::publisher::Host;
use p2pmem::topology::recording;
use p2pmem::{Orchestrator, Rules, Topology};

const TREE: &str = include_str!("../../../extras/p2pmem/tests/trees/switches-intel.tree");

/// A directory for a test, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("strait-c-p2pmem-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let (cpu, raw) = recording::parse(TREE).unwrap();
        recording::lay_out(&cpu, &raw, &dir.join("sys")).unwrap();
        Scratch(dir)
    }

    /// Compiles a program of tests/p2pmem, or the example of docs/examples, against the library; `None` without a compiler.
    fn program(&self, name: &str) -> Option<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        // Cargo builds the library for this test; its file is beside the test's own.
        let exe = std::env::current_exe().unwrap();
        let built = exe.with_file_name("libstrait.so");
        for name in ["libstrait.so", "libstrait.so.0"] {
            std::fs::copy(&built, self.0.join(name)).unwrap();
        }
        let program = self.0.join(name);
        let done = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(match name {
                "example" => root.join("docs/examples/p2pmem.c"),
                "p2pmem_share" => root.join("docs/examples/p2pmem_share.c"),
                name => root.join(format!("tests/p2pmem/{name}.c")),
            })
            .arg("-I")
            .arg(root.join("include"))
            .arg("-L")
            .arg(&self.0)
            .args(["-lstrait", "-Wl,-rpath"])
            .arg(format!("-Wl,{}", self.0.display()))
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

    fn run(&self, program: &Path, args: &[&str]) -> Output {
        Command::new(program).arg(self.0.join("sys")).args(args).output().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_example_gets_memory_from_the_closest_publisher() {
    let scratch = Scratch::new("example");
    let Some(program) = scratch.program("example") else { return };
    let near = scratch.run(&program, &["5000", "mlx5_0", "card0"]);
    assert_eq!(text(&near.stdout), "8192 bytes of 0000:03:00.0 (sysfs)\n", "{}", text(&near.stderr));
    let far = scratch.run(&program, &["5000", "eth0"]);
    assert_eq!(text(&far.stdout), "8192 bytes of host (host)\n");
    let none = scratch.run(&program, &["5000", "mlx5_9"]);
    assert!(!none.status.success() && text(&none.stderr).contains("mlx5_9: no PCI function"));
    let lines = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/examples/p2pmem.c"),
    );
    assert!(lines.unwrap().lines().count() <= 40, "an example is short");
}

#[test]
fn the_other_example_reads_a_file_into_memory_of_a_device() {
    let scratch = Scratch::new("read");
    let Some(program) = scratch.program("read") else { return };
    let file = scratch.0.join("file");
    std::fs::write(&file, (0..10_000).map(|n| (n % 251) as u8).collect::<Vec<_>>()).unwrap();
    let read = |bytes: &str, file: &Path| scratch.run(&program, &[file.to_str().unwrap(), bytes, "mlx5_0"]);
    // Byte 8191 is 8191 - 32 * 251.
    let done = read("8192", &file);
    assert!(text(&done.stdout).starts_with("8192 bytes, the last one 159; path "), "{}", text(&done.stderr));
    let end = read("16384", &file);
    assert!(text(&end.stdout).starts_with("10000 bytes, the last one 210; path "), "{}", text(&end.stdout));
    let none = read("8192", &scratch.0.join("none"));
    assert!(!none.status.success() && text(&none.stderr).contains("No such file"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/p2pmem/read.c");
    assert!(std::fs::read_to_string(source).unwrap().lines().count() <= 52, "an example is short");
}

/// With host memory: that of devices is in the guest of ci/suite/guest.
#[test]
fn files_are_read_and_written_by_the_functions_of_the_storage_header() {
    let scratch = Scratch::new("storage");
    let Some(program) = scratch.program("storage") else { return };
    let done = Command::new(program).arg(scratch.0.join("file")).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("bytes"), "{}", text(&done.stdout));
}

/// A daemon in a thread, until this is dropped.
struct Daemon {
    name: String,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Daemon {
    fn new(test: &str, all: Orchestrator) -> Daemon {
        let name = format!("strait-p2pmem-test/c-{test}/{}", std::process::id());
        let mut server = Server::new(&name, all).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let turns = move || {
            while !until.load(Ordering::Relaxed) {
                server.serve_once(Duration::from_millis(20));
            }
        };
        Daemon { name, stop, thread: Some(std::thread::spawn(turns)) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

#[test]
fn every_function_does_what_the_header_says() {
    let scratch = Scratch::new("api");
    let Some(program) = scratch.program("api") else { return };
    let all = Orchestrator::new(Topology::parse(TREE).unwrap(), Rules::default(), None);
    all.publish(Arc::new(Host::new(1 << 20))).unwrap();
    let daemon = Daemon::new("api", all);
    let done = scratch.run(&program, &[&daemon.name]);
    assert!(done.status.success(), "{}", text(&done.stderr));
}

#[test]
fn a_call_has_the_same_result_in_the_process_and_by_the_daemon() {
    let scratch = Scratch::new("both");
    let Some(program) = scratch.program("both") else { return };
    let all = Orchestrator::of_host(&scratch.0.join("sys"), Rules::default(), 1 << 20).unwrap();
    let daemon = Daemon::new("both", all.clone());
    let done = scratch.run(&program, &[&daemon.name]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    // What its process has published has gone with it.
    for _ in 0..12_000 {
        if all.publishers().len() == 2 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{:?}", all.publishers());
}

/// Three processes of the example: one publishes, one uses, one joins; then the first one is killed.
#[test]
fn the_example_shares_memory_between_processes_until_its_publisher_ends() {
    use std::io::BufRead as _;
    let scratch = Scratch::new("share");
    let Some(program) = scratch.program("p2pmem_share") else { return };
    let all = Orchestrator::new(Topology::parse(TREE).unwrap(), Rules::default(), None);
    all.publish(Arc::new(Host::new(1 << 20))).unwrap();
    let daemon = Daemon::new("share", all);
    let start = |args: &[&str]| {
        let mut child = Command::new(&program)
            .arg(&daemon.name)
            .args(args)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines.map(Result::unwrap))
    };
    let (mut owner, mut said) = start(&["publish", "card", "0000:07:00.0", "65536"]);
    assert_eq!(said.next().as_deref(), Some("published"));
    let (mut user, mut lines) = start(&["use", "8192", "mlx5_0"]);
    assert_eq!(lines.next().as_deref(), Some("card (file): 6 steps, 65536 bytes"));
    assert_eq!(lines.next().as_deref(), Some("host (host): 0 steps, 1048576 bytes"));
    let token = lines.next().unwrap();
    let join = ["join", token.strip_prefix("token ").unwrap()];
    let (mut third, mut joined) = start(&join);
    assert_eq!(joined.next().as_deref(), Some("written by the first user"));
    assert!(third.wait().unwrap().success());
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_eq!(lines.next().as_deref(), Some("revoked: the process that published card has ended"));
    assert!(user.wait().unwrap().success());
    let none = Command::new(&program).arg(&daemon.name).args(join).output().unwrap();
    assert!(!none.status.success() && text(&none.stderr).contains("there is no buffer with that token"));
}
