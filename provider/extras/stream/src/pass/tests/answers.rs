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
    /// The kernel that waits for a signal does not look at the error word when it begins.
    WaitLooksLate,
    /// A put looks at the error word in a long wait alone.
    PutLooksLate,
}

const PUTS: usize = 3;
/// Whether the puts of each side have bytes: one without has a signal alone.
const HAVE_BYTES: [[bool; 2]; 3] = [[true, true], [true, false], [false, false]];

/// Where the stream of a side is: of the kernel of a put, of the kernel that waits behind it, of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Begins,
    Acknowledges,
    Polls,
    /// Behind its wait, before it copies.
    Meets,
    Copies,
    Raises,
    AcknowledgesLate,
    WaitBegins,
    WaitPolls,
    Reads,
    StillReads,
}

/// Of each side: whether it may put, which put of the other side has raised the signal, what is in its memory,
/// and where its stream is.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Answers {
    have_bytes: [bool; 2],
    credits: [bool; 2],
    signals: [Option<usize>; 2],
    memory: [usize; 2],
    errors: [bool; 2],
    watchdog: usize,
    /// Whether the kernel has found a failure in the error word when it loaded it last.
    looked: [bool; 2],
    sides: [(usize, Step); 2],
}

impl Answers {
    /// What comes of the next step of a side. A kernel may have looked before the failure.
    fn step(&self, twin: AnswerTwin, side: usize) -> Result<Vec<Answers>, Fault> {
        let ((put, at), other, failed) = (self.sides[side], 1 - side, self.errors[side]);
        if put == PUTS {
            return Ok(Vec::new());
        }
        // The kernel that waits has taken the signal: the program's takes the memory for that of this put.
        let reads = matches!(at, Step::Reads | Step::StillReads);
        if reads && self.have_bytes[other] && self.memory[side] != put {
            return Err(Fault::Misread);
        }
        let (looked, has_bytes) = (self.looked[side], self.have_bytes[side]);
        let late = [AnswerTwin::WaitAcknowledges, AnswerTwin::AcknowledgesLate].contains(&twin);
        let looks = twin != AnswerTwin::PutLooksLate;
        let go = |next: (usize, Step), change: &dyn Fn(&mut Answers)| {
            let mut s = self.clone();
            s.sides[side] = next;
            change(&mut s);
            s
        };
        let long = |at: Step| go((put, at), &|s| s.looked[side] = true);
        Ok(match at {
            Step::Begins => vec![go((put, Step::Acknowledges), &|s| s.looked[side] = failed && looks)],
            Step::Acknowledges => {
                vec![go((put, Step::Polls), &|s| s.credits[other] |= put > 0 && !looked && !late)]
            }
            Step::Polls if looked => {
                let copies = twin == AnswerTwin::CopiesAlways;
                vec![go((put, if copies { Step::Copies } else { Step::WaitBegins }), &|_| ())]
            }
            Step::Polls if self.credits[side] => {
                vec![go((put, Step::Meets), &|s| s.credits[side] = false)]
            }
            Step::Polls if failed => vec![long(Step::Polls)],
            // A kernel that copies nothing does not look again.
            Step::Meets => {
                vec![go((put, Step::Copies), &|s| s.looked[side] = failed && looks && has_bytes)]
            }
            Step::Copies => vec![go((put, Step::Raises), &|s| {
                if has_bytes {
                    s.memory[other] = put;
                }
            })],
            Step::Raises => vec![go((put, Step::AcknowledgesLate), &|s| {
                if !looked {
                    s.signals[other] = Some(put);
                }
            })],
            Step::AcknowledgesLate => vec![go((put, Step::WaitBegins), &|s| {
                s.credits[other] |= put > 0 && twin == AnswerTwin::AcknowledgesLate;
            })],
            Step::WaitBegins => vec![go((put, Step::WaitPolls), &|s| {
                s.looked[side] = failed && twin != AnswerTwin::WaitLooksLate;
            })],
            Step::WaitPolls if looked => vec![go((put + 1, Step::Begins), &|_| ())],
            Step::WaitPolls => match self.signals[side] {
                Some(of) if of != put => return Err(Fault::Misread),
                Some(_) => vec![go((put, Step::Reads), &|s| {
                    s.signals[side] = None;
                    s.credits[other] |= twin == AnswerTwin::WaitAcknowledges;
                })],
                None if failed => vec![long(Step::WaitPolls)],
                None => Vec::new(),
            },
            Step::Reads => vec![go((put, Step::StillReads), &|_| ())],
            Step::StillReads => vec![go((put + 1, Step::Begins), &|_| ())],
            Step::Polls => Vec::new(),
        })
    }
}

/// All orders of both sides and of a watchdog that fails the endpoint of that side at any time.
fn explore_answers(twin: AnswerTwin, fails: Option<usize>) -> Result<usize, Fault> {
    let each: Result<Vec<usize>, Fault> =
        HAVE_BYTES.into_iter().map(|have_bytes| explore_shape(twin, fails, have_bytes)).collect();
    each.map(|seen| seen.into_iter().sum())
}

fn explore_shape(twin: AnswerTwin, fails: Option<usize>, have_bytes: [bool; 2]) -> Result<usize, Fault> {
    let begin = Answers {
        have_bytes,
        credits: [true; 2],
        signals: [None; 2],
        memory: [PUTS; 2],
        errors: [false; 2],
        watchdog: 0,
        looked: [false; 2],
        sides: [(0, Step::Begins); 2],
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
    for have_bytes in HAVE_BYTES {
        for fails in [None, Some(0), Some(1)] {
            assert!(explore_shape(AnswerTwin::None, fails, have_bytes).unwrap() > 100);
        }
    }
}

#[test]
fn twins_of_an_answer_fail() {
    assert_eq!(explore_answers(AnswerTwin::WaitAcknowledges, None), Err(Fault::Misread));
    assert_eq!(explore_answers(AnswerTwin::AcknowledgesLate, None), Err(Fault::Stuck));
    for side in 0..2 {
        let fails = |twin, have_bytes| explore_shape(twin, Some(side), have_bytes);
        let [both, _, none] = HAVE_BYTES;
        assert_eq!(fails(AnswerTwin::CopiesAlways, both), Err(Fault::Misread), "bytes that are being read");
        for have_bytes in [both, none] {
            assert_eq!(
                fails(AnswerTwin::WaitLooksLate, have_bytes),
                Err(Fault::Misread),
                "an earlier signal"
            );
            assert_eq!(fails(AnswerTwin::PutLooksLate, have_bytes), Err(Fault::Misread), "an earlier credit");
        }
    }
}
