//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::perf::Start;
use crate::version::VERSION;
use crate::{info, p2pmemd, perf, rsh, run, storage, top, topo, values};

/// The companion of the libfabric provider and UCX transport `strait`
#[derive(Debug, Parser)]
#[command(name = "strait", version = VERSION, args_override_self = true)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, PartialEq, Subcommand)]
pub enum Command {
    /// What Strait finds on this host: libfabric, the provider, links, limits
    Info(info::Options),
    /// What stands in the way of Strait here, and whether a program uses it
    #[command(after_help = "\
Without a program: what is installed, each libfabric, UCX and MPI library of this host with the settings by which it
takes Strait, and what processes may do here; each finding with its consequence and what to do.
With a program, such as mpirun, srun, torchrun or python: runs it, and says on standard error which way its bytes went,
how many they were, what fell back and why; or why it failed, or Strait carried nothing: which call failed first in which
rank, which peer was refused, the place of a crash. Of a program that hangs --timeout says what each process waits for:
peer, operation, bytes, since when. Under UCX what is sent is counted, and nothing of device memory.

Exits with 0 if there is no problem, or if the program succeeded and used Strait; with 1 if not; with 2 for wrong usage.

Examples:
  strait doctor
  strait doctor -- mpirun -n 2 ./program
  strait doctor --timeout 60 -- mpirun -n 2 ./program
  strait doctor --hosts node1,node2 -- srun -N 2 ./program")]
    Doctor {
        /// the same for programs
        #[arg(long)]
        json: bool,
        /// after so long (0.1 to 1000000) asks a program that still runs what each process waits for, and
        /// ends it
        #[arg(long, value_name = "SECONDS", value_parser = values::duration(0.1, 1e6), requires = "program")]
        timeout: Option<Duration>,
        /// the other hosts that the program's processes are on: their journals are brought in 30 s at most
        #[arg(long, value_name = "HOST,HOST", value_delimiter = ',', requires = "program", value_parser = rsh::host)]
        hosts: Vec<String>,
        /// what runs a command on one of them
        #[arg(long, value_name = "COMMAND", default_value = "ssh")]
        rsh: String,
        /// a program to run, and its arguments
        #[arg(trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
        program: Vec<OsString>,
    },
    /// The endpoints of this host, and what goes through them
    Top(top::Options),
    /// Measures libfabric providers side by side between processes of this host
    Perf(perf::Options),
    /// Draws what perf measured
    #[command(
        override_usage = "strait plot <RESULTS.csv>... <PICTURE>",
        after_help = "\
RESULTS are of `strait perf --csv FILE`, or of other programs in that form: lines of
test,bytes,provider,unit,median,min,max,values
where test is one of `strait perf`, in its unit, and values are separated by blanks.

Example:
  strait plot monday.csv ucx.csv both.svg"
    )]
    Plot {
        /// what was measured, each as of `strait perf --csv`, and the name of the picture: .svg or .png
        #[arg(required = true, num_args = 2.., value_names = ["RESULTS.csv", "PICTURE"])]
        files: Vec<PathBuf>,
    },
    /// The PCI tree: which devices publish memory, and how far others are from it
    Topo(topo::Options),
    /// Gives peer memory to processes of this host, by rules
    P2pmemd(p2pmemd::Options),
    /// Which way a file's bytes take to memory of a kind and back, why, and how fast
    Storage(storage::Options),
    /// Starts the processes of a job on this host
    Run(run::Options),
    /// The settings that turn Strait on under the UCX at hand
    #[command(after_help = "\
Prints lines for a shell, or says on standard error why there are none, and exits with 1. What else is in
LD_PRELOAD and UCX_PLUGIN_PATH stays there.

Examples:
  eval \"$(strait ucx-env)\"
  eval \"$(strait ucx-env --undo)\"
  eval \"$(strait ucx-env --ucx venv/lib/python3.11/site-packages/libucx/lib)\"")]
    UcxEnv {
        /// this UCX (libuct, or a directory with it) instead of the one that programs find
        #[arg(long, value_name = "PATH")]
        ucx: Option<PathBuf>,
        /// for programs that connect by the address of a socket (ucp_listener_create, UCXX):
        /// with tcp, by which UCX makes such connections
        #[arg(long, verbatim_doc_comment)]
        sockaddr: bool,
        /// the settings that turn it off again; what was set before comes back
        #[arg(long, conflicts_with_all = ["ucx", "sockaddr"])]
        undo: bool,
    },
    /// A process that `strait perf` starts.
    #[command(skip)]
    Peer(Start),
    /// What `strait run` starts on another host.
    #[command(skip)]
    RunPart,
    /// A process that the provider starts: it copies devices' memory.
    #[command(skip)]
    CopyAgent,
    /// A process that `strait doctor` starts: it reads memory of another one.
    #[command(skip)]
    Probe { pid: i32, address: usize },
    /// pkg/install starts it: prints what a shell completes command lines by.
    #[command(skip)]
    Completions(Shell),
}

/// Understands the arguments behind the program's name.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if let Some(command) = unlisted(&args) {
        return command.map_err(|words| Line::command().error(ErrorKind::InvalidValue, words));
    }
    // `strait --help COMMAND` is `strait help COMMAND`.
    if let [first, _, ..] = &mut args[..] {
        if first == "-h" || first == "--help" {
            *first = "help".into();
        }
    }
    // `strait help --help` is `strait help`.
    if matches!(&args[..], [first, second] if first == "help" && (second == "-h" || second == "--help")) {
        args.pop();
    }
    let nothing_behind = args.last().is_some_and(|last| last == "--");
    match Line::try_parse_from(std::iter::once("strait".into()).chain(args))?.command {
        Command::Doctor { program, .. } if program.is_empty() && nothing_behind => {
            let words = "doctor: no program behind --";
            Err(Line::command().error(ErrorKind::MissingRequiredArgument, words))
        }
        Command::Plot { files } if !files.last().is_some_and(|picture| perf::is_picture(picture)) => {
            let last = files.last().map(|file| file.display().to_string()).unwrap_or_default();
            let words = format!("plot: <PICTURE> is {last}, which must end in .svg or .png");
            Err(Line::command().error(ErrorKind::ValueValidation, words))
        }
        Command::Perf(options) => match options.wrong() {
            Some(words) => Err(Line::command().error(ErrorKind::ArgumentConflict, words)),
            None => Ok(Command::Perf(options)),
        },
        Command::Run(options) => match options.wrong() {
            Some(words) => Err(Line::command().error(ErrorKind::ValueValidation, words)),
            None => Ok(Command::Run(options)),
        },
        command => Ok(command),
    }
}

/// Commands that no help lists, since no person starts them.
fn unlisted(args: &[OsString]) -> Option<Result<Command, &'static str>> {
    let (name, rest) = args.split_first()?;
    Some(match name.to_str()? {
        "perf-peer" => Start::parse(rest).map(Command::Peer).ok_or("perf-peer is for strait perf's own use"),
        "copy-agent" if rest.is_empty() => Ok(Command::CopyAgent),
        "copy-agent" => Err("copy-agent is for the provider's own use"),
        "run-part" if rest.is_empty() => Ok(Command::RunPart),
        "run-part" => Err("run-part is for strait run's own use"),
        "cma-probe" => probe(rest).ok_or("cma-probe is for strait doctor's own use"),
        "completions" => shell(rest).map(Command::Completions).ok_or("completions: of bash, zsh or fish"),
        _ => return None,
    })
}

fn probe(rest: &[OsString]) -> Option<Command> {
    let [pid, address] = rest else { return None };
    Some(Command::Probe { pid: pid.to_str()?.parse().ok()?, address: address.to_str()?.parse().ok()? })
}

fn shell(rest: &[OsString]) -> Option<Shell> {
    let [name] = rest else { return None };
    name.to_str()?.parse().ok()
}

/// What a shell completes command lines by.
pub fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Line::command(), "strait", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    /// What a line prints that asks for a text.
    fn text(line: &str) -> String {
        let error = parse(line.split_whitespace().map(OsString::from)).unwrap_err();
        assert!(!error.use_stderr(), "{line}: {error}");
        error.to_string()
    }

    #[test]
    fn commands() {
        let ucx_env = |ucx, sockaddr, undo| Command::UcxEnv { ucx, sockaddr, undo };
        assert_eq!(text("--version"), format!("strait {VERSION}\n"));
        let info = |json, peer, libfabric| {
            let timeout = Duration::from_secs(10);
            Command::Info(crate::info::Options { json, peer, call: false, timeout, libfabric })
        };
        assert_eq!(parsed("info"), Ok(info(false, None, None)));
        assert_eq!(parsed("info --json --libfabric=/x"), Ok(info(true, None, Some("/x".into()))));
        assert_eq!(parsed("info --peer a:1"), Ok(info(false, Some("a:1".into()), None)));
        assert_eq!(text("help --help"), text("help"));
        assert!(parsed("info --peer").is_err() && parsed("info --try").is_err());
        assert!(parsed("info --peer a:1 --timeout 5").is_err() && parsed("info --peer a:1 --try").is_ok());
        for command in Line::command().get_subcommands() {
            let name = command.get_name();
            for line in [
                format!("{name} --help"),
                format!("{name} -h"),
                format!("help {name}"),
                format!("--help {name}"),
            ] {
                let text = text(&line);
                assert!(text.contains(&format!("Usage: strait {name}")), "{line}: {text}");
            }
        }
        assert_eq!(text("help"), text("--help"));
        assert_eq!(parsed("ucx-env --ucx /x"), Ok(ucx_env(Some("/x".into()), false, false)));
        assert_eq!(parsed("ucx-env --sockaddr"), Ok(ucx_env(None, true, false)));
        assert_eq!(parsed("ucx-env --undo"), Ok(ucx_env(None, false, true)));
        assert_eq!(parsed("completions zsh"), Ok(Command::Completions(Shell::Zsh)));
    }

    #[test]
    fn a_program_for_the_doctor_keeps_its_options() {
        let program = |line: &str| match parsed(line) {
            Ok(Command::Doctor { json, program, .. }) => {
                let words: Vec<String> = program.iter().map(|w| w.to_string_lossy().into_owned()).collect();
                (json, words.join(" "))
            }
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(program("doctor"), (false, String::new()));
        assert_eq!(program("doctor --json"), (true, String::new()));
        assert_eq!(program("doctor -- mpirun -n 2 --json a"), (false, "mpirun -n 2 --json a".into()));
        assert_eq!(program("doctor --json -- ls -- -l"), (true, "ls -- -l".into()));
        assert_eq!(program("doctor mpirun --help"), (false, "mpirun --help".into()));
    }

    #[test]
    fn wrong_lines_are_reported() {
        for (line, part) in [
            ("", "Usage: strait <COMMAND>"),
            ("measure", "'measure'"),
            ("help measure", "'measure'"),
            ("--nonsense", "--nonsense"),
            ("info --nonsense", "--nonsense"),
            ("info more", "more"),
            ("info --json=yes", "json"),
            ("ucx-env /x", "/x"),
            ("topo --path nvme0", "PUBLISHER,CLIENT"),
            ("topo --path ,", "PUBLISHER,CLIENT"),
            ("topo --path nvme0,", "PUBLISHER,CLIENT"),
            ("info --peer x", "a port is missing"),
            ("info --peer 10.9.0.2:0", "port 0"),
            ("topo nvme0", "nvme0"),
            ("p2pmemd --host much", "much: a size"),
            ("p2pmemd --host 999999TiB", "this host has"),
            ("storage --size 0 x", "0 bytes"),
            ("storage --reps 1001 x", "--reps"),
            ("storage --create --copy y x", "--copy"),
            ("run -n 0 x", "--procs"),
            ("run -n 1 --", "<PROGRAM>"),
            ("run -n 1 --hosts=-oProxyCommand=x x", "no name of a host"),
            ("run -n 1 --hosts a:0 x", "1 to 65536"),
            ("doctor --hosts=a,-oProxyCommand=x x", "no name of a host"),
            ("run -n 1 --grace 3601 x", "--grace"),
            ("plot a.csv", "<PICTURE>"),
            ("plot a.csv b.pdf", "b.pdf"),
            ("completions", "bash"),
            ("p2pmemd --rules", "--rules"),
            ("ucx-env --undo --ucx /x", "--undo"),
            ("perf --reps 0", "--reps"),
            ("perf --reps", "--reps"),
            ("perf --tests lat,foo", "\"foo\""),
            ("perf --tests ,", "empty"),
            ("perf --providers ,", "empty"),
            ("perf --sizes 0", "\"0\""),
            ("perf --sizes 8..", "\"\""),
            ("perf --sizes 9..8", "9..8"),
            ("perf --sizes 8..64:1", "\"1\""),
            ("perf --sizes 2G", "\"2G\""),
            ("perf --sizes 99999999999999999999G", "1G"),
            ("perf --cpus 1", "--cpus"),
            ("perf --procs 1", "--procs"),
            ("perf --procs x", "--procs"),
            ("perf --time nan", "--time"),
            ("perf --timeout 0", "--timeout"),
            ("perf --plot x.pdf", "x.pdf"),
            ("perf --plot x.svg --sizes 8", "two sizes"),
            ("perf --plot x.svg --tests rate,atomic", "two sizes"),
            ("perf --mpi mpirun --providers shm", "--providers"),
            ("perf --mpi mpirun --tests lat", "--tests"),
            ("perf-peer first", "own use"),
            ("cma-probe 1", "own use"),
            ("doctor --", "no program"),
            ("doctor --nonsense", "--nonsense"),
            ("top --delay 0", "--delay"),
            ("top --delay", "--delay"),
            ("top more", "more"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(part), "{line:?}: {error}");
        }
    }

    #[test]
    fn perf_options() {
        let Ok(Command::Perf(options)) = parsed(
            "perf --providers shm,tcp;ofi_rxm,shm --tests lat,rma-read --sizes 1K,8..32 --reps=2 \
             --time 0.5 --cpus 2,3 --procs 8 --floors --json -q --csv a.csv --plot b.png",
        ) else {
            panic!();
        };
        assert_eq!(options.providers.as_deref(), Some(&["shm".into(), "tcp;ofi_rxm".into()][..]));
        assert_eq!(options.tests.iter().map(|test| test.name()).collect::<Vec<_>>(), ["lat", "rma-read"]);
        assert_eq!(options.sizes, [8, 16, 32, 1024]);
        assert_eq!((options.reps, options.seconds, options.cpus), (2, 0.5, Some((2, 3))));
        assert!(options.floors && options.json && options.quiet);
        assert_eq!(options.procs, Some(8));
        assert_eq!((options.csv, options.plot), (Some("a.csv".into()), Some("b.png".into())));
    }

    /// What was so before the command had these parsers, and scripts may have.
    #[test]
    fn an_option_that_is_repeated_counts_once_and_its_last_value_counts() {
        let Ok(Command::Perf(options)) = parsed("perf --json --json --reps 2 --reps 3") else { panic!() };
        assert_eq!((options.reps, options.json), (3, true));
        let run = |line: &str| match parsed(line) {
            Ok(Command::Run(options)) => (options.label, options.lines, options.program),
            other => panic!("{line}: {other:?}"),
        };
        // With --label output goes line by line already.
        assert_eq!(run("run -n4 --label --lines a"), (true, true, vec!["a".into()]));
        assert_eq!(
            run("run -n=4 --lines -l -- a -- -n"),
            (true, true, vec!["a".into(), "--".into(), "-n".into()])
        );
        assert_eq!(run("run -n 4 a -- -n"), (false, false, vec!["a".into(), "--".into(), "-n".into()]));
    }

    #[test]
    fn defaults() {
        let Ok(Command::Perf(options)) = parsed("perf") else { panic!() };
        assert_eq!(
            (options.tests.len(), options.sizes.len(), options.reps, options.seconds),
            (7, 9, 5, 0.03)
        );
        assert_eq!((options.timeout.as_secs(), options.providers), (10, None));
        let Ok(Command::Top(options)) = parsed("top") else { panic!() };
        assert_eq!(options.delay.as_secs(), 2);
        let Ok(Command::P2pmemd(options)) = parsed("p2pmemd") else { panic!() };
        assert_eq!((options.host, options.sysfs), (0, "/sys".into()));
        let Ok(Command::Storage(options)) = parsed("storage --no-direct x") else { panic!() };
        assert_eq!((options.direct, options.cufile, options.reps, options.size), (false, true, 3, None));
        assert_eq!(options.place, storage::Place::Host);
        let plot = |line: &str| match parsed(line) {
            Ok(Command::Plot { files }) => files,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(plot("plot a b c.svg"), ["a", "b", "c.svg"].map(PathBuf::from));
        assert_eq!(plot("plot -- a -x.svg"), ["a", "-x.svg"].map(PathBuf::from));
    }

    #[test]
    fn the_manual_lists_the_options_of_each_command_and_no_others() {
        let manual = include_str!("../../../docs/strait.md");
        for command in Line::command().get_subcommands() {
            let section =
                manual.split("\n## ").find(|s| s.starts_with(&format!("strait {}\n", command.get_name())));
            let words = section
                .unwrap()
                .split('`')
                .filter_map(|word| word.strip_prefix("--"))
                .filter(|word| !word.is_empty());
            let listed: BTreeSet<&str> = words.map(|word| word.split(' ').next().unwrap()).collect();
            let options: BTreeSet<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
            assert_eq!(listed, options, "strait {}", command.get_name());
        }
    }
}
