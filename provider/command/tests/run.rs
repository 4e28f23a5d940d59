//! `strait run`, with shells as programs.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn strait(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.arg("run").args(args);
    command
}

fn run(args: &[&str]) -> (Output, String, String) {
    let output = strait(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    (output, out, errors)
}

#[test]
fn each_process_has_its_rank_and_its_lines_their_label() {
    let script = "echo $STRAIT_RANK of $STRAIT_SIZE; echo $STRAIT_EXCHANGE >&2; printf end";
    let (output, out, errors) = run(&["-n", "3", "--label", "sh", "-c", script]);
    assert!(output.status.success());
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 of 3", "[0] end", "[1] 1 of 3", "[1] end", "[2] 2 of 3", "[2] end"]);
    assert_eq!(errors.matches("unix:@strait/run/").count(), 3, "{errors}");
    let (_, out, _) = run(&["--lines", "--procs", "2", "echo", "-n", "x"]);
    assert_eq!(out, "x\nx\n");
}

#[test]
fn lines_that_find_no_room_are_an_error_and_a_reader_that_has_gone_is_none() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = strait(&["-n", "1", "--lines", "echo", "hi"]).stdout(full).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("output of the job is lost"), "{errors}");
    let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(reader);
    let writer = std::os::fd::OwnedFd::from(writer);
    let status = strait(&["-n", "1", "--lines", "echo", "hi"]).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_first_that_fails_ends_the_others_and_is_named() {
    let script = "[ $STRAIT_RANK = 1 ] && exit 7; exec sleep 600";
    let (output, _, errors) = run(&["-n", "3", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7));
    assert!(errors.contains("strait run: rank 1 (process "), "{errors}");
    assert!(errors.contains(") ended with exit code 7; the other 2 processes are ended"), "{errors}");

    // One that does not heed SIGTERM is killed.
    let script = "[ $STRAIT_RANK = 1 ] && kill -SEGV $$; trap '' TERM; while :; do sleep 0.05; done";
    let (output, _, errors) = run(&["-n", "2", "--grace", "0.1", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(128 + 11));
    assert!(errors.contains("was killed by signal 11, SIGSEGV; the other process is ended"), "{errors}");
}

#[test]
fn signals_are_passed_on() {
    let script = "trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.01; done";
    let mut child =
        strait(&["-n", "2", "--label", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..2 {
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    }
    // SAFETY: kill(2) takes numbers, and the child was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGUSR1) };
    std::io::Read::read_to_string(&mut out, &mut line).unwrap();
    assert_eq!(line.matches("ready").count(), 2);
    assert_eq!(line.matches("got").count(), 2);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_process_that_does_not_heed_a_sigterm_of_the_launcher_is_killed() {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = strait(&["-n", "1", "--lines", "--grace", "0.1", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    // SAFETY: kill(2) takes numbers, and the child was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
}

#[test]
fn what_is_left_behind_ends_with_the_launcher() {
    let script = "echo $$; exec sleep 600";
    let mut child =
        strait(&["-n", "1", "--lines", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let process: i32 = line.trim().parse().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ends(process), "process {process} is left");
}

#[test]
fn what_a_process_leaves_in_its_group_ends_with_it() {
    // It holds the output, for the end of which the launcher waits.
    for (code, end) in [(0, "exit 0"), (7, "exit 7")] {
        let script = format!("sleep 600 & echo $!; {end}");
        let (output, out, _) = run(&["-n", "1", "--lines", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(code));
        let left: i32 = out.trim().parse().unwrap();
        // What it had open was closed before that.
        assert!(ends(left), "process {left} is left");
    }
}

#[test]
fn a_process_whose_output_goes_nowhere_has_an_error() {
    let mut child =
        strait(&["-n", "1", "--lines", "yes"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    drop(out);
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGPIPE));
}

#[test]
fn children_are_reported_also_where_their_end_is_ignored() {
    let mut command = strait(&["-n", "2", "true"]);
    // SAFETY: signal(2) is a system call and allocates nothing.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, || {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Whether it comes to its end within a minute; its parent may not have looked.
fn ends(process: i32) -> bool {
    (0..6000).any(|_| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let ended = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'));
        if !ended {
            std::thread::sleep(Duration::from_millis(10));
        }
        ended
    })
}

#[test]
fn binding_gives_each_a_core() {
    let script = "grep Cpus_allowed_list /proc/self/status";
    let (output, out, _) = run(&["-n", "2", "--bind", "--lines", "sh", "-c", script]);
    assert!(output.status.success());
    for line in out.lines() {
        let list = line.split_whitespace().last().unwrap();
        assert!(list.parse::<usize>().is_ok(), "one core: {line}");
    }
    assert_eq!(out.lines().count(), 2);
}

#[test]
fn rank_0_reads_standard_input() {
    let mut child =
        strait(&["-n", "2", "--label", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"words\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"[0] words\n");
}

#[test]
fn wrong_usage_and_programs_that_are_not_there() {
    for (args, code, wanted) in [
        (&["-n", "2"][..], 2, "<PROGRAM>"),
        (&["true"], 2, "--procs <N>"),
        (&["-n", "0", "true"], 2, "--procs <N>': 0 is not in 1..=65536"),
        (&["-n", "1", "--what", "true"], 2, "--what"),
        (&["-n", "2", "/nothing/here"], 127, "cannot start /nothing/here as rank 0"),
        (&["-n", "1", "/etc/passwd"], 126, "cannot start /etc/passwd"),
    ] {
        let (output, _, errors) = run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.contains(wanted), "{args:?}: {errors}");
    }
    let (output, out, _) = run(&["--help"]);
    assert!(
        output.status.success()
            && out.starts_with("Starts the processes of a job on this host\n\nUsage: strait run ")
    );
}

/// Hosts that are this one: what stands in for ssh(1) runs the command here, and writes down what it was.
struct Hosts {
    dir: std::path::PathBuf,
}

impl Hosts {
    fn new(name: &str) -> Hosts {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("strait-run-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let rsh = dir.join("rsh");
        let text = "#!/bin/sh\nhost=$1; shift\necho \"$host $*\" >>\"${0%/*}/log\"\nON_HOST=$host exec sh -c \"$*\"\n";
        std::fs::write(&rsh, text).unwrap();
        std::fs::set_permissions(&rsh, std::fs::Permissions::from_mode(0o755)).unwrap();
        Hosts { dir }
    }

    fn strait(&self, args: &[&str]) -> Command {
        let mut command = strait(&["--address", "127.0.0.1", "--rsh"]);
        command.arg(self.dir.join("rsh")).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.strait(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn processes_of_several_hosts_have_their_ranks_and_one_exchange_and_the_word_of_the_job_is_in_no_command_line()
 {
    let hosts = Hosts::new("ranks");
    let script = "echo $STRAIT_RANK of $STRAIT_SIZE at $ON_HOST, $FI_OF_A_TEST, $STRAIT_EXCHANGE; echo $STRAIT_JOB >&2";
    let mut command = hosts.strait(&["-n", "3", "--hosts", "a:1,b:2", "--label", "sh", "-c", script]);
    let output = command.env("FI_OF_A_TEST", "it's x").output().unwrap();
    let (out, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let at = lines[0].rsplit(' ').next().unwrap();
    assert!(at.starts_with("tcp:127.0.0.1:"), "{out}{errors}");
    let line = |rank, host| format!("[{rank}] {rank} of 3 at {host}, it's x, {at}");
    assert_eq!(lines, [line(0, "a"), line(1, "b"), line(2, "b")]);
    let word = errors.lines().next().unwrap().split(' ').nth(1).unwrap();
    assert!(word.len() > 10 && errors.matches(word).count() == 3, "{errors}");
    let log = std::fs::read_to_string(hosts.dir.join("log")).unwrap();
    assert!(log.lines().count() == 2 && !log.contains(word), "{log}");

    // The same by a file.
    let file = hosts.dir.join("hostfile");
    std::fs::write(&file, "a slots=2\nb # the other one\n").unwrap();
    let file = file.to_str().unwrap();
    let (code, out, _) =
        hosts.run(&["-n", "3", "--hostfile", file, "sh", "-c", "echo $STRAIT_RANK $ON_HOST"]);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (Some(0), vec!["0 a", "1 a", "2 b"]));
}

#[test]
fn a_process_that_fails_on_one_host_ends_those_of_all() {
    let hosts = Hosts::new("fails");
    let script = "[ $STRAIT_RANK = 2 ] && exit 7; exec sleep 600";
    let (code, _, errors) = hosts.run(&["-n", "4", "--hosts", "a,b", "sh", "-c", script]);
    assert_eq!(code, Some(7), "{errors}");
    assert!(errors.contains("rank 2 (process ") && errors.contains(") ended with exit code 7"), "{errors}");
    assert!(errors.contains("host b, with ranks 2 to 3, ended with exit code 7"), "{errors}");
    assert!(errors.contains("; the other 2 processes are ended"), "{errors}");

    // One that does not heed SIGTERM is killed, there too.
    let script = "[ $STRAIT_RANK = 1 ] && exit 3; trap '' TERM; while :; do sleep 0.05; done";
    let begun = std::time::Instant::now();
    let (code, ..) = hosts.run(&["-n", "2", "--grace", "0.1", "--hosts", "a,b", "sh", "-c", script]);
    assert_eq!(code, Some(3));
    assert!(begun.elapsed() < Duration::from_secs(30));

    let (code, _, errors) = hosts.run(&["-n", "2", "--hosts", "a,b", "no-such-program"]);
    assert!(code == Some(127) && errors.contains("cannot start no-such-program as rank "), "{errors}");
    let (output, _, errors) =
        run(&["-n", "1", "--address", "::1", "--rsh", "no-such-rsh", "--hosts", "a", "true"]);
    assert_eq!(output.status.code(), Some(126));
    assert!(errors.contains("cannot start \"no-such-rsh\" for host a: "), "{errors}");
    let (output, _, errors) = run(&["-n", "3", "--hosts", "a:1,b:1", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors.contains("the hosts have 2 slots for 3 processes"), "{errors}");
}

#[test]
fn signals_reach_other_hosts_and_the_end_of_the_launcher_ends_the_processes_there() {
    use std::io::{BufRead, Read};
    let hosts = Hosts::new("signals");
    let script = "trap 'echo got' USR1; echo $$; while :; do sleep 0.01; done";
    let mut child = hosts
        .strait(&["-n", "2", "--lines", "--hosts", "a,b", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let processes: Vec<i32> = (0..2).map(|_| line().parse().unwrap()).collect();
    let send = |to: i32, signal| {
        // SAFETY: kill(2) takes numbers. The launcher was not waited for, and its processes end with it.
        unsafe { libc::kill(to, signal) }
    };
    assert_eq!(send(child.id() as i32, libc::SIGUSR1), 0);
    assert_eq!([line(), line()], ["got", "got"]);
    assert_eq!(send(child.id() as i32, libc::SIGKILL), 0);
    child.wait().unwrap();
    // All that held the pipe have ended.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    for process in processes {
        let begun = std::time::Instant::now();
        while send(process, 0) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "process {process} goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_host_that_does_not_confirm_that_its_processes_ran_has_failed() {
    let hosts = Hosts::new("confirm");
    let rsh = hosts.dir.join("rsh");
    let with = |text: &str, args: &[&str]| {
        std::fs::write(&rsh, format!("#!/bin/sh\n{text}\n")).unwrap();
        hosts.run(&[&["-n", "2", "--hosts", "a:1,b:1"], args].concat())
    };
    for text in ["true", "head -c 100000 /dev/urandom", "head -n 1", "exec yes 2>/dev/null | head -n 9"] {
        for args in [&["--", "true"][..], &["--label", "--", "/nonexistent"]] {
            let output = std::fs::write(&rsh, format!("#!/bin/sh\n{text}\n"))
                .and_then(|()| hosts.strait(&["-n", "2", "--hosts", "a:1,b:1"]).args(args).output())
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{text}: {errors}");
            assert!(
                errors.contains("ran nothing: the command of --rsh ended without it"),
                "{text}: {errors}"
            );
        }
    }
    // It begins, and its end is not known.
    let (code, _, errors) =
        with("sh -c \"$2\" | head -c 60; exit 0", &["sh", "-c", "echo 0123456789; exec sleep 0.1"]);
    assert!(code == Some(1) && errors.contains("began, and no end is known"), "{code:?} {errors}");
    // The exit code is that of the processes, whatever the command makes of it.
    let (code, _, errors) = with("sh -c \"$2\"; exit 0", &["sh", "-c", "exit 9"]);
    assert!(code == Some(9) && errors.contains("ended with exit code 9"), "{code:?} {errors}");
    // What the shell of the host says of its own stays, and no mark is in the output.
    let (code, out, errors) = with("printf motd; exec sh -c \"$2\"", &["printf", "x"]);
    let mut letters: Vec<char> = out.chars().collect();
    letters.sort_unstable();
    assert!(code == Some(0) && errors.is_empty(), "{code:?} {errors}");
    assert_eq!(letters.iter().collect::<String>(), "ddmmoottxx", "{out}");
}

#[test]
fn a_command_that_hangs_before_the_processes_or_behind_them_has_a_limit() {
    let hosts = Hosts::new("hangs");
    let rsh = hosts.dir.join("rsh");
    let file = hosts.dir.join("left");
    // Each has the output in a session of its own too, where the end of its group does not reach.
    let left = format!("setsid sleep 60 2>/dev/null & echo $! >>'{}'", file.display());
    let with = |text: &str, args: &[&str]| {
        std::fs::write(&rsh, format!("#!/bin/sh\n{text}\n")).unwrap();
        let begun = std::time::Instant::now();
        let (code, out, errors) = hosts.run(args);
        assert!(begun.elapsed() < Duration::from_secs(30), "{text}: {:?} {errors}", begun.elapsed());
        let processes = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        for process in processes.lines() {
            // SAFETY: kill(2) takes numbers; the process is a sleep of the command above, for a minute.
            unsafe { libc::kill(process.parse().unwrap(), libc::SIGKILL) };
        }
        (code, out, errors)
    };
    let short = ["--start-timeout", "0.5", "--grace", "0.2", "-n", "2", "--hosts", "a:1,b:1"];
    // Of one host alone, with and without SIGTERM, and with more on its input than a pipe has.
    let long = "x".repeat(100_000);
    for text in
        ["exec sleep 300", "trap '' TERM; while :; do sleep 0.1; done", &format!("{left}; exec sleep 300")]
    {
        let text = format!("[ $1 = a ] && exec sh -c \"$2\"\n{text}");
        let (code, _, errors) = with(&text, &[&short[..], &["sh", "-c", "exec sleep 300", &long]].concat());
        let line = format!(
            "strait run: host b, with rank 1, has started nothing in 0.5 s: see that `{} b true` ends at once and \
             asks for nothing, or give --start-timeout more; the other 2 processes are ended",
            rsh.display()
        );
        assert!(code == Some(1) && errors.contains(&line), "{text}: {code:?} {errors}");
    }
    // Behind the end of the processes their exit code counts.
    for (exit, behind) in [("0", "sleep 300"), ("9", "sleep 300"), ("0", &format!("{left}; exec sleep 300"))]
    {
        let script = format!("echo x; exit {exit}");
        let args = [&short[2..], &["--label", "sh", "-c", &script]].concat();
        let (code, out, errors) = with(&format!("sh -c \"$2\"\n{behind}"), &args);
        assert!(code == exit.parse().ok() && out.contains("] x\n"), "{behind}: {code:?} {out} {errors}");
        let says = "a` is killed: the processes there, rank 0, have ended, and it has not";
        assert!(exit != "0" || errors.contains(says), "{errors}");
    }
    // A job may run for longer than a host may take to begin.
    let (code, _, errors) = with("exec sh -c \"$2\"", &[&short[..], &["sleep", "1.5"]].concat());
    assert!(code == Some(0) && errors.is_empty(), "{code:?} {errors}");
}

#[test]
fn a_signal_ends_the_wait_for_a_host_that_has_not_begun() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let hosts = Hosts::new(&format!("wait-{signal}"));
        let called = hosts.dir.join("called");
        std::fs::write(hosts.dir.join("rsh"), "#!/bin/sh\n: >\"${0%/*}/called\"\nexec sleep 300\n").unwrap();
        let mut command = hosts.strait(&["-n", "1", "--hosts", "a", "true"]);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let begun = std::time::Instant::now();
        while !called.exists() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: kill(2) takes numbers, and the child was not waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(128 + signal), "{errors}");
        assert!(errors.contains("host a, with rank 0, was killed by signal"), "{errors}");
        assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_process_that_left_its_group_and_has_the_output_of_a_host_is_not_waited_for() {
    let hosts = Hosts::new("left");
    let begun = std::time::Instant::now();
    let script = "setsid sleep 30 2>/dev/null & echo x";
    let (code, out, errors) = hosts.run(&["-n", "1", "--hosts", "a", "sh", "-c", script]);
    assert_eq!((code, out.as_str()), (Some(0), "x\n"), "{errors}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
