//! Memory lent over the backend. The lender's program makes no call between two files that the borrower makes.

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
    // Named by what both know; a path that cannot tell which job it is of is made by hand (ci/rpipe).
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
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let mut blocks = Vec::new();
        for len in LENGTHS {
            let block = memory.alloc(len, 1)?;
            memory.write(block, 0, &pattern(round, len), patience())?;
            blocks.push((block, len));
        }
        for (block, len) in blocks {
            let mut bytes = vec![0; len];
            memory.read(block, 0, &mut bytes, patience())?;
            assert!(bytes == pattern(round, len), "round {round}: {len} bytes");
            memory.free(block)?;
        }
    }
    let each = begun.elapsed().as_secs_f64() * 1e6 / (2 * ROUNDS * LENGTHS.len()) as f64;
    println!("{each:.1} us for each of {} operations", 2 * ROUNDS * LENGTHS.len());
    fs::write(&done, "").expect("a file for the lender");
    drop(memory);
    context.close()
}
