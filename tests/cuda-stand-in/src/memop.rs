//! Words that streams write and wait for (cuStreamWriteValue64, cuStreamWaitValue64, and lists of them).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::{INVALID_VALUE, Ptr, SUCCESS, enter_in_context, memory, stream};

/// `CUstreamWaitValue_flags`: greater than or equal (cyclic), equal, and, nor; and that writes of other devices
/// before it are flushed.
const GEQ: u32 = 0;
const EQ: u32 = 1;
const AND: u32 = 2;
const NOR: u32 = 3;
const FLUSH: u32 = 1 << 30;

/// `CUstreamBatchMemOpType`, of 64 bits.
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;

/// Operations that one list may have.
const MOST: u32 = 256;

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    at: usize,
    value: u64,
    /// `None`: it writes.
    wait: Option<u32>,
}

impl Word {
    fn new(at: u64, value: u64, wait: Option<u32>) -> Result<Word, i32> {
        let known = match wait {
            None => true,
            Some(flags) => matches!(flags & !FLUSH, GEQ | EQ | AND | NOR),
        };
        let at = at as usize;
        let inside = memory::find(at).is_some() && memory::alias(at, 8).is_some();
        if known && at % 8 == 0 && inside { Ok(Word { at, value, wait }) } else { Err(INVALID_VALUE) }
    }

    /// Does it: `None`: what it waits for is not there yet. `Some(false)`: the memory is gone.
    pub(crate) fn run(self) -> Option<bool> {
        // The memory stays mapped while this has hold of it.
        let Some((at, _keep)) = memory::find(self.at).and_then(|_| memory::alias(self.at, 8)) else {
            return Some(false);
        };
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        let Some(flags) = self.wait else {
            word.store(self.value, Release);
            return Some(true);
        };
        let now = word.load(Acquire);
        let passes = match flags & !FLUSH {
            GEQ => now.wrapping_sub(self.value) as i64 >= 0,
            EQ => now == self.value,
            AND => now & self.value != 0,
            _ => !(now | self.value) != 0,
        };
        passes.then_some(true)
    }
}

fn queue(stream: Ptr, word: Result<Word, i32>) -> i32 {
    word.map_or_else(|code| code, |word| stream::queue_word(stream, word))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue64_v2(stream: Ptr, at: u64, value: u64, flags: u32) -> i32 {
    enter_in_context!("cuStreamWriteValue64_v2");
    if flags != 0 {
        return INVALID_VALUE;
    }
    queue(stream, Word::new(at, value, None))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitValue64_v2(stream: Ptr, at: u64, value: u64, flags: u32) -> i32 {
    enter_in_context!("cuStreamWaitValue64_v2");
    queue(stream, Word::new(at, value, Some(flags)))
}

/// Of all operations those of 64 bits are known, fewer than 256 in one list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBatchMemOp_v2(
    stream: Ptr,
    count: u32,
    ops: *const [u64; 6],
    _flags: u32,
) -> i32 {
    enter_in_context!("cuStreamBatchMemOp_v2");
    if count >= MOST {
        return INVALID_VALUE;
    }
    let mut words = Vec::new();
    for i in 0..count as usize {
        let [what, at, value, flags, ..] = unsafe { *ops.add(i) };
        let word = match (what as u32, flags as u32) {
            (WRITE_64, 0) => Word::new(at, value, None),
            (WAIT_64, flags) => Word::new(at, value, Some(flags)),
            _ => Err(INVALID_VALUE),
        };
        match word {
            Ok(word) => words.push(word),
            Err(code) => return code,
        }
    }
    words
        .into_iter()
        .map(|word| stream::queue_word(stream, word))
        .find(|code| *code != SUCCESS)
        .unwrap_or(SUCCESS)
}
