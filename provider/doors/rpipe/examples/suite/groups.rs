//! Groups and many writers over the backend.

use std::sync::Arc;

use strait_rpipe::{Context, Error, Group, Many, Neighbor, Patience, Pipe, PipeOptions, Side};

use crate::{LIMIT, join, pattern};

const LENGTHS: [usize; 4] = [8, 0, 1000, 200_000];
const MESSAGES: usize = 40;

/// All ranks broadcast, exchange in a ring, and write to rank 0.
pub fn all() -> Result<(), Error> {
    let context = join()?;
    let (rank, size) = (context.rank(), context.size());
    let ranks: Vec<u32> = (0..size).collect();
    let mut group = Group::open(&context, &ranks)?;
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        for root in 0..size {
            let mut bytes = if rank == root { pattern(n, len) } else { vec![0; len] };
            group.bcast(root, &mut bytes)?;
            assert!(bytes == pattern(n, len), "{len} bytes from {root} at {rank}");
        }
        let (mine, mut from_left, mut from_right) = (pattern(rank as usize, len), vec![0; len], vec![0; len]);
        group.neighbor_exchange(&mut [
            Neighbor { rank: left, send: &mine, receive: &mut from_left, received: 0 },
            Neighbor { rank: right, send: &mine, receive: &mut from_right, received: 0 },
        ])?;
        assert!(from_left == pattern(left as usize, len) && from_right == pattern(right as usize, len));
    }
    if rank == 0 {
        read_all(&context, &ranks[1..])?;
    } else {
        write(&context)?;
    }
    // None leaves before all are here. Writers' ends are closed, and what they wrote may not be freed yet.
    (0..size).try_for_each(|root| group.bcast(root, &mut [0; 8]))?;
    group.close()?;
    context.close()
}

fn write(context: &Arc<Context>) -> Result<(), Error> {
    let mut pipe = Pipe::open(context, 0, &PipeOptions::new(Side::Writer))?;
    for n in 0..MESSAGES {
        let block = pipe.alloc(8, 1, Patience::for_a(LIMIT))?;
        // SAFETY: a block of so many bytes, which is this end's.
        unsafe { pipe.address(block)?.cast::<u64>().write_unaligned(n as u64) };
        pipe.write(block, None)?;
    }
    pipe.close()
}

fn read_all(context: &Arc<Context>, writers: &[u32]) -> Result<(), Error> {
    let mut many = Many::open(context, writers, &PipeOptions::new(Side::Reader))?;
    let mut had = vec![0; writers.len()];
    while had.iter().any(|had| *had < MESSAGES as u64) {
        let message = match many.read(8, Patience::for_a(LIMIT)) {
            // One may have ended before the others have written all.
            Err(Error::Gone(why)) if why.starts_with("rank ") => continue,
            read => read?,
        };
        let at = many.pipe(message.pipe).expect("its pipe").address(message.address)?;
        // SAFETY: a block of so many bytes, which is this end's.
        assert_eq!(unsafe { at.cast::<u64>().read_unaligned() }, had[message.pipe]);
        had[message.pipe] += 1;
        many.free(&message)?;
    }
    many.close()
}
