//! Pipes over the backend, by the flag modes that its path allows.

use std::sync::Arc;

use strait_rpipe::{Context, Error, Mode, Patience, Pipe, PipeOptions, Policy, Side, Sync};

use crate::{LIMIT, join, pattern};

const LENGTHS: [usize; 10] = [4, 0, 8, 1, 40, 41, 64, 1000, 4096, 50_000];
const ROUNDS: usize = 6;
const HEAP: usize = 200_000;

fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

/// From each rank to the next, in every way.
pub fn all() -> Result<(), Error> {
    let context = join()?;
    let (rank, size) = (context.rank(), context.size());
    for sync in [Sync::Deferred, Sync::Immediate] {
        for pull in [false, true] {
            for policy in Policy::ALL {
                // The even ranks write first.
                for turn in 0..2 {
                    match rank % 2 == turn {
                        true => write(&context, (rank + 1) % size, pull, sync, policy)?,
                        false => read(&context, (rank + size - 1) % size)?,
                    }
                }
            }
        }
    }
    context.close()
}

fn write(context: &Arc<Context>, to: u32, pull: bool, sync: Sync, policy: Policy) -> Result<(), Error> {
    let options =
        PipeOptions { pull, sync: Some(sync), policy: Some(policy), ..PipeOptions::new(Side::Writer) };
    let mut pipe = Pipe::open(context, to, &options)?;
    for n in 0..ROUNDS * LENGTHS.len() {
        let bytes = pattern(n, LENGTHS[n % LENGTHS.len()]);
        let block = pipe.alloc(bytes.len(), 1, patience())?;
        let place = pipe.address(block)?;
        // SAFETY: a block of so many bytes, which is this end's.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        pipe.write(block, None)?;
    }
    // All of it comes back: a block as long as the heap.
    let whole = pipe.alloc(HEAP, 1, patience())?;
    pipe.free(whole)?;
    let (stats, had, is) = pipe.writer_stats().expect("this end writes");
    assert_eq!((stats.messages as usize, had, is), (ROUNDS * LENGTHS.len(), policy, sync));
    if context.rank() == 0 && policy == Policy::ALL[0] {
        println!("{}: {sync}, pull {pull}: {:?}", context.backend(), stats.mode.unwrap_or(Mode::Delivered));
    }
    pipe.close()
}

fn read(context: &Arc<Context>, from: u32) -> Result<(), Error> {
    let options = PipeOptions { heap: Some(HEAP), ..PipeOptions::new(Side::Reader) };
    let mut pipe = Pipe::open(context, from, &options)?;
    for n in 0..ROUNDS * LENGTHS.len() {
        let (block, len) = pipe.read(usize::MAX, patience())?;
        let mut bytes = vec![0; len];
        let place = pipe.address(block)?;
        // SAFETY: a block of so many bytes, which is this end's.
        unsafe { place.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        assert!(bytes == pattern(n, LENGTHS[n % LENGTHS.len()]), "message {n} of rank {from}");
        pipe.free(block)?;
    }
    match pipe.read(1, patience()) {
        Err(Error::Gone(_)) => pipe.close(),
        other => panic!("the end of a pipe is {other:?}"),
    }
}
