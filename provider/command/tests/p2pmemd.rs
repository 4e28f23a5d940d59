//! The daemon of peer memory.

use std::process::{Command, Output};

const TREE: &str = include_str!("../../extras/p2pmem/tests/trees/switches-intel.tree");

fn strait(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    strait(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn p2pmemd_gives_memory_to_a_process_by_rules() {
    let dir = std::env::temp_dir().join(format!("strait-p2pmemd-{}", std::process::id()));
    let (cpu, raw) = p2pmem::topology::recording::parse(TREE).unwrap();
    p2pmem::topology::recording::lay_out(&cpu, &raw, &dir.join("sys")).unwrap();
    let rules = dir.join("rules");
    let (sys, file) = (dir.join("sys"), rules.to_str().unwrap().to_owned());
    let sys = sys.to_str().unwrap();
    std::fs::write(&rules, "# a mistake\nquota lots\n").unwrap();
    let output = run(&["p2pmemd", "--sysfs", sys, "--rules", &file]);
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("rules: line 2: \"quota lots\""), "{error}");

    std::fs::write(&rules, "deny publisher=kind:sysfs client=mlx5_1\n").unwrap();
    let name = format!("strait-p2pmem-test/command/{}", std::process::id());
    let mut daemon =
        strait(&["p2pmemd", "--sysfs", sys, "--rules", &file, "--host", "1MiB", "--name", &name])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(daemon.stdout.take().unwrap()));
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), format!("strait p2pmemd: listens at @{name}"));
    assert_eq!((line(), line()), ("  0000:03:00.0 (sysfs): 64 MiB".into(), "  host (host): 1 MiB".into()));
    let mut own = p2pmem::daemon::Connection::open(&name).unwrap();
    let from = |own: &mut p2pmem::daemon::Connection, client| {
        own.allocate(&[client], 4096, 1, 1, true, "").unwrap().publisher.clone()
    };
    assert_eq!(from(&mut own, "mlx5_0"), "0000:03:00.0");
    assert_eq!(from(&mut own, "mlx5_1"), "host");
    let listed = text(&run(&["p2pmemd", "--name", &name, "--list", "mlx5_0"]).stdout);
    let lines: Vec<&str> = listed.lines().collect();
    assert!(
        lines[0].starts_with("0000:03:00.0 (sysfs): ") && lines[0].ends_with(", 4 steps by bus addresses"),
        "{listed}"
    );
    assert!(lines[1].ends_with(" of 1 MiB free, 1 buffers, host memory") && lines.len() == 2, "{listed}");
    let far = text(&run(&["p2pmemd", "--name", &name, "--list", "eth0"]).stdout);
    assert!(far.lines().nth(1).is_some_and(|l| l.contains("not reached: ")), "{far}");
    let second = run(&["p2pmemd", "--sysfs", sys, "--name", &name]);
    assert!(text(&second.stderr).contains("another daemon"), "{}", text(&second.stderr));
    // A list that finds no room is an error.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let unwritten = strait(&["p2pmemd", "--name", &name, "--list"]).stdout(full).output().unwrap();
    let words = text(&unwritten.stderr);
    assert!(unwritten.status.code() == Some(1) && words.contains("standard output"), "{words}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(own.list(&[]).is_err());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn p2pmemd_refuses_what_is_no_file_of_rules_no_page_and_no_socket() {
    let refused = |args: &[&str], part: &str| {
        let output = run(&[&["p2pmemd"], args].concat());
        let words = text(&output.stderr);
        assert!(!output.status.success() && words.contains(part), "{args:?}: {words}");
    };
    refused(&["--rules", "/dev/zero"], "1048576 bytes");
    refused(&["--host", "1"], "pages of 4096 bytes");
    refused(&["--host", "4095"], "pages of 4096 bytes");
    let dir = std::env::temp_dir();
    refused(&["--name", dir.to_str().unwrap()], "no socket");
    refused(&["--list", "--name", &"x".repeat(200)], "107 bytes");
}
