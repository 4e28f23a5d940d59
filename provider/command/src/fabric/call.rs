//! Calls a peer: whether it answers, and after what time.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use super::links::{self, sockaddr};
use super::{Endpoint, Error, Library, Part, Region, Remote};

/// Round trips of which the median is taken.
const TRIPS: usize = 20;
/// For how long the completion queue is polled without a pause, and the pause after that.
const BUSY: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(100);

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It answered.
    Answered {
        /// The time of the first operation, with that of the connection.
        first: Duration,
        /// The median of those that came after it.
        round_trip: Option<Duration>,
    },
    /// The provider reports an error.
    Failed(String),
    /// There was no answer in the time.
    Silent,
}

/// What came of a call, and the path that was taken, in the provider's words.
#[derive(Debug)]
pub struct Called {
    pub outcome: Outcome,
    pub path: String,
    pub took: Duration,
}

/// Calls a peer as an operation of a program would. What is sent is a read of no byte under a random key,
/// which the peer answers with an error: its program gets nothing. Returns in `limit`, and what the provider
/// takes to close an endpoint.
pub fn call(
    library: &Arc<Library>,
    provider: &str,
    peer: SocketAddr,
    limit: Duration,
) -> Result<Called, Error> {
    let info = links::info(library, provider, peer.is_ipv6(), sys::FI_MSG | sys::FI_RMA)?;
    let mut endpoint = Endpoint::open(&info, Region::new(1)?, 1, limit, true)?;
    endpoint.connect(Remote { name: sockaddr(peer), ..Remote::default() })?;
    let begin = Instant::now();
    let outcome = calls(&mut endpoint, begin, limit);
    let took = begin.elapsed();
    Ok(Called { outcome, path: links::path_of(&endpoint)?, took })
}

fn calls(endpoint: &mut Endpoint, begin: Instant, limit: Duration) -> Outcome {
    let key = RandomState::new().build_hasher().finish();
    let first = match trip(endpoint, key, begin + limit) {
        Ok(first) => first,
        Err(outcome) => return outcome,
    };
    // One that does not answer any more has answered once.
    let mut all: Vec<Duration> = (0..TRIPS).map_while(|_| trip(endpoint, key, begin + limit).ok()).collect();
    all.sort_unstable();
    Outcome::Answered { first, round_trip: all.get(all.len() / 2).copied() }
}

/// The time of one read.
fn trip(endpoint: &mut Endpoint, key: u64, until: Instant) -> Result<Duration, Outcome> {
    let begin = Instant::now();
    let failed = |error: Error| match Instant::now() < until {
        true => Outcome::Failed(error.text().to_owned()),
        false => Outcome::Silent,
    };
    endpoint.read_by_key(Part { offset: 0, len: 0 }, key, 0).map_err(failed)?;
    while Instant::now() < until {
        match endpoint.next_end().map_err(failed)? {
            None if begin.elapsed() < BUSY => std::thread::yield_now(),
            None => std::thread::sleep(PAUSE),
            Some(Ok(())) => return Ok(begin.elapsed()),
            Some(Err(failure)) if failure.number == sys::FI_ENOKEY => return Ok(begin.elapsed()),
            Some(Err(failure)) if !failure.words.is_empty() => return Err(Outcome::Failed(failure.words)),
            Some(Err(failure)) => return Err(Outcome::Failed(failure.text)),
        }
    }
    Err(Outcome::Silent)
}
