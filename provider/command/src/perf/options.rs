//! What to measure, and how.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{ArgPredicate, PathBufValueParser, PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args};

use super::plot::format_of;
use super::test::Test;
use crate::values;

/// A list as one value: `Vec` would be an option that may be repeated.
type List<T> = Vec<T>;

#[derive(Args, Clone, Debug, PartialEq)]
#[command(after_help = "\
Tests:
  lat             tagged ping-pong, half a round trip        msg-lat   untagged
  bw              tagged messages one way, window of 64      rate      of 8 bytes, messages/s
  rma-write-lat   ping-pong of writes with remote completion
  put-lat         one write until its completion             rma-write bandwidth, window of 64
  rma-read-lat    one read until its completion              rma-read  bandwidth, window of 64
  atomic, fetch-atomic, compare-atomic    one operation on 64 bits until its completion
                  among --procs processes:
  stream          one way, one at a time, per message        window    64 at a time, per message
  incast          all to one, per message                    ring      from left to right, per step
  exchange        with both neighbours at once, per step     storm     all to all, any source, per step

Two processes (or more), bound to one core each, talk through each provider in turn. A result is the median of
repetitions, with the least and the most; providers take turns within each repetition. Contents are
checked outside of the measured time. Messages and writes up to the provider's own limit are injected.

Exits with 0 if everything asked for was measured, with 1 if something failed, with 2 for wrong usage.
A provider outside of libfabric is found through FI_PROVIDER_PATH; without it, `strait` is the one of this
installation. On a host with other work, `chrt -f 1 strait perf` (as root) keeps that off the two cores.

Examples:
  strait perf
  strait perf --providers strait,shm --tests lat,rate --sizes 8..4K
  strait perf --providers 'shm,tcp;ofi_rxm' --tests all --plot perf.png --csv perf.csv
  strait perf --mpi \"mpirun -n 4\" --plot gain.svg")]
pub struct Options {
    /// how much faster MPI programs are over strait than over what this launcher's MPI does now, such as
    /// "mpirun -n 4"; compiled with the mpicc beside it
    #[arg(long, value_name = "LAUNCHER", verbatim_doc_comment)]
    #[arg(conflicts_with_all = ["providers", "tests", "floors", "cpus", "procs", "libfabric", "json"])]
    pub mpi: Option<String>,
    /// names as in fi_info; default: those of strait,shm,tcp that are there.
    /// Before libfabric 1.18, tcp is taken for tcp;ofi_rxm
    #[arg(long, value_name = "LIST", value_parser = providers, verbatim_doc_comment)]
    pub providers: Option<List<String>>,
    /// names of the list below, or `all`
    #[arg(long, value_name = "LIST", value_parser = Names, hide_possible_values = true)]
    #[arg(default_value = "lat,bw,rate,rma-write-lat,rma-write,rma-read,fetch-atomic")]
    pub tests: List<Test>,
    /// bytes, with K, M or G; `8..4M` is every power of two, `8..4M:8` every third
    #[arg(long, value_name = "LIST", value_parser = sizes, default_value = "8,64,512,4K,16K,64K,256K,1M,4M")]
    #[arg(default_value_if("mpi", ArgPredicate::IsPresent, "8,4K,64K,1M"))]
    pub sizes: List<usize>,
    /// also what the machine takes: cache line, memcpy, process_vm_readv
    #[arg(long)]
    pub floors: bool,
    /// repetitions
    #[arg(long, value_name = "N", default_value = "5")]
    #[arg(default_value_if("mpi", ArgPredicate::IsPresent, "3"))]
    #[arg(value_parser = values::count(1, 1000))]
    pub reps: usize,
    /// of one measurement
    #[arg(long = "time", value_name = "SECONDS", default_value = "0.03")]
    #[arg(value_parser = values::seconds(0.001, 60.0))]
    pub seconds: f64,
    /// for anything to happen, else the test fails
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    #[arg(value_parser = values::duration(0.001, 3600.0))]
    pub timeout: Duration,
    /// the two cores; default: the first two that are allowed
    #[arg(long, value_name = "A,B", value_parser = cpus)]
    pub cpus: Option<(usize, usize)>,
    /// processes of the patterns, on cores A, B and on; default: as many as cores, at most 16
    #[arg(long, value_name = "N", value_parser = values::count(2, 1024))]
    pub procs: Option<usize>,
    /// this libfabric (file, or directory with libfabric.so.1) instead of the default
    #[arg(long, value_name = "PATH")]
    pub libfabric: Option<PathBuf>,
    /// draw it: .svg or .png
    #[arg(long, value_name = "FILE", value_parser = picture())]
    pub plot: Option<PathBuf>,
    /// one line for each test, size and provider
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// print JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// no progress on standard error
    #[arg(short, long)]
    pub quiet: bool,
}

impl Options {
    /// What cannot come of these options, before anything is measured.
    pub fn wrong(&self) -> Option<String> {
        let curve = self.tests.iter().any(|test| test.only_size().is_none() && !test.is_floor());
        (self.plot.is_some() && self.mpi.is_none() && (self.sizes.len() < 2 || !curve)).then(|| {
            "perf: --plot draws curves over sizes: it needs two sizes, and a test that is of any size".into()
        })
    }
}

/// The parts of a list, without repetition.
fn list(text: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    if parts.is_empty() { Err("the list is empty".into()) } else { Ok(parts) }
}

fn providers(text: &str) -> Result<Vec<String>, String> {
    Ok(list(text)?.into_iter().map(str::to_owned).collect())
}

fn tests(text: &str) -> Result<Vec<Test>, String> {
    if text == "all" {
        return Ok(Test::ALL.into());
    }
    let test = |name| {
        Test::parse(name).ok_or_else(|| {
            let names = Test::ALL.map(Test::name).join(", ");
            format!("there is no {name:?}; there are: {names}, or `all`")
        })
    };
    list(text)?.into_iter().map(test).collect()
}

/// As [`tests`], with the names for completion.
#[derive(Clone)]
struct Names;

impl TypedValueParser for Names {
    type Value = Vec<Test>;

    fn parse_ref(
        &self,
        cmd: &clap::Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Vec<Test>, clap::Error> {
        StringValueParser::new().try_map(|text| tests(&text)).parse_ref(cmd, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        Some(Box::new(Test::ALL.into_iter().map(Test::name).chain(["all"]).map(PossibleValue::new)))
    }
}

/// Whether a name is one of a picture.
pub fn is_picture(path: &Path) -> bool {
    format_of(path).is_some()
}

/// The file of a plot.
fn picture() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match format_of(&path) {
        Some(_) => Ok(path),
        None => Err("it must end in .svg or .png"),
    })
}

/// A list of sizes and ranges.
fn sizes(text: &str) -> Result<Vec<usize>, String> {
    let mut sizes = Vec::new();
    for part in list(text)? {
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
            .ok_or_else(|| format!("the factor {factor:?} is no number above 1"))?;
        if first > last {
            return Err(format!("{part} is empty"));
        }
        sizes
            .extend(std::iter::successors(Some(first), |n| n.checked_mul(factor)).take_while(|n| *n <= last));
        // The end of a range belongs to it.
        sizes.push(last);
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
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
        .ok_or_else(|| format!("{text:?} is no number of bytes from 1 to 1G"))
}

fn cpus(text: &str) -> Result<(usize, usize), String> {
    let (a, b) = text.split_once(',').unwrap_or((text, ""));
    match (a.trim().parse(), b.trim().parse()) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        _ => Err("it is two numbers such as 0,1".into()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ranges_of_sizes() {
        assert_eq!(super::sizes("8..4M:8").unwrap().len(), 8);
        assert_eq!(super::sizes("1..5").unwrap(), [1, 2, 4, 5]);
        assert_eq!(super::sizes("4k, 4K,1m").unwrap(), [4096, 1 << 20]);
    }
}
