//! `strait doctor` and `strait top` as people use them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn strait(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(args);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if (text.starts_with("FI_") || text.starts_with("STRAIT_")) && name != "FI_PROVIDER_PATH" {
            command.env_remove(name);
        }
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(command: &mut Command) -> (Output, Value) {
    let output = command.output().unwrap();
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)));
    (output, value)
}

/// The findings of one area that are of one level.
fn findings<'a>(value: &'a Value, area: &str, level: &str) -> Vec<&'a Value> {
    let all = value["findings"].as_array().unwrap();
    all.iter().filter(|f| f["area"] == area && f["level"] == level).collect()
}

/// An empty directory of one test's own.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn the_exit_status_is_whether_there_is_a_problem() {
    let (output, value) = json(&mut strait(&["doctor", "--json"]));
    let all = value["findings"].as_array().unwrap();
    let problems = all.iter().filter(|f| f["level"] == "problem").count();
    assert_eq!(value["ok"], problems == 0);
    assert_eq!(output.status.code(), Some(if problems == 0 { 0 } else { 1 }), "{value}");
    for area in ["installed", "settings", "host", "devices"] {
        assert!(all.iter().any(|f| f["area"] == area), "{area}: {value}");
    }
    // Each is of use: it says what follows, or what to do.
    for finding in all.iter().filter(|f| f["level"] != "ok") {
        assert!(finding["means"].is_string() || finding["cure"].is_string(), "{finding}");
    }
    let words = text(&strait(&["doctor"]).output().unwrap().stdout);
    assert!(words.contains("\nhost\n") && words.contains("process_vm_readv(2) between processes"), "{words}");
}

#[test]
fn settings_that_do_not_hold_are_problems() {
    for (name, value, word) in [
        ("FI_PROVIDER_PATH", "/nonexistent", "FI_PROVIDER_PATH=/nonexistent has no libstrait-fi.so"),
        ("FI_PROVIDER", "shm", "FI_PROVIDER=shm keeps strait out"),
        ("FI_PROVIDER", "^strait", "FI_PROVIDER=^strait keeps strait out"),
        ("FI_STRAIT_RING_SIZE", "abc", "FI_STRAIT_RING_SIZE=abc is not understood"),
        ("FI_STRAIT_REPROT", "1", "is FI_STRAIT_REPORT meant?"),
        ("FI_STRAIT_LINKS", "smh", "\"smh\" is no link; is shm meant?"),
        ("FI_STRAIT_LINKS", "shm tcp", "names have commas between them"),
        ("FI_STRAIT_LINKS", "none", "\"none\" is no link"),
        ("FI_STRAIT_NIC", "nosuch0", "there is no such device"),
        ("FI_STRAIT_REPORT", "foo", "FI_STRAIT_REPORT=foo is not understood"),
        ("FI_STRAIT_COPY_AGENT", "/nonexistent", "FI_STRAIT_COPY_AGENT=/nonexistent is of no use"),
        ("FI_STRAIT_ALIAS", "tcp", "libfabric has a provider of its own of that name"),
        ("FI_STRAIT_PORTS", "90-80", "FI_STRAIT_PORTS=90-80 is not understood"),
        ("FI_STRAIT_LOG", "wran", "is warn meant?"),
        ("STRAIT_UCX_CMA", "nope", "STRAIT_UCX_CMA=nope is not understood"),
        ("STRAIT_UCX_REPROT", "1", "is STRAIT_UCX_REPORT meant?"),
        ("STRAIT_LINKS", "tcp", "is FI_STRAIT_LINKS meant?"),
        ("UCX_TLS", "strait", "neither LD_PRELOAD nor UCX_PLUGIN_PATH names the transport"),
    ] {
        let (output, found) = json(strait(&["doctor", "--json"]).env(name, value));
        assert_eq!(output.status.code(), Some(1), "{name}={value}");
        let problems = findings(&found, "settings", "problem");
        assert!(problems.iter().any(|f| f["text"].as_str().unwrap().contains(word)), "{word}: {problems:?}");
    }
    let (_, found) = json(strait(&["doctor", "--json"]).env("FI_PROVIDER", "strait"));
    assert_eq!(findings(&found, "settings", "problem"), Vec::<&Value>::new());
}

/// A file of the provider's name that is none, and one that is kept out: what is wrong is reported, and
/// nothing else.
#[test]
fn a_provider_that_libfabric_passes_over_has_one_reason() {
    let (_, host) = json(strait(&["info", "--json"]).env_remove("FI_PROVIDER_PATH"));
    if host["libfabric"]["found"] != true {
        eprintln!("skipped: no libfabric here");
        return;
    }
    let cure = |path: &Path, provider: &str| {
        let mut command = strait(&["doctor", "--json"]);
        let (_, found) = json(command.env("FI_PROVIDER_PATH", path).env("FI_PROVIDER", provider));
        let problems = findings(&found, "libfabric", "problem");
        problems.first().unwrap_or_else(|| panic!("{found}"))["cure"].as_str().unwrap().to_owned()
    };
    let dir = scratch("doctor-no-provider");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library =
        maps.lines().find_map(|l| l.find('/').map(|at| &l[at..]).filter(|p| p.contains("/libgcc_s.so")));
    std::fs::copy(library.unwrap(), dir.join("libstrait-fi.so")).unwrap();
    let none = cure(&dir, "strait");
    assert!(none.contains("it is no provider of libfabric: it lacks fi_prov_ini"), "{none}");
    let Some(real) = std::env::var_os("FI_PROVIDER_PATH") else { return };
    let kept_out = cure(Path::new(&real), "^strait");
    assert!(
        kept_out.contains("FI_PROVIDER=^strait keeps it out") && kept_out.lines().count() == 1,
        "{kept_out}"
    );
}

#[test]
fn libraries_are_found_by_their_names_and_distinguished_by_what_is_in_them() {
    let dir = scratch("doctor-libraries");
    for (name, contents) in [
        ("libmpi.so.40", "..Open MPI v5.0.3, .. mca_mtl_ofi_component"),
        ("libmpi.so.12", "MPICH Version:  MPIDI_OFI_x"),
        ("libmpich.so.3", "nothing of note"),
        ("libmpi.so", "Open MPI v9"),
        ("libuct.so.0", "no library at all"),
        ("libfabric.so.1", "no library at all"),
    ] {
        std::fs::write(dir.join(name), contents).unwrap();
    }
    let mut command = strait(&["doctor", "--json"]);
    let (_, found) = json(command.env("LD_LIBRARY_PATH", &dir));
    let of = |area: &str, file: &str| -> Value {
        let all = found["findings"].as_array().unwrap().iter();
        let path = dir.join(file).canonicalize().unwrap().display().to_string();
        let about = |f: &&Value| f["area"] == area && f["text"].as_str().unwrap().contains(&path);
        // The name of one file may begin that of another.
        all.filter(about).min_by_key(|f| f["text"].as_str().unwrap().len()).cloned().unwrap_or_default()
    };
    let open = of("MPI", "libmpi.so.40");
    assert!(open["text"].as_str().unwrap().starts_with("Open MPI 5.0.3 in "), "{open}");
    assert!(open["cure"].as_str().unwrap().contains("--mca mtl ofi"), "{open}");
    let mpich = of("MPI", "libmpi.so.12");
    assert!(mpich["cure"].as_str().unwrap().contains("MPIR_CVAR_CH4_NETMOD=ofi"), "{mpich}");
    assert_eq!(of("MPI", "libmpich.so.3")["level"], "note");
    let ucx = of("UCX", "libuct.so.0");
    assert_eq!(ucx["level"], "note", "{ucx}");
    assert!(!ucx["means"].as_str().unwrap().is_empty());
    let broken = &findings(&found, "libfabric", "note");
    assert!(broken.iter().any(|f| f["text"].as_str().unwrap().contains("cannot be loaded")), "{broken:?}");
}

#[test]
fn wrong_usage_is_reported_as_such() {
    for args in [&["doctor", "--nonsense"][..], &["doctor", "--"], &["top", "--delay", "x"], &["top", "x"]] {
        let output = strait(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_reason_why_a_program_does_not_use_strait_is_reported() {
    let run = |program: &[&str]| {
        let mut command = strait(&["doctor", "--"]);
        command.args(program).output().unwrap()
    };
    let output = run(&["sh", "-c", "echo out; test -n \"$FI_STRAIT_REPORT\""]);
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), "out\n"));
    assert!(
        errors.contains("no, strait carried nothing") && errors.contains("FI_PROVIDER is not set"),
        "{errors}"
    );
    assert!(errors.contains("exit status: 0"), "{errors}");
    let output = run(&["sh", "-c", "exit 7"]);
    assert!(text(&output.stderr).contains("exit status: 7") && output.status.code() == Some(1));
    let output = run(&["/nonexistent/program"]);
    let errors = text(&output.stderr);
    assert!(errors.contains("/nonexistent/program cannot be run") && errors.lines().count() == 1, "{errors}");
    let (_, value) = json(strait(&["doctor", "--json", "--", "true"]).env("FI_PROVIDER", "shm"));
    assert_eq!((&value["used"], &value["loaded"]), (&Value::from(false), &Value::from(0)));
    let reasons = value["reasons"].to_string();
    assert!(reasons.contains("FI_PROVIDER=shm keeps it out"), "{reasons}");
}

/// A signal to the doctor alone: it goes to the program, and what the doctor has to say still comes.
#[test]
fn a_signal_ends_the_program_and_not_the_answer() {
    use std::io::{BufRead, BufReader};
    let dir = scratch("doctor-signals");
    let program = "trap 'echo signalled; kill $!; exit 5' TERM; sleep 300 & echo ready; wait";
    for (signal, says, status) in [
        (libc::SIGTERM, "signalled\n", "exit status: 5"),
        (libc::SIGINT, "", "signal: 2"),
        (libc::SIGHUP, "", "signal: 1"),
    ] {
        let mut command = strait(&["doctor", "--"]);
        match signal {
            libc::SIGTERM => command.args(["sh", "-c", program]),
            // Signals that the tests' own parent ignores are ignored by the programs too.
            _ => command.args(["env", "--default-signal=INT,HUP", "sh", "-c", "echo ready; exec sleep 300"]),
        };
        command.env("TMPDIR", &dir).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut doctor = command.spawn().unwrap();
        let mut lines = BufReader::new(doctor.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        // SAFETY: the process is a child that was not waited for.
        unsafe { libc::kill(doctor.id() as libc::pid_t, signal) };
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
        let output = doctor.wait_with_output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), rest.as_str()), (Some(1), says), "{signal}: {errors}");
        assert!(errors.contains(&format!("the program ended with {status}")), "{signal}: {errors}");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "{signal}: a file is left");
    }
}

#[test]
fn a_signal_ends_the_wait_for_another_host_and_not_the_answer() {
    use std::os::unix::fs::PermissionsExt;
    for (name, signal) in [("int", libc::SIGINT), ("term", libc::SIGTERM)] {
        let dir = scratch(&format!("far-{name}"));
        let (rsh, called) = (dir.join("rsh"), dir.join("called"));
        // What removes the directory ends on the host `a` alone.
        let script = format!(
            "#!/bin/sh\ncase \"$1 $2\" in 'a rm '*) echo \"$2\" >>'{0}.rm'; exit ;; esac\n: >'{0}'\nexec sleep 300\n",
            called.display()
        );
        std::fs::write(&rsh, script).unwrap();
        std::fs::set_permissions(&rsh, std::fs::Permissions::from_mode(0o755)).unwrap();
        let child = strait(&["doctor", "--hosts", "a,b", "--rsh", rsh.to_str().unwrap(), "--", "true"])
            .env("TMPDIR", &dir)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let begin = std::time::Instant::now();
        while !called.exists() && begin.elapsed() < std::time::Duration::from_secs(10) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let begin = std::time::Instant::now();
        // SAFETY: kill(2) takes numbers, and the child was not waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        let output = child.wait_with_output().unwrap();
        let answer = text(&output.stderr);
        assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}: {answer}", begin.elapsed());
        assert!(answer.contains("strait doctor: no, strait carried nothing"), "{answer}");
        let removed = std::fs::read_to_string(dir.join("called.rm")).unwrap();
        let journals = removed.trim().strip_prefix("rm -rf ").unwrap().trim_matches('\'');
        assert!(journals.starts_with(dir.join("strait-doctor-").to_str().unwrap()), "{removed}");
        assert!(answer.contains(&format!("{journals} may be left on b")), "{answer}");
        assert!(!answer.contains("may be left on a"), "{answer}");
        assert!(answer.contains("processes on a: a signal ended the wait for them"), "{answer}");
    }
}

#[test]
fn a_program_that_hangs_is_ended_after_the_time_limit() {
    // Where no temporary file can be written another directory is taken.
    let mut command = strait(&["doctor", "--json", "--timeout", "0.5", "--", "sleep", "300"]);
    let (output, value) = json(command.env("TMPDIR", "/proc"));
    assert_eq!((output.status.code(), &value["used"]), (Some(1), &Value::from(false)));
    let causes = value["causes"].as_array().unwrap();
    let first = &causes[0];
    assert!(
        first["text"].as_str().unwrap().starts_with("no process that hangs has loaded Strait: sleep (pid "),
        "{value}"
    );
    assert!(causes.iter().all(|cause| !cause["todo"].as_str().unwrap().is_empty()), "{value}");
    let output = strait(&["doctor", "--timeout", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a time limit of no program");
}

/// `strait perf` over strait, run by the doctor, if that is offered here.
#[test]
fn what_went_which_way_is_reported_of_a_program_that_uses_strait() {
    let offered = strait(&["info"]).output().unwrap().status.success();
    if !offered {
        eprintln!("skipped: provider strait is not offered here; set FI_PROVIDER_PATH");
        return;
    }
    let exe = env!("CARGO_BIN_EXE_strait");
    let perf = |cma: &str| {
        let mut command = strait(&["doctor", "--json", "--", exe, "perf", "--providers", "strait"]);
        command.args(["--tests", "lat", "--sizes", "8,1M", "--reps", "1", "--time", "0.005", "--quiet"]);
        command.args(["--csv", "/dev/null"]).env("FI_STRAIT_CMA", cma);
        let output = command.output().unwrap();
        let out = text(&output.stdout);
        // What the program prints comes first.
        let value: Value = serde_json::from_str(&out[out.find("\n{").unwrap()..]).unwrap();
        assert_eq!(value["used"], true, "{value}");
        value
    };
    let ways = |value: &Value| {
        let all = value["ways"].as_array().unwrap().iter();
        all.map(|w| w["way"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let with = perf("yes");
    assert!(ways(&with).contains(&"ring".into()), "{with}");
    assert_eq!(with["out"]["messages"], with["in"]["messages"], "{with}");
    let without = perf("no");
    assert!(ways(&without).contains(&"frames".into()), "{without}");
    assert!(without["fell_back"].to_string().contains("switched off"), "{without}");
}

#[test]
fn top_lists_what_listens() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let name = format!("strait/127.0.0.1:{}", std::process::id() % 60_000 + 1);
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let (output, value) = json(&mut strait(&["top", "--once", "--json"]));
    assert!(output.status.success());
    let own = std::process::id();
    let process = value.as_array().unwrap().iter().find(|p| p["pid"] == own);
    let process = process.unwrap_or_else(|| panic!("{own} is not in {value}"));
    assert_eq!(process["endpoints"][0]["address"], name["strait/".len()..]);
    assert_eq!((&process["counted"], &process["carried"]), (&Value::from(false), &Value::Null));
    let words = text(&strait(&["top", "--once"]).output().unwrap().stdout);
    assert!(words.contains(&name["strait/".len()..]) && words.contains("FI_STRAIT_REPORT=1"), "{words}");
}

/// A directory in which the stand-ins are the libraries of RDMA devices and of CUDA's driver.
fn libraries(name: &str, all: &[(&str, &str)]) -> PathBuf {
    let dir = scratch(name);
    for (library, stand_in) in all {
        std::os::unix::fs::symlink(stand_in::program::path(stand_in), dir.join(library)).unwrap();
    }
    dir
}

/// What is said of RDMA devices: level and text, and what is to be done.
fn adapters(dir: &Path, devices: &str, fail: &str) -> Vec<(String, String, String)> {
    with_dmabufs(dir, devices, fail, "0")
}

/// The same where the stand-in for CUDA's driver exports such dma-bufs.
fn with_dmabufs(dir: &Path, devices: &str, fail: &str, exports: &str) -> Vec<(String, String, String)> {
    let mut command = strait(&["doctor", "--json"]);
    command
        .env("LD_LIBRARY_PATH", dir)
        .env("VERBS_STAND_IN_FAIL", fail)
        .env("CUDA_STAND_IN_DMABUFS", exports);
    let (_, value) = json(command.env("VERBS_STAND_IN_DEVICES", devices));
    let all = value["findings"].as_array().unwrap().iter();
    let word = |f: &Value, name: &str| f[name].as_str().unwrap_or_default().to_owned();
    let of = |f: &Value| (word(f, "level"), word(f, "text"), word(f, "cure"));
    all.filter(|f| f["text"].as_str().unwrap().starts_with("RDMA")).map(of).collect()
}

#[test]
fn each_rdma_device_says_which_memory_it_takes_and_what_refuses_the_rest() {
    let dir =
        libraries("rdma", &[("libibverbs.so.1", "verbs_stand_in"), ("librdmacm.so.1", "verbs_stand_in")]);
    for (devices, fail, level, words) in [
        ("none", "", "ok", &["RDMA: no device in /sys/class/infiniband"][..]),
        (
            "sv0",
            "",
            "ok",
            &[
                "RDMA sv0: port 1 is active; the link verbs uses it with FI_STRAIT_LINKS=shm,verbs\n",
                "memory of the host: by its address: yes; for peers, by memory windows: yes; on demand",
                "FI_STRAIT_VERBS_ON_DEMAND=yes: yes\nof a GPU: none to try with (",
                "dma-bufs of others: yes",
            ],
        ),
        (
            "sv0:nodmabuf,noodp,nomw",
            "",
            "ok",
            &[
                "on demand, with FI_STRAIT_VERBS_ON_DEMAND=yes: no (odp_caps",
                "by memory windows: no (device_cap_flags lacks IBV_DEVICE_MEM_WINDOW_TYPE_2B",
                "dma-bufs of others: no (ibv_reg_dmabuf_mr: Operation not supported",
            ],
        ),
        ("sv0", "ibv_reg_mr=12", "note", &["by its address: no (ibv_reg_mr: Cannot allocate memory"]),
        // Less than an endpoint registers.
        ("sv0:mrsize=1048576", "", "note", &["by its address: no (ibv_reg_mr: Invalid argument"]),
        ("sv0", "ibv_alloc_pd=12", "note", &["RDMA sv0: port 1 is active\nno memory: ibv_alloc_pd: "]),
        ("sv0", "ibv_open_device=13", "note", &["RDMA sv0: ibv_open_device: Permission denied"]),
        ("sv0:down", "", "note", &["RDMA sv0: no port is active"]),
        ("sv0:iwarp", "", "ok", &["port 1 is active, of iWARP", "peers access it in frames"]),
    ] {
        let all = adapters(&dir, devices, fail);
        let [(found, text, cure)] = &all[..] else { panic!("{devices}, {fail}: {all:?}") };
        assert_eq!(found, level, "{devices}, {fail}: {text}");
        assert_eq!(cure.is_empty(), level == "ok", "{text}");
        assert_eq!(text.contains("the link verbs uses it"), level == "ok" && devices != "none", "{text}");
        assert_eq!(cure.contains("ulimit -l"), fail.ends_with("=12"), "{devices}, {fail}: {cure}");
        for word in words {
            assert!(text.contains(word), "{devices}, {fail}: no {word:?} in {text:?}");
        }
    }
    assert_eq!(adapters(&dir, "sv0;sv1", "").len(), 2);
}

#[test]
fn an_iwarp_device_without_librdmacm_says_so() {
    let dir = libraries("rdma-iwarp", &[("libibverbs.so.1", "verbs_stand_in")]);
    std::fs::write(dir.join("librdmacm.so.1"), "no library at all").unwrap();
    let all = adapters(&dir, "sv0:iwarp", "");
    let [(level, text, cure)] = &all[..] else { panic!("{all:?}") };
    assert!(text.contains("its connections are iWARP's: librdmacm.so.1 is not here"), "{text}");
    assert_eq!((level.as_str(), cure.as_str()), ("note", "install librdmacm1 (rdma-core)"));
}

#[test]
fn memory_of_a_gpu_is_registered_as_a_dmabuf_or_the_call_is_named_that_refuses() {
    let all = [("libibverbs.so.1", "verbs_stand_in"), ("libcuda.so.1", "cuda_stand_in")];
    let dir = libraries("rdma-gpu", &all);
    let text = adapters(&dir, "sv0", "").remove(0).1;
    assert!(text.contains("of a GPU: as a dma-buf over PCIe: "), "{text}");
    assert!(
        text.contains("by a client of the kernel for peer memory: no (/sys/kernel/mm/memory_peers: "),
        "{text}"
    );
    assert!(text.contains("no (the export of a dma-buf: Operation not supported"), "{text}");
}

#[test]
fn memory_of_a_gpu_is_registered_by_each_way_that_driver_and_adapter_grant() {
    let all = [("libibverbs.so.1", "verbs_stand_in"), ("libcuda.so.1", "cuda_stand_in")];
    let dir = libraries("rdma-gpu-dmabuf", &all);
    let yes = "of a GPU: as a dma-buf over PCIe: yes; as a dma-buf: yes; ";
    let refused = "of a GPU: as a dma-buf over PCIe: no (ibv_reg_dmabuf_mr: Operation not supported";
    for (devices, words) in [("sv0", yes), ("sv0:nodmabuf", refused)] {
        let text = with_dmabufs(&dir, devices, "", "2").remove(0).1;
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn info_has_the_same_of_each_rdma_device() {
    let dir = libraries("rdma-info", &[("libibverbs.so.1", "verbs_stand_in")]);
    let words = |fail: &str| {
        let mut command = strait(&["info"]);
        command.env("LD_LIBRARY_PATH", &dir).env("VERBS_STAND_IN_FAIL", fail);
        let output = command.env("VERBS_STAND_IN_DEVICES", "sv0").output().unwrap();
        text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let found = words("");
    assert!(
        found.contains("RDMA sv0 port 1 is active; ") && found.contains("by its address: yes"),
        "{found}"
    );
    let found = words("ibv_reg_mr=12");
    assert!(found.contains("to use it: ulimit -l unlimited"), "{found}");
}
