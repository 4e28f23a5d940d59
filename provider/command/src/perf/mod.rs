//! `strait perf`: providers side by side, between two processes on two cores, or among many.

mod crowd;
mod floor;
mod gain;
mod group;
mod launch;
mod mpi;
mod mpi_chart;
mod options;
mod pair;
mod plot;
mod report;
mod session;
mod stat;
mod test;
mod wire;
mod worker;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use group::Group;
use launch::Plan;
use libfabric_sys::FI_VERSION;
pub use options::{Options, is_picture};
use pair::Pair;
use report::{Failure, Report, Row};
use test::Shape;
use test::Test;
use wire::About;
pub use worker::Start;

use crate::fabric::{Error, Library, version_text};
use crate::out::{self, say};
use crate::version::VERSION;
use crate::{info, os};

/// The provider's name in rows that are floors.
const MACHINE: &str = "machine";

/// Most processes of patterns that are started unasked.
const PROCS: usize = 16;

/// Runs as a worker, with the arguments behind `perf-peer`.
pub fn peer(start: &Start) -> Result<(), Error> {
    worker::work(start)
}

/// Measures and prints. Returns whether all requested tests were measured.
pub fn run(options: &Options) -> Result<bool, Error> {
    // What is known to fail is not found out after all is measured.
    for file in options.csv.iter().chain(&options.plot) {
        writable(file)?;
    }
    if let Some(launcher) = &options.mpi {
        return mpi::run(launcher, options);
    }
    let library = Library::load(options.libfabric.as_deref())?;
    let mut runner = Runner::new(options)?;
    let explicit = options.providers.is_some();
    let providers = &providers(options.providers.as_deref().unwrap_or_default(), library.version())[..];

    let mut tests = options.tests.clone();
    if options.floors {
        tests.splice(0..0, Test::FLOORS);
    }
    for rep in 1..=options.reps {
        for &test in &tests {
            if test.is_floor() {
                runner.measure(MACHINE, test, rep)?;
                continue;
            }
            for provider in providers {
                runner.measure(provider, test, rep)?;
            }
        }
    }

    let mut report = Report {
        version: VERSION,
        libfabric: library.path().display().to_string(),
        libfabric_version: version_text(library.version()),
        cpus: runner.plan.cpus,
        procs: runner.places.len(),
        reps: options.reps,
        providers: std::mem::take(&mut runner.abouts),
        rows: runner.rows(&tests, providers),
        unsupported: std::mem::take(&mut runner.unsupported),
        failed: std::mem::take(&mut runner.failed),
    };
    // A provider of the default list that is not here is worth one line, not an error.
    let absent: Vec<String> = providers
        .iter()
        .filter(|provider| !report.rows.iter().any(|row| row.provider == **provider))
        .filter(|provider| !report.failed.iter().any(|fail| fail.provider == **provider))
        .cloned()
        .collect();
    report.unsupported.retain(|one| !absent.contains(&one.provider) || explicit);

    if options.json {
        let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        out::print(&(text + "\n"))?;
    } else {
        out::print(&report.text())?;
    }
    for provider in &absent {
        let mut why = String::from("not available for this");
        if provider == crate::info::NAME {
            let advice = crate::info::not_offered(&library);
            why = if advice.is_empty() { why + "; `strait info` says why" } else { advice.join("; ") };
        }
        say!("strait perf: provider {provider} measured nothing: {why}");
    }
    if let Some(path) = &options.csv {
        std::fs::write(path, report.csv()).map_err(|error| format!("writing {}: {error}", path.display()))?;
    }
    if let Some(path) = &options.plot {
        let note = format!(
            "libfabric {}, cores {} and {}; median, least and most of {}",
            report.libfabric_version, report.cpus.0, report.cpus.1, report.reps
        );
        plot::draw(&report, &note, path)?;
    }
    if report.rows.is_empty() && report.failed.is_empty() {
        return Err(Error::Failed("nothing could be measured".into()));
    }
    Ok(report.failed.is_empty() && (!explicit || absent.is_empty()))
}

/// A core for each process of a pattern: these two first, then others that are allowed, and these again.
fn places(first: (usize, usize), allowed: &[usize], procs: Option<usize>) -> Vec<usize> {
    let mut cores = vec![first.0, first.1];
    cores.extend(allowed.iter().filter(|cpu| **cpu != first.0 && **cpu != first.1));
    if first.0 == first.1 {
        cores.remove(0);
    }
    let procs = procs.unwrap_or(cores.len().clamp(2, PROCS));
    cores.into_iter().cycle().take(procs).collect()
}

/// The requested providers, or the default list: by the names of those that have such endpoints.
fn providers(asked: &[String], libfabric: u32) -> Vec<String> {
    let usual = ["strait", "shm", "tcp"].map(str::to_owned);
    let mut names: Vec<String> = Vec::new();
    for name in if asked.is_empty() { &usual } else { asked } {
        let name = if name == "tcp" { tcp(libfabric) } else { name };
        if !names.iter().any(|known| known == name) {
            names.push(name.into());
        }
    }
    names
}

/// The provider for TCP that has endpoints of the sort measured: before 1.18 it is a layered one.
fn tcp(libfabric: u32) -> &'static str {
    if libfabric < FI_VERSION(1, 18) { "tcp;ofi_rxm" } else { "tcp" }
}

/// Whether a file can be written; one that was not there is not left behind.
fn writable(path: &Path) -> Result<(), Error> {
    let new = !path.exists();
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| Error::Failed(format!("cannot write {}: {error}", path.display())))?;
    if new {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Draws what was measured before; the last file is the picture.
pub fn plot(files: &[PathBuf]) -> Result<(), Error> {
    let Some((picture, results)) = files.split_last() else { return Ok(()) };
    let mut rows = Vec::new();
    for path in results {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        rows.extend(report::read_csv(&text).map_err(|e| format!("{}: {e}", path.display()))?);
    }
    // The tests one after the other, each with its providers in the order in which they came.
    rows.sort_by_key(|row| Test::ALL.iter().position(|t| *t == row.test));
    let most = rows.iter().map(|row| row.values.len()).max().unwrap_or(0);
    let note = format!("median, least and most of {most}");
    plot::draw(&Report { rows, ..Report::default() }, &note, picture)
}

type Key = (String, Test, usize);

struct Runner<'a> {
    options: &'a Options,
    plan: Plan,
    pairs: HashMap<String, Pair>,
    groups: HashMap<String, Group>,
    /// The core of each process of a pattern.
    places: Vec<usize>,
    /// All that was measured, in [`Test::unit`].
    values: HashMap<Key, Vec<f64>>,
    abouts: BTreeMap<String, About>,
    skip: HashSet<(String, Test)>,
    unsupported: Vec<Failure>,
    failed: Vec<Failure>,
    begin: Instant,
    printed: Instant,
}

impl<'a> Runner<'a> {
    fn new(options: &'a Options) -> Result<Runner<'a>, Error> {
        let now = Instant::now();
        let cpus = options.cpus.unwrap_or_else(os::pair_of_cpus);
        let allowed = os::allowed_cpus();
        if let Some(cpu) = [cpus.0, cpus.1].into_iter().find(|cpu| !allowed.contains(cpu)) {
            let those = info::ranges(&allowed);
            return Err(Error::Failed(format!("--cpus: this process may not use core {cpu}, but {those}")));
        }
        Ok(Runner {
            options,
            plan: Plan {
                libfabric: options.libfabric.clone(),
                cpus,
                own: info::own_provider().map(|dir| (info::NAME, dir)),
                // A measurement must not look like a hang.
                timeout: options.timeout.max(Duration::from_secs_f64(options.seconds * 4.0)),
            },
            pairs: HashMap::new(),
            groups: HashMap::new(),
            places: places(cpus, &allowed, options.procs),
            values: HashMap::new(),
            abouts: BTreeMap::new(),
            skip: HashSet::new(),
            unsupported: Vec::new(),
            failed: Vec::new(),
            begin: now,
            printed: now,
        })
    }

    /// All sizes of a test over a provider, once.
    fn measure(&mut self, provider: &str, test: Test, rep: usize) -> Result<(), Error> {
        if self.skip.contains(&(provider.to_owned(), test)) {
            return Ok(());
        }
        self.progress(provider, test, rep);
        let mut size = None;
        let result = self.measure_all(provider, test, &mut size);
        let Err(error) = result else {
            return Ok(());
        };
        let failure = Failure {
            provider: provider.into(),
            test: test.name(),
            size,
            text: error.text().lines().collect::<Vec<_>>().join(" "),
        };
        self.skip.insert((provider.to_owned(), test));
        match error {
            Error::Unsupported(_) => self.unsupported.push(failure),
            Error::Failed(_) => {
                say!("strait perf: FAILED: {failure}");
                self.failed.push(failure);
                self.pairs.remove(provider);
                self.groups.remove(provider);
            }
        }
        Ok(())
    }

    fn measure_all(&mut self, provider: &str, test: Test, at: &mut Option<usize>) -> Result<(), Error> {
        let sizes = match test.only_size() {
            Some(size) => vec![size],
            None => self.options.sizes.clone(),
        };
        let most = sizes.iter().copied().max().unwrap_or(8);
        if test.shape() == Shape::Crowd {
            return self.measure_crowd(provider, test, most, at);
        }
        if !self.pairs.contains_key(provider) {
            let filter = (provider != MACHINE).then_some(provider);
            self.pairs.insert(provider.to_owned(), Pair::start(&self.plan, filter)?);
        }
        let Some(pair) = self.pairs.get_mut(provider) else {
            return Err(Error::Failed("no processes to measure with".into()));
        };
        let about = pair.open(provider, test, most)?;
        if provider != MACHINE {
            self.abouts.entry(provider.to_owned()).or_insert(about);
        }
        for size in sizes {
            *at = Some(size);
            let (ops, seconds) = pair.measure(size, self.options.seconds)?;
            let value = test.value(size, ops, seconds);
            self.values.entry((provider.to_owned(), test, size)).or_default().push(value);
        }
        pair.close()
    }

    /// Measures a pattern among many processes.
    fn measure_crowd(
        &mut self,
        provider: &str,
        test: Test,
        most: usize,
        at: &mut Option<usize>,
    ) -> Result<(), Error> {
        if !self.groups.contains_key(provider) {
            let group = Group::start(&self.plan, provider, &self.places)?;
            self.groups.insert(provider.to_owned(), group);
        }
        let Some(group) = self.groups.get_mut(provider) else {
            return Err(Error::Failed("no processes to measure with".into()));
        };
        let about = group.open(provider, test, most)?;
        self.abouts.entry(provider.to_owned()).or_insert(about);
        let per_step = test.per_step(self.places.len()) as u64;
        for &size in &self.options.sizes {
            *at = Some(size);
            let (steps, seconds) = group.measure(size, self.options.seconds)?;
            let value = test.value(size, steps * per_step, seconds);
            self.values.entry((provider.to_owned(), test, size)).or_default().push(value);
        }
        group.close()
    }

    /// A line on standard error now and then.
    fn progress(&mut self, provider: &str, test: Test, rep: usize) {
        let every = Duration::from_secs(if std::io::stderr().is_terminal() { 2 } else { 10 });
        if self.options.quiet || self.printed.elapsed() < every {
            return;
        }
        self.printed = Instant::now();
        say!(
            "strait perf: {:.0} s: repetition {rep} of {}: {} over {provider}",
            self.begin.elapsed().as_secs_f64(),
            self.options.reps,
            test.name()
        );
    }

    fn rows(&self, tests: &[Test], providers: &[String]) -> Vec<Row> {
        let mut rows = Vec::new();
        for &test in tests {
            let machine = [MACHINE.to_owned()];
            let providers = if test.is_floor() { &machine[..] } else { providers };
            let sizes = match test.only_size() {
                Some(size) => vec![size],
                None => self.options.sizes.clone(),
            };
            for size in sizes {
                for provider in providers {
                    let key = (provider.clone(), test, size);
                    if let Some(values) = self.values.get(&key) {
                        rows.extend(Row::new(test, size, provider, values));
                    }
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_the_one_that_has_such_endpoints() {
        let names = |asked: &[&str], version| {
            let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
            providers(&asked, version).join(" ")
        };
        let (old, new) = (FI_VERSION(1, 17), FI_VERSION(1, 18));
        assert_eq!(names(&[], old), "strait shm tcp;ofi_rxm");
        assert_eq!(names(&[], new), "strait shm tcp");
        assert_eq!(names(&["tcp"], old), "tcp;ofi_rxm");
        assert_eq!(names(&["tcp", "tcp;ofi_rxm", "x"], old), "tcp;ofi_rxm x");
        assert_eq!(names(&["tcp", "tcp;ofi_rxm"], new), "tcp tcp;ofi_rxm");
    }
}
