//! All orders of what the blocks of a put, its reader and a watchdog do.

use super::*;

/// What a broken twin of a put by several blocks does otherwise.
#[derive(Clone, Copy, PartialEq)]
enum PutTwin {
    None,
    /// Each block raises the signal behind its part.
    RaisesEach,
    /// Each block clears the word when it has come.
    ClearsEach,
    /// The last block clears the word behind the signal.
    ClearsLate,
    /// A block that leaves without its part does not say so.
    LeavesUnsaid,
}

/// Puts of one part for each block, and a reader that acknowledges each.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Puts {
    credit: bool,
    signal: bool,
    memory: [usize; BLOCKS],
    /// The error words of the side that puts and of the other one, and what the watchdog has done.
    errors: [bool; 2],
    watchdog: usize,
    left: bool,
    counted: usize,
    /// The put, and where the block is: polls; is about to copy; to count; to say that it has left; is the last
    /// one, about to look, to raise, to clear late.
    blocks: [(usize, u8); BLOCKS],
    /// Polls; reads; acknowledges.
    reader: (usize, u8),
}

impl Puts {
    fn block(&self, twin: PutTwin, n: usize) -> Vec<Puts> {
        let (put, at) = self.blocks[n];
        if put == MESSAGES || self.blocks.iter().any(|(other, _)| *other < put) {
            return Vec::new();
        }
        let mut after = Vec::new();
        let mut go = |at: u8, change: &dyn Fn(&mut Puts)| {
            let mut s = self.clone();
            s.blocks[n] = if at == 9 { (put + 1, 0) } else { (put, at) };
            change(&mut s);
            after.push(s);
        };
        match at {
            0 | 1 if self.errors[0] => go(3, &|_| ()),
            _ => {}
        }
        match at {
            0 if self.credit => go(1, &|s| s.credit = twin != PutTwin::ClearsEach),
            1 => go(2, &|s| {
                s.memory[n] = put;
                s.signal |= twin == PutTwin::RaisesEach;
            }),
            2 if self.counted + 1 < BLOCKS => go(9, &|s| s.counted += 1),
            2 => go(4, &|s| s.counted = 0),
            3 => go(2, &|s| s.left = twin != PutTwin::LeavesUnsaid),
            // What is launched later finds the error word when it begins.
            4 if self.left => go(9, &|s| (s.left, s.blocks) = (false, [(MESSAGES, 0); BLOCKS])),
            4 => go(5, &|s| s.credit &= twin == PutTwin::ClearsLate),
            5 => go(6, &|s| s.signal |= twin != PutTwin::RaisesEach),
            6 => go(9, &|s| s.credit &= twin != PutTwin::ClearsLate),
            _ => {}
        }
        after
    }

    fn read(&self) -> Result<Vec<Puts>, Fault> {
        let (put, at) = self.reader;
        let mut after = Vec::new();
        if put == MESSAGES {
            return Ok(after);
        }
        if at > 0 && self.memory != [put; BLOCKS] {
            return Err(Fault::Misread);
        }
        let with = |signal, credit, reader| Puts { signal, credit, reader, ..self.clone() };
        if self.errors[1] {
            after.push(with(self.signal, self.credit, (MESSAGES, 0)));
        }
        match at {
            0 if self.signal => after.push(with(false, self.credit, (put, 1))),
            1 => after.push(with(self.signal, self.credit, (put, 2))),
            2 => after.push(with(self.signal, true, (put + 1, 0))),
            _ => {}
        }
        Ok(after)
    }
}

/// All orders of the blocks, the reader and a watchdog that fails the endpoint of that side at any time.
fn explore_puts(twin: PutTwin, fails: Option<usize>) -> Result<usize, Fault> {
    let (errors, blocks, memory) = ([false; 2], [(0, 0); BLOCKS], [9; BLOCKS]);
    let (credit, signal, left, counted) = (true, false, false, 0);
    let begin = Puts { credit, signal, memory, errors, watchdog: 0, left, counted, blocks, reader: (0, 0) };
    let steps = |state: &Puts| {
        let mut after = state.read()?;
        after.extend((0..BLOCKS).flat_map(|n| state.block(twin, n)));
        Ok(after)
    };
    let has_ended =
        |state: &Puts| state.reader.0 == MESSAGES && state.blocks.iter().all(|(put, _)| *put == MESSAGES);
    explore_from(begin, fails, steps, |state| (&mut state.errors, &mut state.watchdog), has_ended)
}

#[test]
fn a_signal_is_raised_behind_all_parts_of_its_put_and_every_wait_ends() {
    for fails in [None, Some(0), Some(1)] {
        assert!(explore_puts(PutTwin::None, fails).unwrap() > 30);
    }
}

#[test]
fn twins_of_a_put_fail() {
    assert_eq!(explore_puts(PutTwin::RaisesEach, None), Err(Fault::Misread));
    assert_eq!(explore_puts(PutTwin::ClearsEach, None), Err(Fault::Stuck));
    assert!(explore_puts(PutTwin::ClearsLate, None).is_err(), "an acknowledgement is lost");
    let unsaid = (0..2).map(|side| explore_puts(PutTwin::LeavesUnsaid, Some(side)));
    assert!(unsaid.into_iter().any(|found| found == Err(Fault::Misread)), "a signal without a part");
}
