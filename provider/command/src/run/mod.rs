//! `strait run`: starts the processes of a job on this host, and ends when they have.

mod job;
mod output;
pub mod signals;

use std::ffi::OsString;
use std::time::Duration;

use lexopt::prelude::*;

pub use job::run;

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub struct Options {
    pub procs: usize,
    pub bind: bool,
    pub output: Output,
    /// From the request to end until a process is killed.
    pub grace: Duration,
    pub program: Vec<OsString>,
}

/// What happens to the processes' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// They write to this process's own descriptors.
    Direct,
    /// Line by line.
    Lines,
    /// Line by line, with the rank in front.
    Label,
}

/// Understands the options; `None` asks for help.
pub fn parse(parser: &mut lexopt::Parser) -> Result<Option<Options>, lexopt::Error> {
    let (program, grace) = (Vec::new(), Duration::from_secs(2));
    let mut options = Options { procs: 0, bind: false, output: Output::Direct, grace, program };
    loop {
        // From the first word on that is no option, all is the program's.
        if let Some(rest) = parser.try_raw_args() {
            let word = rest.peek().map(|word| word.to_string_lossy().into_owned());
            if word.is_some_and(|word| word == "--" || !word.starts_with('-')) {
                options.program.extend(rest);
                if options.program[0] == "--" {
                    options.program.remove(0);
                }
                break;
            }
        }
        match parser.next()? {
            None => break,
            Some(Short('h') | Long("help")) => return Ok(None),
            Some(Short('n') | Long("procs")) => options.procs = parser.value()?.parse()?,
            Some(Long("bind")) => options.bind = true,
            Some(Long("lines")) => options.output = Output::Lines,
            Some(Short('l') | Long("label")) => options.output = Output::Label,
            Some(Long("grace")) => {
                let seconds: f64 = parser.value()?.parse()?;
                if !(0.0..=3600.0).contains(&seconds) {
                    return Err("--grace is a number of seconds up to 3600".into());
                }
                options.grace = Duration::from_secs_f64(seconds);
            }
            Some(other) => return Err(other.unexpected()),
        }
    }
    match (options.procs, options.program.is_empty()) {
        (1..=65536, false) => Ok(Some(options)),
        (_, true) => Err("run: no program is named".into()),
        _ => Err("run: -n says how many processes, from 1 to 65536".into()),
    }
}
