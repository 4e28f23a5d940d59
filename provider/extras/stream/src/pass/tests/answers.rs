//! All orders of two sides that put to each other: the kernel of a put has the acknowledgement of the put that
//! it answers, too.

use super::*;

/// What a broken twin does otherwise.
#[derive(Clone, Copy, PartialEq)]
enum AnswerTwin {
    None,
    /// The kernel that waits for a signal acknowledges it.
    WaitAcknowledges,
    /// A put acknowledges behind its own signal.
    AcknowledgesLate,
    /// A put copies behind a wait that a failure has ended, as a copy of the driver's does.
    CopiesAlways,
}

const PUTS: usize = 3;

/// Of each side: whether it may put, whether the other's put has come, what is in its memory, and where its
/// stream is.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Answers {
    credits: [bool; 2],
    signals: [bool; 2],
    memory: [usize; 2],
    errors: [bool; 2],
    watchdog: usize,
    /// What the kernel that waits has found in the error word when it began.
    looked: [bool; 2],
    /// The put, and: its kernel begins; waits; is about to look at the error word; to copy; to raise; to
    /// acknowledge late; the kernel behind it waits; the program reads; still does.
    sides: [(usize, u8); 2],
}

impl Answers {
    /// What comes of the next step of a side. A kernel may have looked before the failure.
    fn step(&self, twin: AnswerTwin, side: usize) -> Result<Vec<Answers>, Fault> {
        let ((put, at), other, failed) = (self.sides[side], 1 - side, self.errors[side]);
        if put == PUTS {
            return Ok(Vec::new());
        }
        // The program has found the signal, and no failure.
        if at >= 7 && self.memory[side] != put {
            return Err(Fault::Misread);
        }
        let mut after = Vec::new();
        let mut go = |next: (usize, u8), change: &dyn Fn(&mut Answers)| {
            let mut s = self.clone();
            s.sides[side] = next;
            s.looked[side] = next.1 == 6 && failed;
            change(&mut s);
            after.push(s);
        };
        let begins = ![AnswerTwin::WaitAcknowledges, AnswerTwin::AcknowledgesLate].contains(&twin);
        match at {
            0 => go((put, 1), &|s| s.credits[other] |= put > 0 && !failed && begins),
            1 if failed => go((put, if twin == AnswerTwin::CopiesAlways { 3 } else { 6 }), &|_| ()),
            2 => go((put, if failed { 6 } else { 3 }), &|_| ()),
            3 => go((put, 4), &|s| s.memory[other] = put),
            4 => go((put, 5), &|s| s.signals[other] = true),
            5 => go((put, 6), &|s| s.credits[other] |= put > 0 && twin == AnswerTwin::AcknowledgesLate),
            6 if failed => go((put + 1, 0), &|_| ()),
            7 => go((put, 8), &|_| ()),
            8 => go((put + 1, 0), &|_| ()),
            _ => {}
        }
        match at {
            1 if self.credits[side] => go((put, 2), &|s| s.credits[side] = false),
            4 if failed => go((put, 5), &|_| ()),
            6 if self.signals[side] && !self.looked[side] => go((put, 7), &|s| {
                s.signals[side] = false;
                s.credits[other] |= twin == AnswerTwin::WaitAcknowledges;
            }),
            _ => {}
        }
        Ok(after)
    }
}

/// All orders of both sides and of a watchdog that fails the endpoint of that side at any time.
fn explore_answers(twin: AnswerTwin, fails: Option<usize>) -> Result<usize, Fault> {
    let (errors, memory, sides) = ([false; 2], [PUTS; 2], [(0, 0); 2]);
    let begin = Answers {
        credits: [true; 2],
        signals: [false; 2],
        memory,
        errors,
        watchdog: 0,
        looked: [false; 2],
        sides,
    };
    let steps = |state: &Answers| {
        let both = (0..2).map(|side| state.step(twin, side)).collect::<Result<Vec<_>, _>>();
        both.map(|all| all.into_iter().flatten().collect())
    };
    let has_ended = |state: &Answers| state.sides.iter().all(|(put, _)| *put == PUTS);
    explore_from(begin, fails, steps, |state| (&mut state.errors, &mut state.watchdog), has_ended)
}

#[test]
fn what_a_put_has_brought_stays_until_the_put_that_answers_it_and_every_wait_ends() {
    for fails in [None, Some(0), Some(1)] {
        assert!(explore_answers(AnswerTwin::None, fails).unwrap() > 100);
    }
}

#[test]
fn twins_of_an_answer_fail() {
    assert_eq!(explore_answers(AnswerTwin::WaitAcknowledges, None), Err(Fault::Misread));
    assert_eq!(explore_answers(AnswerTwin::AcknowledgesLate, None), Err(Fault::Stuck));
    assert_eq!(explore_answers(AnswerTwin::CopiesAlways, None), explore_answers(AnswerTwin::None, None));
    let copies = (0..2).map(|side| explore_answers(AnswerTwin::CopiesAlways, Some(side)));
    assert!(copies.into_iter().any(|found| found == Err(Fault::Misread)), "bytes that are being read");
}
