//! Which messages the path copies when they are written: as the environment says, or measured when the first
//! pipe over a path is set up.
//!
//! An injected message's block is free at once, and has no completion; a longer one is put from its block.
//! Each way is timed to the end of a get that is started behind it, which the reader's process, or its
//! adapter, answers. The bytes go to a part of the reader's region that nothing reads, so that one that comes
//! late does no harm.

use std::time::{Duration, Instant};

use super::port::Port;
use super::{Mode, Patience};
use crate::core::context::{Ready, UNAWAITED};
use crate::core::settings::INJECT_MOST;
use crate::{Error, Get, Put};

/// The lengths that are timed, and the longest that may be injected behind them, until one is put as fast.
const LENGTHS: [usize; 6] = [64, 128, 256, 512, 1024, 2048];
/// Times of each way at each length, behind one that does not count.
const TURNS: usize = 15;
/// The most time in all, where the reader's process has to make progress, and elsewhere.
const FAR: Duration = Duration::from_millis(4);
const NEAR: Duration = Duration::from_millis(1);

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The longest message that is injected; 0: none.
    most: usize,
    /// For people.
    why: String,
    /// The last operation that the measurement has started.
    op: u32,
    /// Those that had not ended when its time was over.
    begun: Vec<u32>,
}

impl Chosen {
    fn new(most: usize, why: impl Into<String>) -> Chosen {
        Chosen { most, why: why.into(), op: UNAWAITED, begun: Vec::new() }
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }

    pub(super) fn last_op(&self) -> u32 {
        self.op
    }

    /// Waits for what may still come to this end's memory.
    pub(super) fn await_begun(&mut self, port: &Port, patience: Patience) -> Result<(), Error> {
        while let Some(op) = self.begun.last() {
            // Also one that has failed has ended.
            if port.await_op(*op, patience) == Err(Error::Again) {
                return Err(Error::Again);
            }
            self.begun.pop();
        }
        Ok(())
    }
}

/// Nanoseconds of both ways at one length.
#[derive(Clone, Debug, Default)]
struct Sample {
    len: usize,
    put: Vec<u64>,
    inject: Vec<u64>,
}

/// What a sample says of a way.
#[derive(Clone, Copy, Debug)]
struct Times {
    median: u64,
    least: u64,
}

/// Why there is one way alone on this path.
fn one_way(ready: &Ready) -> Option<&'static str> {
    match ready.met.manner.mode {
        Mode::Store => Some("longer messages are stored where the reader has them"),
        _ if ready.met.manner.pull => Some("the reader gets the bytes"),
        Mode::Delivered => Some("an injected message does not say that it is visible"),
        _ if !ready.promise.between => Some("the order of writes is not promised"),
        _ => None,
    }
}

/// For a writer's end, by a call of this patience.
pub(super) fn choose(port: &Port, ready: &Ready, patience: Patience) -> Chosen {
    let promise = &ready.promise;
    let most = promise.inject.min(INJECT_MOST);
    if let Some(why) = one_way(ready) {
        return Chosen::new(0, why);
    }
    if let Some(asked) = port.context().settings().inject {
        return Chosen::new(asked.min(most), "given by STRAIT_RPIPE_INJECT");
    }
    if let Some((most, why)) = port.context().lock().injects().get(promise) {
        return Chosen::new(most, why);
    }
    let default = promise.eager.min(most);
    let time = if promise.peer_progress { FAR } else { NEAR };
    let has_time = match (patience, Instant::now().checked_add(time)) {
        (Patience::Forever | Patience::InTurns(None, _), Some(_)) => true,
        (Patience::Until(until) | Patience::InTurns(Some(until), _), Some(end)) => until >= end,
        _ => false,
    };
    if !has_time {
        return Chosen::new(default, "default, since the call that set the pipe up had no time to measure");
    }
    let (op, begun, patience) = (UNAWAITED, Vec::new(), Patience::for_a(time));
    let mut trials = Trials { port, ready, op, begun, patience };
    let chosen = decide(&trials.all(most), default);
    port.context().lock().injects().insert(promise, chosen.most, &chosen.why);
    Chosen { op: trials.op, begun: trials.begun, ..chosen }
}

/// Whether to inject saves a sixteenth of the time at least, by the medians and by the shortest: less is what
/// two measurements differ by.
fn saves(put: Times, inject: Times) -> bool {
    let less = |put: u64, inject: u64| inject.saturating_mul(16) <= put.saturating_mul(15);
    less(put.median, inject.median) && less(put.least, inject.least)
}

/// The longest length up to which an injected message takes less time. Samples of rising lengths.
fn decide(samples: &[Sample], default: usize) -> Chosen {
    let (mut most, mut last) = (0, None);
    for sample in samples {
        let (Some(put), Some(inject)) = (times(&sample.put), times(&sample.inject)) else {
            return Chosen::new(default, format!("default, since samples of {} bytes disagree", sample.len));
        };
        last = Some(format!("measured: {} bytes {} ns, put {} ns", sample.len, inject.median, put.median));
        if !saves(put, inject) {
            break;
        }
        most = sample.len;
    }
    match last {
        Some(why) => Chosen::new(most, why),
        None => Chosen::new(default, "default, since the reader has not answered in time"),
    }
}

/// What a sample says; `None`: there are too few, or a quarter takes twice as long as another quarter.
fn times(all: &[u64]) -> Option<Times> {
    let mut all = all.to_vec();
    all.sort_unstable();
    let quarter = all.len() / 4;
    let (low, high) = (*all.get(quarter)?, *all.get(all.len() - 1 - quarter)?);
    let agree = all.len() >= TURNS && high <= low.saturating_mul(2);
    agree.then(|| Times { median: all[all.len() / 2], least: all[0] })
}

struct Trials<'a> {
    port: &'a Port,
    ready: &'a Ready,
    op: u32,
    begun: Vec<u32>,
    patience: Patience,
}

impl Trials<'_> {
    /// Until a length is put as fast, or the time is over: of complete samples.
    fn all(&mut self, most: usize) -> Vec<Sample> {
        let mut samples = Vec::new();
        for len in LENGTHS.into_iter().filter(|len| *len < most).chain([most]) {
            let mut sample = Sample { len, ..Sample::default() };
            for round in 0..=TURNS {
                let (Ok(put), Ok(inject)) = (self.time(len, false), self.time(len, true)) else {
                    return samples;
                };
                if round > 0 {
                    sample.put.push(put);
                    sample.inject.push(inject);
                }
            }
            let both = times(&sample.put).zip(times(&sample.inject));
            samples.push(sample);
            if !both.is_some_and(|(put, inject)| saves(put, inject)) {
                break;
            }
        }
        samples
    }

    fn time(&mut self, len: usize, inject: bool) -> Result<u64, Error> {
        let (mine, shape) = (&self.ready.mine, self.ready.met.shape);
        let remote = (self.ready.theirs.remote, shape.unread_at());
        let (port, patience) = (self.port, self.patience);
        let begun = Instant::now();
        if inject {
            let bytes = [0; INJECT_MOST];
            port.put_bytes(patience, remote, &bytes[..len], None)?;
        } else {
            let (from, token) = ((mine.id, 0), port.token(self.op + 1));
            let put = Put { to: port.peer(), from, remote, len, behind: false, notify: None, token };
            port.post(patience, |backend| backend.put(&put))?;
            self.has_begun();
        }
        let (to, token) = ((mine.id, shape.answer_at()), port.token(self.op + 1));
        let get = Get { from: port.peer(), remote, to, len: 8, token };
        port.post(patience, |backend| backend.get(&get))?;
        self.has_begun();
        while let Some(op) = self.begun.last() {
            match port.await_op(*op, patience) {
                Err(Error::Again) => return Err(Error::Again),
                ended => {
                    self.begun.pop();
                    ended?;
                }
            }
        }
        Ok(begun.elapsed().as_nanos() as u64)
    }

    fn has_begun(&mut self) {
        self.op += 1;
        self.begun.push(self.op);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn sample(len: usize, put: [u64; TURNS], inject: [u64; TURNS]) -> Sample {
        Sample { len, put: put.to_vec(), inject: inject.to_vec() }
    }

    #[test]
    fn messages_are_injected_up_to_the_last_length_at_which_that_takes_less_time() {
        let (short, long) = ([150; TURNS], [160; TURNS]);
        let first = sample(64, long, short);
        let all = [first, sample(128, long, short), sample(256, short, short), sample(512, long, short)];
        assert_eq!(decide(&all, 4096), Chosen::new(128, "measured: 256 bytes 150 ns, put 150 ns"));
        assert_eq!(decide(&all[..2], 0), Chosen::new(128, "measured: 128 bytes 150 ns, put 160 ns"));
        assert_eq!(decide(&all[..1], 0).most, 64);
        // Less than a sixteenth is no gain.
        assert_eq!(decide(&[sample(64, long, [151; TURNS])], 4096).most, 0);
        assert_eq!(decide(&[sample(64, short, long)], 4096).most, 0);
        let once = std::array::from_fn(|n| if n == 0 { 150 } else { 160 });
        assert_eq!(decide(&[sample(64, once, short)], 4096).most, 0);
    }

    #[test]
    fn one_sample_that_was_interrupted_changes_nothing() {
        let inject = std::array::from_fn(|n| if n == 0 { 1000 } else { 10 + n as u64 % 2 });
        assert_eq!(decide(&[sample(64, [12; TURNS], inject)], 0).most, 64);
    }

    #[test]
    fn samples_that_disagree_or_are_too_few_leave_the_default() {
        let (steady, wild) = ([10; TURNS], std::array::from_fn(|n| 10 + 3 * n as u64));
        for (put, inject) in [(steady, wild), (wild, steady)] {
            let chosen = decide(&[sample(64, [20; TURNS], steady), sample(128, put, inject)], 256);
            assert_eq!(chosen, Chosen::new(256, "default, since samples of 128 bytes disagree"));
        }
        let few = Sample { len: 64, put: vec![1; TURNS - 1], inject: vec![1; TURNS] };
        assert_eq!(decide(&[few], 256).most, 256);
        assert_eq!(decide(&[], 256), Chosen::new(256, "default, since the reader has not answered in time"));
    }
}
