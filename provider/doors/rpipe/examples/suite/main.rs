//! What every backend has to do, as a job of two processes, or of more for pipes: started by `strait run`,
//! mpirun or mpiexec, with STRAIT_RPIPE_BACKEND. `ci/suite/rpipe` runs it over all.
//!
//!     suite moves      memory, puts, gets, fetches and messages of the backend itself
//!     suite pipes      pipes over it: all lengths, flag modes, synchronisations, and from each rank to the next
//!     suite groups     broadcast, neighbour exchange, many writers
//!     suite lend       rank 1 lends memory and makes no call; rank 0 has a heap there
//!     suite thresholds which ways a path has to move messages of each length, and how long each takes
//!     suite open       whether the backend can be opened at all
//!     suite kills N    a peer is killed at a random moment, N times; it starts that peer itself
//!     suite death      rank 1 is killed in the middle; the others have its end reported

mod groups;
mod kills;
mod lend;
mod moves;
mod pipes;
mod thresholds;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait_rpipe::{Backend, Bootstrap, Context, Error, Event, Settings, backends, start};

/// After so long a check fails.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The bytes of message `n`.
pub fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at * 7 + at / 251) as u8).collect()
}

/// This process in the job, as the environment has it.
pub fn join() -> Result<Arc<Context>, Error> {
    let settings = Settings::from_environment()?;
    let bootstrap = start::find()?;
    let backend = backends::open(&settings, bootstrap.rank())?;
    Ok(Arc::new(Context::new(backend, bootstrap, settings)?))
}

/// A backend whose peers are known.
#[derive(Debug)]
pub struct Job {
    pub backend: Box<dyn Backend>,
    pub rank: u32,
    pub size: u32,
    pub events: Vec<Event>,
}

impl Job {
    fn open() -> Result<(Job, Box<dyn Bootstrap>), Error> {
        let mut bootstrap = start::find()?;
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let settings = Settings::from_environment()?;
        let mut backend = backends::open(&settings, rank)?;
        bootstrap.publish(&backend.card())?;
        // The lower rank of two is introduced to the higher one; the other way the first message does it.
        for peer in rank + 1..size {
            let card = bootstrap.card(peer, Instant::now() + LIMIT)?;
            backend.connect(peer, &card)?;
        }
        Ok((Job { backend, rank, size, events: Vec::new() }, bootstrap))
    }

    /// Makes progress until `found` takes an event.
    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&Event) -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some((at, value)) =
                self.events.iter().enumerate().find_map(|(at, e)| Some((at, found(e)?)))
            {
                self.events.remove(at);
                return value;
            }
            self.step();
            assert!(
                Instant::now() < deadline,
                "rank {}: no {what} in {LIMIT:?}: {:?}",
                self.rank,
                self.events
            );
        }
    }

    /// Makes progress until this holds.
    pub fn while_not(&mut self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done() {
            self.step();
            assert!(
                Instant::now() < deadline,
                "rank {}: no {what} in {LIMIT:?}: {:?}",
                self.rank,
                self.events
            );
        }
    }

    pub fn step(&mut self) {
        self.backend.progress(&mut self.events).unwrap();
        std::thread::yield_now();
    }

    /// Calls until it is taken.
    pub fn post(&mut self, mut call: impl FnMut(&mut dyn Backend) -> Result<(), Error>) {
        let deadline = Instant::now() + LIMIT;
        loop {
            match call(&mut *self.backend) {
                Ok(()) => return,
                Err(Error::Again) => self.step(),
                Err(e) => panic!("rank {}: {e}", self.rank),
            }
            assert!(Instant::now() < deadline, "rank {}: refused for {LIMIT:?}", self.rank);
        }
    }
}

fn main() -> ExitCode {
    let stage = std::env::args().nth(1).unwrap_or_default();
    let done = match stage.as_str() {
        "moves" => Job::open().map(|(mut job, mut bootstrap)| {
            println!(
                "rank {} of {}: {}, found by {}",
                job.rank,
                job.size,
                job.backend.name(),
                bootstrap.name()
            );
            moves::all(&mut job);
            job.backend.close(leaving()).unwrap();
            bootstrap.finalize()
        }),
        "thresholds" => Job::open().map(|(mut job, _)| {
            thresholds::all(&mut job);
            job.backend.close(leaving()).unwrap();
            Ok(())
        }),
        "death" => Job::open().map(|(mut job, _)| {
            moves::death(&mut job);
            Ok(())
        }),
        "pipes" => pipes::all().map(Ok),
        "groups" => groups::all().map(Ok),
        "lend" => lend::all().map(Ok),
        "kills" => kills::all().map(Ok),
        "victim" => kills::victim().map(Ok),
        "open" => Settings::from_environment().and_then(|s| backends::open(&s, 0)).map(|mut backend| {
            println!("{}", backend.name());
            backend.close(leaving()).unwrap();
            Ok(())
        }),
        _ => {
            eprintln!("usage: suite moves|pipes|groups|lend|thresholds|death|kills|open");
            return ExitCode::from(2);
        }
    };
    match done.and_then(|done| done) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("suite {stage}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Until when what was put is waited for.
fn leaving() -> Instant {
    Instant::now() + Duration::from_secs(5)
}
