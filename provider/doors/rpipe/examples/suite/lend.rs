//! Memory lent over the backend. The lender's program makes no call between two files that the borrower
//! makes.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use strait_rpipe::{Borrowed, Error, Lent, Patience, Policy};

use crate::{LIMIT, join, pattern};

const LEN: usize = 4 << 20;
const ROUNDS: usize = 20;
const LENGTHS: [usize; 6] = [1, 8, 100, 4096, 70_001, 1 << 20];

/// Rank 1 lends to rank 0.
pub fn all() -> Result<(), Error> {
    let context = join()?;
    // Named by what both know; a path that does not name its job is made by hand (ci/suite/rpipe).
    let done = PathBuf::from(env::var_os("SUITE_LEND").expect("SUITE_LEND: a file that is not there yet"));
    if context.rank() == 1 {
        let lent = Lent::open(&context, 0, LEN, Patience::for_a(LIMIT))?;
        let until = Instant::now() + LIMIT;
        while !done.exists() {
            assert!(Instant::now() < until, "rank 0 does not come to its end");
            thread::sleep(Duration::from_millis(5));
        }
        lent.wait(Patience::for_a(LIMIT))?;
        drop(lent);
        return context.close();
    }
    let patience = || Patience::for_a(LIMIT);
    let mut memory = Borrowed::open(&context, 1, Some(Policy::BestFit), patience())?;
    let stats = memory.stats();
    println!("{}: {}; thread {}, mapped {}", stats.path, stats.path_why, stats.thread, stats.mapped);
    let mut times = vec![[const { Vec::new() }; 2]; LENGTHS.len()];
    for round in 0..ROUNDS {
        let mut blocks = Vec::new();
        for (len, times) in LENGTHS.into_iter().zip(&mut times) {
            let (block, bytes) = (memory.alloc(len, 1)?, pattern(round, len));
            let begun = Instant::now();
            memory.write(block, 0, &bytes, patience())?;
            times[0].push(begun.elapsed());
            blocks.push((block, len));
        }
        for ((block, len), times) in blocks.into_iter().zip(&mut times) {
            let mut bytes = vec![0; len];
            let begun = Instant::now();
            memory.read(block, 0, &mut bytes, patience())?;
            times[1].push(begun.elapsed());
            assert!(bytes == pattern(round, len), "round {round}: {len} bytes");
            memory.free(block)?;
        }
    }
    for (len, mut times) in LENGTHS.into_iter().zip(times) {
        times.iter_mut().for_each(|times| times.sort_unstable());
        let [write, read] = times.map(|times| times[times.len() / 2].as_secs_f64() * 1e6);
        println!("{len:7} bytes: write {write:9.1} us, read {read:9.1} us (medians of {ROUNDS})");
    }
    fs::write(&done, "").expect("a file for the lender");
    drop(memory);
    context.close()
}
