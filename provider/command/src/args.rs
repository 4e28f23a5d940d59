//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

use crate::perf::{Options, Start, Test, plot_format};

/// What to do.
#[derive(Debug, PartialEq)]
pub enum Command {
    Help(&'static str),
    Version,
    Info(crate::info::Options),
    Doctor {
        json: bool,
        /// A program to run, and its arguments.
        program: Vec<OsString>,
    },
    Top(crate::top::Options),
    Perf(Options),
    Plot {
        results: Vec<PathBuf>,
        picture: PathBuf,
    },
    UcxEnv {
        ucx: Option<PathBuf>,
        sockaddr: bool,
        undo: bool,
    },
    Topo(crate::topo::Options),
    P2pmemd(crate::p2pmemd::Options),
    Storage(crate::storage::Options),
    Run(crate::run::Options),
    /// A process that `strait perf` starts.
    Peer(Start),
    /// A process that the provider starts: it copies devices' memory.
    CopyAgent,
    /// A process that `strait doctor` starts: it reads memory of another one.
    Probe {
        pid: i32,
        address: usize,
    },
}

/// Understands the arguments behind the program's name.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let args: Vec<OsString> = args.into_iter().collect();
    if let [first, rest @ ..] = &args[..] {
        if first == "perf-peer" {
            return Start::parse(rest)
                .map(Command::Peer)
                .ok_or_else(|| "perf-peer is for strait perf's own use".into());
        }
        if first == "copy-agent" {
            return if rest.is_empty() {
                Ok(Command::CopyAgent)
            } else {
                Err("copy-agent is for the provider's own use".into())
            };
        }
        if first == "cma-probe" {
            return probe(rest).ok_or_else(|| "cma-probe is for strait doctor's own use".into());
        }
    }
    let mut parser = lexopt::Parser::from_args(args);
    let Some(first) = parser.next().map_err(words)? else {
        return Err("no command".into());
    };
    match first {
        Short('h') | Long("help") => help(parser),
        Short('V') | Long("version") => Ok(Command::Version),
        Value(name) if name == "info" => match crate::info::parse(&mut parser).map_err(words)? {
            Some(options) => Ok(Command::Info(options)),
            None => Ok(Command::Help(crate::help::INFO)),
        },
        Value(name) if name == "doctor" => doctor(parser),
        Value(name) if name == "top" => top(parser),
        Value(name) if name == "perf" => perf(parser),
        Value(name) if name == "plot" => plot(parser),
        Value(name) if name == "ucx-env" => ucx_env(parser),
        Value(name) if name == "topo" => match crate::topo::parse(&mut parser).map_err(words)? {
            Some(options) => Ok(Command::Topo(options)),
            None => Ok(Command::Help(crate::help::TOPO)),
        },
        Value(name) if name == "p2pmemd" => match crate::p2pmemd::parse(&mut parser).map_err(words)? {
            Some(options) => Ok(Command::P2pmemd(options)),
            None => Ok(Command::Help(crate::help::P2PMEMD)),
        },
        Value(name) if name == "storage" => match crate::storage::parse(&mut parser).map_err(words)? {
            Some(options) => Ok(Command::Storage(options)),
            None => Ok(Command::Help(crate::help::STORAGE)),
        },
        Value(name) if name == "run" => match crate::run::parse(&mut parser).map_err(words)? {
            Some(options) => Ok(Command::Run(options)),
            None => Ok(Command::Help(crate::help::RUN)),
        },
        Value(name) if name == "help" => help(parser),
        Value(name) => Err(format!("there is no command {:?}", name.to_string_lossy())),
        other => Err(words(other.unexpected())),
    }
}

/// Of a command, if one is named.
fn help(mut parser: lexopt::Parser) -> Result<Command, String> {
    let text = match parser.next().map_err(words)? {
        None => crate::help::MAIN,
        Some(Value(name)) => crate::help::of(&name.to_string_lossy())
            .ok_or_else(|| format!("there is no command {:?}", name.to_string_lossy()))?,
        Some(other) => return Err(words(other.unexpected())),
    };
    Ok(Command::Help(text))
}

fn probe(rest: &[OsString]) -> Option<Command> {
    let [pid, address] = rest else { return None };
    Some(Command::Probe { pid: pid.to_str()?.parse().ok()?, address: address.to_str()?.parse().ok()? })
}

fn doctor(mut parser: lexopt::Parser) -> Result<Command, String> {
    let (mut json, mut program) = (false, Vec::new());
    loop {
        // Behind `--`, or from the first word on that is no option, all is the program's.
        if let Some(rest) = parser.try_raw_args() {
            let word = rest.peek().map(|word| word.to_string_lossy().into_owned());
            if word.is_some_and(|word| word == "--" || !word.starts_with('-')) {
                program.extend(rest);
                if program[0] == "--" {
                    program.remove(0);
                }
                if program.is_empty() {
                    return Err("doctor: no program behind --".into());
                }
                return Ok(Command::Doctor { json, program });
            }
        }
        match parser.next().map_err(words)? {
            None => return Ok(Command::Doctor { json, program }),
            Some(Short('h') | Long("help")) => return Ok(Command::Help(crate::help::DOCTOR)),
            Some(Long("json")) => json = true,
            Some(other) => return Err(words(other.unexpected())),
        }
    }
}

fn top(mut parser: lexopt::Parser) -> Result<Command, String> {
    let mut options = crate::top::Options { once: false, json: false, delay: Duration::from_secs(2) };
    while let Some(arg) = parser.next().map_err(words)? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help(crate::help::TOP)),
            Long("once") => options.once = true,
            Long("json") => options.json = true,
            Long("delay") => {
                let delay = seconds("--delay", &value(&mut parser)?, 3600.0)?;
                options.delay = Duration::from_secs_f64(delay.max(0.1));
            }
            other => return Err(words(other.unexpected())),
        }
    }
    Ok(Command::Top(options))
}

fn ucx_env(mut parser: lexopt::Parser) -> Result<Command, String> {
    let (mut ucx, mut sockaddr, mut undo) = (None, false, false);
    while let Some(arg) = parser.next().map_err(words)? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help(crate::help::UCX_ENV)),
            Long("ucx") => ucx = Some(parser.value().map_err(words)?.into()),
            Long("sockaddr") => sockaddr = true,
            Long("undo") => undo = true,
            other => return Err(words(other.unexpected())),
        }
    }
    if undo && (sockaddr || ucx.is_some()) {
        return Err("--undo goes with no other option".into());
    }
    Ok(Command::UcxEnv { ucx, sockaddr, undo })
}

fn plot(mut parser: lexopt::Parser) -> Result<Command, String> {
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(arg) = parser.next().map_err(words)? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help(crate::help::PLOT)),
            Value(path) => files.push(path.into()),
            other => return Err(words(other.unexpected())),
        }
    }
    let picture = files.pop().filter(|_| !files.is_empty());
    let picture =
        picture.ok_or("plot wants results (as of `strait perf --csv`), and the name of a picture")?;
    if plot_format(&picture).is_none() {
        return Err(format!("{} must end in .svg or .png", picture.display()));
    }
    Ok(Command::Plot { results: files, picture })
}

fn perf(mut parser: lexopt::Parser) -> Result<Command, String> {
    let mut options = Options {
        providers: Vec::new(),
        tests: Test::DEFAULT.into(),
        sizes: sizes("8,64,512,4K,16K,64K,256K,1M,4M")?,
        reps: 5,
        seconds: 0.03,
        timeout: Duration::from_secs(10),
        libfabric: None,
        cpus: None,
        procs: None,
        floors: false,
        plot: None,
        csv: None,
        json: false,
        quiet: false,
    };
    while let Some(arg) = parser.next().map_err(words)? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help(crate::help::PERF)),
            Long("providers") => options.providers = providers(&value(&mut parser)?)?,
            Long("tests") => options.tests = tests(&value(&mut parser)?)?,
            Long("sizes") => options.sizes = sizes(&value(&mut parser)?)?,
            Long("reps") => {
                let text = value(&mut parser)?;
                options.reps = text
                    .parse()
                    .ok()
                    .filter(|n| (1..=1000).contains(n))
                    .ok_or_else(|| format!("--reps is a number from 1 to 1000, not {text:?}"))?;
            }
            Long("time") => options.seconds = seconds("--time", &value(&mut parser)?, 60.0)?,
            Long("timeout") => {
                let limit = seconds("--timeout", &value(&mut parser)?, 3600.0)?;
                options.timeout = Duration::from_secs_f64(limit);
            }
            Long("cpus") => options.cpus = Some(cpus(&value(&mut parser)?)?),
            Long("procs") => {
                let text = value(&mut parser)?;
                let procs = text.parse().ok().filter(|n| (2..=1024).contains(n));
                options.procs =
                    Some(procs.ok_or_else(|| format!("--procs is a number from 2 to 1024, not {text:?}"))?);
            }
            Long("libfabric") => options.libfabric = Some(parser.value().map_err(words)?.into()),
            Long("floors") => options.floors = true,
            Long("plot") => {
                let path: PathBuf = parser.value().map_err(words)?.into();
                if plot_format(&path).is_none() {
                    return Err(format!("--plot: {} must end in .svg or .png", path.display()));
                }
                options.plot = Some(path);
            }
            Long("csv") => options.csv = Some(parser.value().map_err(words)?.into()),
            Long("json") => options.json = true,
            Long("quiet") | Short('q') => options.quiet = true,
            other => return Err(words(other.unexpected())),
        }
    }
    Ok(Command::Perf(options))
}

fn value(parser: &mut lexopt::Parser) -> Result<String, String> {
    parser.value().and_then(|value| value.string()).map_err(words)
}

fn words(error: lexopt::Error) -> String {
    error.to_string()
}

/// The parts of a list, without repetition.
fn list(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

fn providers(text: &str) -> Result<Vec<String>, String> {
    match list(text) {
        list if list.is_empty() => Err("--providers: the list is empty".into()),
        list => Ok(list.into_iter().map(str::to_owned).collect()),
    }
}

fn tests(text: &str) -> Result<Vec<Test>, String> {
    if text == "all" {
        return Ok(Test::ALL.into());
    }
    let tests: Vec<Test> = list(text)
        .into_iter()
        .map(|name| {
            Test::parse(name).ok_or_else(|| {
                let names = Test::ALL.map(Test::name).join(", ");
                format!("--tests: there is no {name:?}; there are: {names}, or `all`")
            })
        })
        .collect::<Result<_, _>>()?;
    match tests.is_empty() {
        true => Err("--tests: the list is empty".into()),
        false => Ok(tests),
    }
}

/// A list of sizes and ranges.
fn sizes(text: &str) -> Result<Vec<usize>, String> {
    let mut sizes = Vec::new();
    for part in list(text) {
        let Some((first, rest)) = part.split_once("..") else {
            sizes.push(size(part)?);
            continue;
        };
        let (last, factor) = rest.split_once(':').unwrap_or((rest, "2"));
        let (first, last) = (size(first)?, size(last)?);
        let factor: usize = factor
            .parse()
            .ok()
            .filter(|factor| *factor >= 2)
            .ok_or_else(|| format!("--sizes: the factor {factor:?} is no number above 1"))?;
        if first > last {
            return Err(format!("--sizes: {part} is empty"));
        }
        sizes
            .extend(std::iter::successors(Some(first), |n| n.checked_mul(factor)).take_while(|n| *n <= last));
        // The end of a range belongs to it.
        sizes.push(last);
    }
    sizes.sort_unstable();
    sizes.dedup();
    match sizes.is_empty() {
        true => Err("--sizes: the list is empty".into()),
        false => Ok(sizes),
    }
}

/// A number of bytes, at least 1 and at most 1G.
fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|n| (1..=1 << 30).contains(n))
        .ok_or_else(|| format!("--sizes: {text:?} is no number of bytes from 1 to 1G"))
}

fn seconds(name: &str, text: &str, most: f64) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|s| (0.001..=most).contains(s))
        .ok_or_else(|| format!("{name} is a number of seconds from 0.001 to {most}, not {text:?}"))
}

fn cpus(text: &str) -> Result<(usize, usize), String> {
    let (a, b) = text.split_once(',').unwrap_or((text, ""));
    match (a.trim().parse(), b.trim().parse()) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        _ => Err(format!("--cpus is two numbers such as 0,1, not {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn commands() {
        let ucx_env = |ucx, sockaddr, undo| Command::UcxEnv { ucx, sockaddr, undo };
        assert_eq!(parsed("--version"), Ok(Command::Version));
        let info = |json, peer, libfabric| Command::Info(crate::info::Options { json, peer, libfabric });
        assert_eq!(parsed("info"), Ok(info(false, None, None)));
        assert_eq!(parsed("info --json --libfabric=/x"), Ok(info(true, None, Some("/x".into()))));
        assert_eq!(parsed("info --peer a:1"), Ok(info(false, Some("a:1".into()), None)));
        assert!(parsed("info --peer").is_err());
        for (name, text) in [
            ("info", crate::help::INFO),
            ("doctor", crate::help::DOCTOR),
            ("top", crate::help::TOP),
            ("perf", crate::help::PERF),
            ("plot", crate::help::PLOT),
            ("ucx-env", crate::help::UCX_ENV),
            ("topo", crate::help::TOPO),
            ("p2pmemd", crate::help::P2PMEMD),
        ] {
            for line in [
                format!("{name} --help"),
                format!("{name} -h"),
                format!("help {name}"),
                format!("--help {name}"),
            ] {
                assert_eq!(parsed(&line), Ok(Command::Help(text)), "{line}");
            }
        }
        assert_eq!(parsed("help"), Ok(Command::Help(crate::help::MAIN)));
        assert_eq!(parsed("ucx-env --ucx /x"), Ok(ucx_env(Some("/x".into()), false, false)));
        assert_eq!(parsed("ucx-env --sockaddr"), Ok(ucx_env(None, true, false)));
        assert_eq!(parsed("ucx-env --undo"), Ok(ucx_env(None, false, true)));
        assert_eq!(parsed("perf -h"), Ok(Command::Help(crate::help::PERF)));
    }

    #[test]
    fn a_program_for_the_doctor_keeps_its_options() {
        let program = |line: &str| match parsed(line) {
            Ok(Command::Doctor { json, program }) => {
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
    fn wrong_lines_are_told() {
        for (line, part) in [
            ("", "no command"),
            ("measure", "\"measure\""),
            ("help measure", "\"measure\""),
            ("--nonsense", "--nonsense"),
            ("info --nonsense", "--nonsense"),
            ("info more", "more"),
            ("info --json=yes", "json"),
            ("ucx-env /x", "/x"),
            ("topo --path nvme0", "PUBLISHER,CLIENT"),
            ("topo nvme0", "nvme0"),
            ("p2pmemd --host much", "--host: much"),
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
        assert_eq!(options.providers, ["shm", "tcp;ofi_rxm"]);
        assert_eq!(options.tests, [Test::Lat, Test::RmaRead]);
        assert_eq!(options.sizes, [8, 16, 32, 1024]);
        assert_eq!((options.reps, options.seconds, options.cpus), (2, 0.5, Some((2, 3))));
        assert!(options.floors && options.json && options.quiet);
        assert_eq!(options.procs, Some(8));
        assert_eq!((options.csv, options.plot), (Some("a.csv".into()), Some("b.png".into())));
    }

    #[test]
    fn ranges_of_sizes() {
        assert_eq!(sizes("8..4M:8").unwrap().len(), 8);
        assert_eq!(sizes("1..5").unwrap(), [1, 2, 4, 5]);
        assert_eq!(sizes("4k, 4K,1m").unwrap(), [4096, 1 << 20]);
    }
}
