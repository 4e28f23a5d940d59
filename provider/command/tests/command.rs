//! The command as people use it. What needs libfabric, or a provider it does not have, says so and is
//! skipped.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

fn strait(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FI_") && name != "FI_PROVIDER_PATH" {
            command.env_remove(name);
        }
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn run(args: &[&str]) -> Output {
    strait(args).output().unwrap()
}

/// What `strait info --json` prints, if there is a libfabric.
fn info() -> Option<Value> {
    let output = run(&["info", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let offered = value["provider"]["offered"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if offered { 0 } else { 1 }));
    if !value["libfabric"]["found"].as_bool().unwrap() {
        eprintln!("skipped: no libfabric is installed");
        return None;
    }
    Some(value)
}

/// The report of a short `strait perf` over `provider`, if libfabric has that.
fn perf(provider: &str, more: &[&str]) -> Option<Value> {
    info()?;
    let mut args = vec!["perf", "--providers", provider, "--json", "--quiet", "--time", "0.005"];
    args.extend(["--sizes", "8,5000,1M", "--reps", "2"]);
    args.extend(more);
    let output = run(&args);
    let errors = text(&output.stderr);
    if errors.contains("nothing could be measured") {
        eprintln!("skipped: provider {provider}: {errors}");
        return None;
    }
    assert!(output.status.success(), "{provider}: {errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["failed"].as_array().map(Vec::len), Some(0), "{report}");
    for row in report["rows"].as_array().unwrap() {
        assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["values"].as_array().unwrap().len(), 2, "{row}");
    }
    Some(report)
}

#[test]
fn help_and_wrong_usage() {
    for args in [&["--help"][..], &["info", "--help"], &["perf", "--help"]] {
        let output = run(args);
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("Usage: strait"));
    }
    for args in [&["perf", "--nonsense"][..], &["perf", "--reps", "x"], &["nonsense"], &[]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("--help"));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_shell_completes_commands_options_and_tests() {
    for (line, wanted) in [
        ("strait p2", "p2pmemd"),
        ("strait perf --te", "--tests"),
        ("strait perf --tests fetch", "fetch-atomic"),
        ("strait help sto", "storage"),
    ] {
        let script = "eval \"$1\"; COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
            _strait strait \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; echo \"${COMPREPLY[@]}\"";
        let file = text(&run(&["completions", "bash"]).stdout);
        let output = Command::new("bash").args(["-c", script, "-", &file, line]).output().unwrap();
        assert_eq!(text(&output.stdout).trim_end(), wanted, "{line}: {}", text(&output.stderr));
    }
    for (shell, part) in [("zsh", "#compdef strait"), ("fish", "complete -c strait")] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains(part), "{shell}");
    }
}

/// A command whose output is not wanted any more, or has no room, ends with a word at most.
#[test]
fn output_that_cannot_be_written_is_no_panic() {
    for args in [&["info"][..], &["info", "--json"], &["--help"], &["--version"], &["help", "perf"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = strait(args).stdout(full.try_clone().unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let errors = text(&output.stderr);
        assert!(errors.starts_with("strait: cannot write to standard output: "), "{args:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{args:?}: {errors}");
        // Not even that can be written.
        let status = strait(args).stdout(full.try_clone().unwrap()).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(1), "{args:?}");
        // The reader has gone.
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        let output = strait(args).stdout(std::os::fd::OwnedFd::from(writer)).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()), "{args:?}");
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(strait(&["nonsense"]).stderr(full).status().unwrap().code(), Some(2));
}

#[test]
fn info_shows_what_parameters_hold() {
    let set = [("FI_STRAIT_RING_SIZE", "1M"), ("FI_STRAIT_INJECT_SIZE", "abc"), ("FI_STRAIT_RNG_SIZE", "1")];
    let words = text(&strait(&["info"]).envs(set).output().unwrap().stdout);
    for part in [
        "FI_STRAIT_RING_SIZE = 1048576 (environment: 1M)",
        "FI_STRAIT_INJECT_SIZE = 4096 (default)",
        "FI_STRAIT_CMA = yes (default)",
        "WRONG: FI_STRAIT_INJECT_SIZE=abc",
        "WRONG: FI_STRAIT_RNG_SIZE is no parameter",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let output = strait(&["info", "--json"]).envs(set).output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let parameters = value["parameters"].as_array().unwrap();
    assert_eq!(parameters.iter().filter(|p| p["source"] == "environment").count(), 1, "{parameters:?}");
    assert_eq!(value["unknown"].as_array().unwrap().len(), 1);
}

/// A peer, as `strait info --json --peer` has it where peers are reached by `links`, and the exit code.
fn way(links: &str, peer: &str) -> (Value, Option<i32>) {
    let output = strait(&["info", "--json", "--peer", peer]).env("FI_STRAIT_LINKS", links).output().unwrap();
    let errors = text(&output.stderr);
    (serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {errors}")), output.status.code())
}

#[test]
fn info_shows_links_and_which_a_peer_gets() {
    let Some(found) = info().filter(|found| found["provider"]["offered"] == true) else {
        eprintln!("skipped: the provider is not offered");
        return;
    };
    let of = |found: &Value, name: &str| -> Value {
        found["links"].as_array().unwrap().iter().find(|link| link["name"] == name).cloned().unwrap()
    };
    assert_eq!(of(&found, "shm")["ok"], true, "{found}");
    let tcp = of(&found, "tcp");
    assert!(tcp["text"].as_str().unwrap().contains("its name is "), "{tcp}");
    let output = strait(&["info", "--json"]).env("FI_STRAIT_LINKS", "shm").output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in ["tcp", "ofi"] {
        let link = of(&found, name);
        assert!(link["ok"] == false && link["text"] == "FI_STRAIT_LINKS does not name it", "{link}");
    }
    // Addresses that no host has: for documentation, RFC 5737 and RFC 3849.
    for (links, peer, link, words, code) in [
        ("shm,tcp", "127.0.0.1:7", "shm", "its address is this host's; not tcp: shm comes before it", 0),
        ("shm,tcp", "fi_sockaddr_in://198.51.100.1:7", "tcp", "; not shm: its address is not this host's", 0),
        ("shm,tcp", "[2001:db8::7]:7", "tcp", "; not shm: its address is not this host's", 0),
        ("tcp", "127.0.0.1:7", "tcp", "; not shm: shared memory is not to be used", 0),
        ("shm", "198.51.100.1:7", "", "; not tcp: FI_STRAIT_LINKS does not name it", 1),
    ] {
        if peer.starts_with('[') && std::net::TcpListener::bind("[::1]:0").is_err() {
            eprintln!("skipped: no IPv6 here");
            continue;
        }
        let (way, exit) = way(links, peer);
        assert_eq!(
            (way["link"].as_str().unwrap_or_default(), exit),
            (link, Some(code)),
            "{links} {peer}: {way}"
        );
        assert!(way["path"].as_str().unwrap().contains(words), "{links} {peer}: {way}");
        assert!(peer.ends_with(way["peer"].as_str().unwrap()), "{way}");
    }
    let output = strait(&["info", "--peer", "198.51.100.1:7"])
        .env("FI_STRAIT_LINKS", "shm,ofi:none")
        .output()
        .unwrap();
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    assert!(errors.contains("ofi: none: not there") && errors.contains("add"), "{errors}");
}

#[test]
fn info_says_what_an_address_is_where_it_is_given_none() {
    for peer in ["10.9.0.2", "fi_shm://x", "10.9.0.2:0", "::1", ""] {
        let output = run(&["info", "--peer", peer]);
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{peer:?}");
        let reasons = errors.lines().filter(|line| line.contains("an address is such as 10.9.0.2:46949"));
        assert_eq!(reasons.count(), 1, "{errors}");
    }
}

#[test]
fn perf_finds_out_first_what_cannot_be_done() {
    if info().is_none() {
        return;
    }
    for (more, word) in [
        (["--cpus", "0,9999"], "core 9999"),
        (["--csv", "/nonexistent/a.csv"], "/nonexistent/a.csv"),
        (["--plot", "/nonexistent/a.svg"], "/nonexistent/a.svg"),
    ] {
        let output = strait(&["perf", "--tests", "lat", "--quiet"]).args(more).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        assert!(errors.contains(word) && errors.lines().count() == 1, "{more:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_version_is_one_line() {
    let version = text(&run(&["--version"]).stdout);
    assert!(version.starts_with(&format!("strait {}", env!("CARGO_PKG_VERSION"))), "{version}");
    assert_eq!(version.lines().count(), 1);
}

#[test]
fn info_shows_what_there_is() {
    let words = text(&run(&["info"]).stdout);
    for word in ["strait", "libfabric", "provider", "link shm", "membarrier", "open files"] {
        assert!(words.lines().any(|line| line.starts_with(word)), "{word}: {words}");
    }
    if let Some(value) = info() {
        assert!(value["cpus"].as_array().is_some_and(|cpus| !cpus.is_empty()));
        assert!(value["cma"]["text"].is_string());
        if value["provider"]["offered"] == false {
            assert!(!value["provider"]["advice"].as_array().unwrap().is_empty());
        }
    }
}

#[test]
fn info_without_the_provider_says_what_to_do() {
    if info().is_none() {
        return;
    }
    let output = strait(&["info"]).env("FI_PROVIDER_PATH", "/nonexistent").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("libstrait-fi.so is not in FI_PROVIDER_PATH=/nonexistent"));
    let output = strait(&["info"]).env("FI_PROVIDER", "^strait").output().unwrap();
    assert!(text(&output.stdout).contains("FI_PROVIDER=^strait keeps it out"));
}

#[test]
fn info_without_libfabric_still_shows_the_rest() {
    let output = run(&["info", "--libfabric", "/nonexistent/libfabric.so.1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("NOT FOUND"));
    assert!(text(&output.stdout).contains("membarrier"));
}

#[test]
fn perf_over_shm() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let [png, svg, csv] = ["perf.png", "perf.svg", "perf.csv"].map(|name| dir.join(name));
    let files = [&png, &csv].map(|path| path.to_str().unwrap());
    let more = ["--tests", "all", "--floors", "--plot", files[0], "--csv", files[1]];
    let Some(report) = perf("shm", &more) else {
        return;
    };
    // shm has all: 14 tests over 3 sizes and 4 of one size. How many floors there are is up to the host.
    let rows = report["rows"].as_array().unwrap();
    let of_shm = rows.iter().filter(|row| row["provider"] == "shm").count();
    assert_eq!(of_shm, 14 * 3 + 4);
    assert!(rows.len() > of_shm);
    assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), rows.len() + 1);
    if perf("shm", &["--tests", "lat", "--plot", svg.to_str().unwrap()]).is_some() {
        assert!(std::fs::read_to_string(&svg).unwrap().contains("tagged ping-pong"));
    }
}

#[test]
fn perf_over_tcp() {
    perf("tcp;ofi_rxm", &["--tests", "lat,bw,rma-write,rma-read"]);
}

#[test]
fn perf_over_strait() {
    if info().is_some_and(|info| info["provider"]["offered"] == true) {
        perf("strait", &["--tests", "all"]).expect("offered, but nothing could be measured");
        let more = ["--tests", "incast,ring,exchange,storm", "--procs", "5"];
        let report = perf("strait", &more).expect("offered, but nothing could be measured");
        assert_eq!(
            (&report["procs"], report["rows"].as_array().map(Vec::len)),
            (&Value::from(5), Some(4 * 3))
        );
    } else {
        eprintln!("skipped: provider strait is not offered here; set FI_PROVIDER_PATH");
    }
}

#[test]
fn a_provider_that_is_not_there_is_no_hang() {
    if info().is_none() {
        return;
    }
    let begin = Instant::now();
    let output = run(&["perf", "--providers", "nonesuch", "--tests", "lat"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nonesuch"));
    assert!(begin.elapsed() < Duration::from_secs(60));
}

/// A peer that stops is noticed, and reported.
#[test]
fn a_stopped_peer_is_a_timeout() {
    if perf("shm", &["--tests", "lat", "--sizes", "8", "--reps", "2"]).is_none() {
        return;
    }
    let args = ["perf", "--providers", "shm", "--tests", "lat", "--sizes", "8"];
    let more = ["--reps", "1000", "--time", "0.1", "--timeout", "1"];
    let mut command = strait(&args);
    command.args(more).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let list = format!("/proc/{0}/task/{0}/children", child.id());
    let deadline = Instant::now() + Duration::from_secs(30);
    let second = loop {
        let children = std::fs::read_to_string(&list).unwrap_or_default();
        let second = children.split_whitespace().nth(1).and_then(|pid| pid.parse::<i32>().ok());
        if second.is_some() || Instant::now() > deadline {
            break second;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let Some(second) = second else {
        eprintln!("skipped: this kernel does not list children");
        let mut child = child;
        child.kill().unwrap();
        child.wait().unwrap();
        return;
    };
    std::thread::sleep(Duration::from_secs(1));
    // SAFETY: a signal to a process that our child started and has not reaped.
    unsafe { libc::kill(second, libc::SIGSTOP) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("TIMEOUT"), "{}", text(&output.stderr));
}

/// A recorded tree, and a directory of that tree that is laid out as /sys is.
fn tree(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../extras/p2pmem/tests/trees/{name}.tree"))
}

#[test]
fn topo_prints_the_tree_the_distances_and_why_there_is_no_way() {
    let file = tree("switches-acs");
    let file = file.to_str().unwrap();
    let table = text(&run(&["topo", "--sysfs", file]).stdout);
    for part in [
        "0000:03:00.0 nvme0               NVMe [144d:a80a], publishes 64 MiB",
        "switch, downstream [10b5:8749], ACS redirects",
        "not-supported: the kernel does not list the host bridge of root bus 0000:00 (8086:29c0)",
        "pci=disable_acs_redir=0000:02:00.0;0000:02:01.0",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(!table.contains("0000:00:00.0 "), "it neither publishes nor uses memory");
    assert!(text(&run(&["topo", "--all", "--sysfs", file]).stdout).contains("0000:00:00.0 "));
    let value: Value = serde_json::from_slice(&run(&["topo", "--json", "--sysfs", file]).stdout).unwrap();
    assert_eq!(value["devices"].as_array().unwrap().len(), 14);
    assert_eq!(value["devices"][4]["upstream"], "0000:01:00.0");
    let to = |name: &str| {
        value["routes"].as_array().unwrap().iter().find(|r| r["client"] == name).unwrap().clone()
    };
    assert_eq!(
        (to("0000:03:00.0")["map"].as_str(), to("0000:04:00.0")["distance"].as_u64()),
        (Some("bus-address"), Some(4))
    );
    assert_eq!(to("0000:04:00.0")["acs_redirects"].as_array().unwrap().len(), 2);
}

#[test]
fn topo_draws_the_way_between_two_devices() {
    let file = tree("switches-intel");
    let file = file.to_str().unwrap();
    let picture = std::env::temp_dir().join(format!("strait-topo-{}.svg", std::process::id()));
    let output = run(&["topo", "--sysfs", file, "--path", "nvme0,card0", "--svg", picture.to_str().unwrap()]);
    let steps = text(&output.stdout);
    assert!(steps.starts_with("bus-address, distance 6: turns round at 0000:01:00.0\n"), "{steps}");
    assert_eq!(steps.lines().count(), 8);
    let svg = std::fs::read_to_string(&picture).unwrap();
    std::fs::remove_file(&picture).unwrap();
    // Of each device that is shown a box, and of those on the way one with a thick edge.
    assert_eq!(svg.matches("rx=\"3\"").count(), 13);
    assert_eq!(svg.matches("stroke=\"#c00000\" stroke-width=\"2\"").count(), 7);
    assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    assert!(svg.contains(">6 bus<") && svg.contains(">none<") && svg.trim_end().ends_with("</svg>"));
    for (args, part) in [
        (vec!["topo", "--sysfs", file, "--path", "nvme0,nvme9"], "nvme9: no PCI function"),
        (vec!["topo", "--sysfs", "/nowhere"], "/nowhere"),
        (vec!["topo", "--sysfs", "/dev/null", "--svg", "/nowhere/x.svg"], "/nowhere/x.svg"),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}

#[test]
fn topo_records_what_it_can_read_again() {
    let recorded = run(&["topo", "--record"]);
    assert!(recorded.status.success(), "{}", text(&recorded.stderr));
    let file = std::env::temp_dir().join(format!("strait-topo-{}.tree", std::process::id()));
    std::fs::write(&file, &recorded.stdout).unwrap();
    let of = |args: &[&str]| text(&run(&[&["topo", "--all", "--json"], args].concat()).stdout);
    let (own, again) = (of(&[]), of(&["--sysfs", file.to_str().unwrap()]));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(own, again);
}

#[test]
fn a_picture_that_finds_no_room_is_an_error() {
    let dir = std::env::temp_dir().join(format!("strait-plot-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (csv, full) = (dir.join("a.csv"), dir.join("full.svg"));
    let rows = "lat,8,strait,us,0.2,0.2,0.2,0.2\nlat,64,strait,us,0.3,0.3,0.3,0.3\n";
    std::fs::write(&csv, format!("test,bytes,provider,unit,median,min,max,values\n{rows}")).unwrap();
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let args = ["plot", csv.to_str().unwrap(), full.to_str().unwrap()];
    let output = run(&args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("full.svg") && errors.contains("No space left"), "{errors}");
    let drawn = dir.join("b.svg");
    assert!(run(&["plot", csv.to_str().unwrap(), drawn.to_str().unwrap()]).status.success());
    assert!(std::fs::read_to_string(&drawn).unwrap().contains("</svg>"));
    std::fs::remove_dir_all(&dir).unwrap();
}
