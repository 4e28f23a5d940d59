//! Programs in C, compiled against the header and the library: the slide's, unchanged, and one that calls
//! every function.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

/// Where the header and the programs are.
fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Where cargo has put the library of this build: beside this test.
fn library() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A directory of this test.
fn scratch(name: &str) -> PathBuf {
    let dir = env::temp_dir().join(format!("strait-rpipe-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    // The library has its soname there.
    std::os::unix::fs::symlink(library().join("libstrait_rpipe.so"), dir.join("libstrait_rpipe.so.0"))
        .unwrap();
    dir
}

fn compile(compiler: &str, options: &[&str], source: &Path, dir: &Path) -> PathBuf {
    let program = dir.join("program");
    let out = Command::new(compiler)
        .args(options)
        .args(["-Wall", "-Werror", "-I"])
        .arg(repo().join("include"))
        .args(["-o".as_ref(), program.as_os_str()])
        .arg(source)
        .args(["-x", "none"])
        .arg(dir.join("libstrait_rpipe.so.0"))
        .output()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

/// Runs so many processes of a job; what each has printed.
fn run(program: &Path, dir: &Path, processes: usize, settings: &[(&str, &str)]) -> Vec<String> {
    run_with(program, &[], dir, processes, settings)
}

/// As [`run`], with arguments.
fn run_with(
    program: &Path,
    args: &[&str],
    dir: &Path,
    processes: usize,
    settings: &[(&str, &str)],
) -> Vec<String> {
    let cards = dir.join(format!(
        "job-{processes}-{}{}",
        args.first().copied().unwrap_or_default(),
        settings.iter().map(|(name, value)| format!("{name}{value}")).collect::<String>()
    ));
    fs::create_dir(&cards).unwrap();
    let children: Vec<Child> = (0..processes)
        .map(|rank| {
            Command::new(program)
                .args(args)
                .env("LD_LIBRARY_PATH", dir)
                .env("STRAIT_RPIPE_DIR", &cards)
                .env("STRAIT_RPIPE_RANK", rank.to_string())
                .env("STRAIT_RPIPE_SIZE", processes.to_string())
                .envs(settings.iter().copied())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ended = children.into_iter().map(|child| child.wait_with_output().unwrap());
    ended
        .map(|out| {
            let (output, wrong) =
                (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            assert!(out.status.success(), "{:?}\n{output}\n{wrong}", out.status);
            output.into_owned()
        })
        .collect()
}

/// Ways in which bytes travel.
const WAYS: [&[(&str, &str)]; 4] = [
    &[],
    &[("STRAIT_RPIPE_MAP", "no")],
    &[("STRAIT_RPIPE_BACKEND", "strait:frames")],
    &[("STRAIT_RPIPE_MAP", "no"), ("STRAIT_RPIPE_FLAG", "delivered"), ("STRAIT_RPIPE_POLICY", "best-fit")],
];

/// Runs a program whose ranks each print "rank N: ok" as their last line; what they have printed.
fn run_well(program: &Path, dir: &Path, processes: usize, settings: &[(&str, &str)]) -> Vec<String> {
    let printed = run(program, dir, processes, settings);
    for (rank, text) in printed.iter().enumerate() {
        assert!(text.ends_with(&format!("rank {rank}: ok\n")), "{settings:?}: {text}");
    }
    printed
}

/// Runs such a program over every way.
fn run_every_way(program: &Path, dir: &Path, processes: usize) {
    for settings in WAYS {
        run_well(program, dir, processes, settings);
    }
}

#[test]
fn the_program_of_the_slide_runs_unchanged() {
    let dir = scratch("slide");
    let tests = repo().join("tests/rpipe");
    let prelude = tests.join("slide36.h");
    let program =
        compile("gcc", &["-x", "c", "-include", prelude.to_str().unwrap()], &tests.join("slide36.c"), &dir);
    for settings in WAYS {
        for processes in [2, 4] {
            let output = run(&program, &dir, processes, settings);
            for (rank, output) in output.iter().enumerate() {
                let expected = if rank % 2 == 0 {
                    String::new()
                } else {
                    format!("rank {rank} has read {}\n", 4200 + rank - 1)
                };
                assert_eq!(*output, expected, "rank {rank} of {processes}");
            }
        }
    }
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn every_function_of_the_header_works_in_c_and_in_cpp() {
    let c = ["-x", "c", "-std=c11"];
    let cpp = ["-x", "c++", "-std=c++11"];
    for (compiler, options, name) in [("gcc", c, "api.c"), ("g++", cpp, "api.c"), ("g++", cpp, "classes.cpp")]
    {
        let dir = scratch(&format!("{compiler}-{name}"));
        let program = compile(compiler, &options, &repo().join("tests/rpipe").join(name), &dir);
        run_every_way(&program, &dir, 2);
        fs::remove_dir_all(&dir).unwrap();
    }
}

/// The reader is in no call until the writer has ended, or waits for it.
#[test]
fn what_was_written_arrives_or_is_reported_however_the_writer_ends() {
    let source = repo().join("tests/rpipe/ends.c");
    let dir = scratch("ends");
    let program = compile("gcc", &["-x", "c", "-D_GNU_SOURCE"], &source, &dir);
    let ends = |how: &str, late: &str, len: &str, settings: &[(&str, &str)]| {
        // LD_LIBRARY_PATH has colons between directories.
        let name = format!("{how}-{len}-{}", settings[0].1.replace(':', "-"));
        let (dir, file) = (dir.join(&name), dir.join(format!("{name}-file")));
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink(library().join("libstrait_rpipe.so"), dir.join("libstrait_rpipe.so.0"))
            .unwrap();
        run_with(&program, &[how, late, len, file.to_str().unwrap()], &dir, 2, settings)
    };
    std::thread::scope(|s| {
        for backend in ["strait", "strait:frames", "strait:tcp"] {
            for how in ["close", "finalize", "exit", "return", "exec"] {
                for len in ["30", "100000"] {
                    s.spawn(move || ends(how, "3500", len, &[("STRAIT_RPIPE_BACKEND", backend)]));
                }
            }
        }
    });
    for backend in ["strait:frames", "strait:tcp"] {
        let settings = [("STRAIT_RPIPE_BACKEND", backend), ("STRAIT_RPIPE_LINGER", "200")];
        let output = ends("finalize", "2500", "100001", &settings);
        assert!(output[0].contains("finalize -110 "), "{output:?}");
    }
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_forked_child_ends_nothing_of_its_parents() {
    let dir = scratch("fork");
    let options = ["-x", "c", "-D_GNU_SOURCE"];
    let program = compile("gcc", &options, &repo().join("tests/rpipe/fork.c"), &dir);
    for settings in WAYS {
        for (rank, output) in run(&program, &dir, 2, settings).iter().enumerate() {
            assert_eq!(*output, format!("rank {rank}: ok\n"));
        }
    }
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn memory_of_a_device_is_in_pipes_of_c_programs_over_the_stand_in() {
    let dir = scratch("device");
    let driver = [library(), library().join("deps"), library().join("..")]
        .map(|dir| dir.join("libcuda_stand_in.so"))
        .into_iter()
        .find(|file| file.exists())
        .expect("the stand-in for CUDA's driver");
    std::os::unix::fs::symlink(driver, dir.join("libcuda.so.1")).unwrap();
    let with_driver = repo().join("tests/gpu");
    let options = ["-x", "c", "-std=gnu11", "-Wextra", "-I", with_driver.to_str().unwrap()];
    let program = compile("gcc", &options, &repo().join("tests/rpipe/device.c"), &dir);
    for settings in [
        &[][..],
        &[("STRAIT_RPIPE_TEST_ONE_DEVICE", "1")],
        &[("CUDA_STAND_IN_DELAY_US", "300")],
        &[("STRAIT_RPIPE_POLICY", "best-fit")],
    ] {
        for (rank, output) in run(&program, &dir, 2, settings).iter().enumerate() {
            assert_eq!(*output, format!("rank {rank}: ok\n"));
        }
    }
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_wait_of_kernels_finds_messages_with_threads_as_lanes() {
    let dir = scratch("lanes");
    let options = ["-x", "c++", "-std=c++17", "-Wextra", "-pthread", "-O1", "-g1", "-fsanitize=thread"];
    let program = compile("g++", &options, &repo().join("tests/rpipe/kernels_on_cpu.cc"), &dir);
    let out = Command::new(&program).env("LD_LIBRARY_PATH", &dir).output().unwrap();
    let (output, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && output == "ok kernels\n", "{output}\n{wrong}");
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn groups_and_many_writers_work_in_c_and_in_cpp() {
    let (c, cpp) = (["-x", "c", "-D_GNU_SOURCE"], ["-x", "c++", "-std=c++11"]);
    for (compiler, options, sizes) in [("gcc", c, [3, 5]), ("g++", cpp, [3, 4])] {
        let dir = scratch(&format!("groups-{compiler}"));
        let program = compile(compiler, &options, &repo().join("tests/rpipe/groups.c"), &dir);
        for processes in sizes {
            run_every_way(&program, &dir, processes);
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn collective_calls_agree_with_a_plain_reference_for_random_lengths_types_and_operations() {
    let dir = scratch("collectives");
    let options = ["-x", "c", "-D_GNU_SOURCE", "-Wextra", "-O1"];
    let program = compile("gcc", &options, &repo().join("tests/rpipe/collectives.c"), &dir);
    for processes in [1, 2, 3, 8] {
        run_every_way(&program, &dir, processes);
    }
    run_well(&program, &dir, 5, &[("STRAIT_RPIPE_BACKEND", "strait:tcp")]);
    for (rank, printed) in run_with(&program, &["3", "7"], &dir, 32, &[]).iter().enumerate() {
        assert_eq!(*printed, format!("rank {rank}: ok\n"));
    }
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_example_of_collective_calls_has_pi_at_rank_0() {
    let dir = scratch("example");
    // A library behind the program in the command line is found there, too.
    let options = ["-x", "c", "-Wextra", "-Wl,--no-as-needed", "-lm"];
    let program = compile("gcc", &options, &repo().join("docs/examples/collectives.c"), &dir);
    let printed = run(&program, &dir, 4, &[]);
    let expected = "pi is 3.141592654, by 4 processes, and no rank is off by more than 1e-12\n";
    assert_eq!(printed, [expected, "", "", ""]);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_example_of_shared_memory_takes_each_item_once() {
    let dir = scratch("example-shared");
    let options = ["-x", "c", "-Wextra"];
    let program = compile("gcc", &options, &repo().join("docs/examples/shared_memory.c"), &dir);
    for (processes, settings) in [(2, WAYS[1]), (4, WAYS[0]), (4, WAYS[2])] {
        let printed = run(&program, &dir, processes, settings);
        let borrowers = processes - 1;
        let expected = format!(
            "1000 items, each taken once, by {borrowers} processes: 250 of them are 0, 500 are 1, 250 are 4, modulo 8\n"
        );
        assert_eq!(printed[1], expected);
        assert!(printed.iter().enumerate().all(|(rank, text)| rank == 1 || text.is_empty()), "{printed:?}");
    }
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn memory_is_lent_and_borrowed_in_c_and_in_cpp() {
    let (c, cpp) = (["-x", "c", "-D_GNU_SOURCE"], ["-x", "c++", "-std=c++11"]);
    for (compiler, options, name) in [("gcc", c, "lend.c"), ("g++", cpp, "lend.c"), ("g++", cpp, "lend.cpp")]
    {
        let dir = scratch(&format!("lend-{compiler}-{name}"));
        let program = compile(compiler, &options, &repo().join("tests/rpipe").join(name), &dir);
        run_every_way(&program, &dir, 2);
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn one_memory_is_lent_to_two_to_eight_processes_that_count_in_it() {
    let (c, cpp) = (["-x", "c", "-D_GNU_SOURCE", "-Wextra"], ["-x", "c++", "-std=c++11", "-Wextra"]);
    let ways = [WAYS[0], WAYS[1], WAYS[2], &[("STRAIT_RPIPE_BACKEND", "strait:tcp")]];
    for (compiler, options, sizes) in [("gcc", c, &[3, 5][..]), ("g++", cpp, &[4])] {
        let dir = scratch(&format!("lend-many-{compiler}"));
        let program = compile(compiler, &options, &repo().join("tests/rpipe/lend_many.c"), &dir);
        for (processes, settings) in sizes.iter().flat_map(|n| ways.map(|way| (*n, way))) {
            run_well(&program, &dir, processes, settings);
        }
        if compiler == "gcc" {
            run_well(&program, &dir, 9, &[]);
            run_well(&program, &dir, 9, ways[2]);
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn what_is_refused_changes_nothing_and_handlers_call_all_functions() {
    let (c, cpp) = (["-x", "c", "-pthread"], ["-x", "c++", "-std=c++11"]);
    for (compiler, options) in [("gcc", &c), ("g++", &cpp)] {
        let dir = scratch(&format!("misuse-{compiler}"));
        let program = compile(compiler, options, &repo().join("tests/rpipe/misuse.c"), &dir);
        for settings in WAYS {
            for (rank, output) in run(&program, &dir, 2, settings).iter().enumerate() {
                assert_eq!(*output, format!("rank {rank}: ok\n"));
            }
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}

/// Runs a program of this name in C, and compiled as C++, over every way and over TCP.
fn run_over_tcp_too(name: &str) {
    let (c, cpp) = (["-x", "c", "-D_GNU_SOURCE", "-pthread"], ["-x", "c++", "-std=c++11", "-pthread"]);
    for (compiler, options) in [("gcc", c), ("g++", cpp)] {
        let dir = scratch(&format!("{name}-{compiler}"));
        let program = compile(compiler, &options, &repo().join("tests/rpipe").join(name), &dir);
        run_every_way(&program, &dir, 2);
        run_well(&program, &dir, 2, &[("STRAIT_RPIPE_BACKEND", "strait:tcp")]);
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn arguments_that_no_call_takes_are_refused_at_once_and_change_nothing() {
    run_over_tcp_too("odd.c");
}

#[test]
fn a_peer_that_is_stopped_at_any_step_holds_no_call_that_has_a_time_and_loses_nothing() {
    run_over_tcp_too("stopped.c");
}

#[test]
fn a_process_at_a_limit_has_errors_that_name_it_and_goes_on_once_it_is_raised() {
    let dir = scratch("limits");
    let options = ["-x", "c", "-D_GNU_SOURCE", "-Wextra"];
    let program = compile("gcc", &options, &repo().join("tests/rpipe/limits.c"), &dir);
    let descriptors = ["rinit", "rpipe", "rmalloc", "group", "lend"]
        .into_iter()
        .flat_map(|step| (0..4).map(move |left| format!("nofile {step} {left}")));
    let bytes = ["fsize rpipe 4096", "fsize rmalloc 4096", "fsize group 4096", "as rpipe 300000"];
    let mut met = [false; 3];
    let mut run = |limit: &str, way: &[(&str, &str)]| {
        for output in run_well(&program, &dir, 2, &[&[("STRAIT_RPIPE_TEST_LIMIT", limit)], way].concat()) {
            met[0] |= output.contains("what a peer has sent cannot be taken in, and waits: recvmsg");
            met[1] |= output.contains("raise RLIMIT_FSIZE");
            met[2] |= output.contains("a connection to a peer, or from one, waits: Too many open files");
        }
    };
    for limit in bytes.map(String::from).into_iter().chain(descriptors.clone()) {
        run(&limit, &[]);
    }
    for backend in ["strait:frames", "strait:tcp"] {
        for limit in descriptors.clone() {
            run(&limit, &[("STRAIT_RPIPE_BACKEND", backend)]);
        }
    }
    assert_eq!(met, [true; 3], "no call has met the limits");
    fs::remove_dir_all(&dir).unwrap();
}
