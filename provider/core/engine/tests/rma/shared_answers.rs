//! Writes in frames that share answers: how many there are, what becomes of each write, and that a completion
//! says what is so.

use engine::{Completion, Error, OpFlags, Rma};
use proptest::prelude::*;
use testkit::*;
use wire::Op;

/// Bytes of a write, and places for them.
const LEN: usize = 8;
const PLACES: usize = 64;
/// So many writes at once, and which of them request an answer: the first four, and then one of half as many
/// as are under way, up to eight.
const MANY: usize = 33;
const ASKING: [usize; 8] = [0, 1, 2, 3, 5, 9, 17, 25];
/// A key that is right, and one that no registration has.
const KEY: u64 = 1;
const WRONG: u64 = 2;

fn net() -> (Net, hmem::Span) {
    let setup = Setup { direct: Direct::Frames, cq_size: 1 << 16, ..Setup::default() };
    let mut net = Net::with(2, setup);
    let target = net.memory(1, PLACES * LEN);
    net[1].share(target, KEY);
    net.hold(0, 1);
    net.hold(1, 0);
    (net, target)
}

/// Posts a write of its own bytes to the place of this number, which is its context, too.
fn post(net: &mut Net, at: usize, key: u64) {
    let bytes = net.bytes(0, &pattern(LEN, at + 1));
    net[0].rma(&write(1, &[bytes], &[there((at % PLACES * LEN) as u64, LEN, key)], at)).unwrap();
}

fn post_many(net: &mut Net, many: std::ops::Range<usize>) {
    many.for_each(|at| post(net, at, KEY));
}

/// Which frames are on their way there, and whether each requests an answer.
fn frames(net: &mut Net) -> Vec<(u8, bool)> {
    let mut all = Vec::new();
    net.tamper(0, 1, |frame| all.push((frame[0], frame[1] & 4 != 0)));
    all
}

/// All that is on its way there arrives, and is taken in.
fn arrive(net: &mut Net) {
    while net.in_flight(0, 1) > 0 {
        net.let_pass(0, 1, 1);
        net[1].progress();
    }
    net.hold(0, 1);
}

/// So many answers arrive, and are taken in.
fn answer(net: &mut Net, many: usize) {
    net.let_pass(1, 0, many);
    net[0].progress();
    net.hold(1, 0);
}

fn contexts(of: &[Completion]) -> Vec<usize> {
    of.iter().map(|c| c.ctx.0).collect()
}

#[test]
fn few_writes_request_an_answer_each() {
    let (mut net, _) = net();
    for row in 0..3 {
        post_many(&mut net, 4 * row..4 * row + 4);
        assert_eq!(frames(&mut net), [(Op::Write as u8, true); 4]);
        arrive(&mut net);
        answer(&mut net, usize::MAX);
        assert_eq!(contexts(&net[0].tx()), Vec::from_iter(4 * row..4 * row + 4));
    }
    net.assert_idle();
}

#[test]
fn long_writes_request_an_answer_each() {
    const LONG: usize = 9000;
    let setup = Setup { direct: Direct::Frames, eager: LONG, max_frame: 16 << 10, ..Setup::default() };
    let mut net = Net::with(2, setup);
    let target = net.memory(1, LONG);
    net[1].share(target, KEY);
    net.hold(0, 1);
    let bytes = net.bytes(0, &pattern(LONG, 1));
    (0..MANY).for_each(|at| net[0].rma(&write(1, &[bytes], &[there(0, LONG, KEY)], at)).unwrap());
    assert_eq!(frames(&mut net), [(Op::Write as u8, true); MANY]);
}

#[test]
fn one_of_eight_writes_requests_an_answer_and_the_last_ones_by_a_flush() {
    let (mut net, _) = net();
    post_many(&mut net, 0..MANY);
    let asking: Vec<usize> =
        frames(&mut net).iter().enumerate().filter(|(_, f)| f.1).map(|(at, _)| at).collect();
    assert_eq!(asking, ASKING);
    arrive(&mut net);
    assert_eq!(net.in_flight(1, 0), ASKING.len());
    let mut first = 0;
    for at in ASKING {
        answer(&mut net, 1);
        let all = net[0].tx();
        assert_eq!(contexts(&all), Vec::from_iter(first..at + 1));
        assert!(all.iter().all(|c| c.err.is_none()));
        first = at + 1;
    }
    // Two calls of progress in which nothing was posted.
    net[0].progress();
    net[0].progress();
    assert_eq!(frames(&mut net), [(Op::Flush as u8, true)]);
    arrive(&mut net);
    answer(&mut net, 1);
    assert_eq!(contexts(&net[0].tx()), Vec::from_iter(first..MANY));
    net.assert_idle();
}

#[test]
fn answers_are_requested_before_a_sleep() {
    let (mut net, _) = net();
    net[0].arm();
    assert!(net[0].is_armed());
    post_many(&mut net, 0..MANY);
    assert!(!net[0].is_armed());
    net[0].arm();
    assert_eq!(frames(&mut net).last(), Some(&(Op::Flush as u8, true)));
    arrive(&mut net);
    answer(&mut net, usize::MAX);
    assert_eq!(contexts(&net[0].tx()), Vec::from_iter(0..MANY));
}

#[test]
fn a_write_with_data_requests_an_answer() {
    let (mut net, _) = net();
    post_many(&mut net, 0..MANY);
    let bytes = net.bytes(0, &[1; LEN]);
    for at in 0..3 {
        let to = [there(0, LEN, KEY)];
        net[0].rma(&Rma { data: Some(7), ..write(1, &[bytes], &to, at) }).unwrap();
        assert_eq!(frames(&mut net).last(), Some(&(Op::Write as u8, true)));
    }
}

#[test]
fn an_endpoint_that_closes_answers_what_it_has_taken_in() {
    for taken in [MANY - 3, MANY] {
        let (mut net, _) = net();
        post_many(&mut net, 0..MANY);
        net.let_pass(0, 1, taken);
        net[1].progress();
        net.hold(0, 1);
        let ep = net[1].ep;
        net[1].ep_close(ep).unwrap();
        answer(&mut net, usize::MAX);
        let all = net[0].tx();
        assert_eq!(contexts(&all), Vec::from_iter(0..taken));
        assert!(all.iter().all(|c| c.err.is_none()), "{all:?}");
    }
}

#[test]
fn a_fence_waits_for_writes_that_requested_no_answer() {
    let (mut net, _) = net();
    post_many(&mut net, 0..MANY);
    arrive(&mut net);
    answer(&mut net, usize::MAX);
    let bytes = net.bytes(0, &[1; LEN]);
    let fenced = |net: &mut Net| {
        let flags = OpFlags::COMPLETION | OpFlags::FENCE;
        net[0].rma(&Rma { flags, ..write(1, &[bytes], &[there(0, LEN, KEY)], 9) })
    };
    assert_eq!(fenced(&mut net), Err(Error::Again));
    (0..2).for_each(|_| _ = net[0].progress());
    arrive(&mut net);
    answer(&mut net, usize::MAX);
    assert_eq!(fenced(&mut net), Ok(()));
}

#[test]
fn a_write_that_is_refused_among_others_is_named() {
    for wrong in 0..MANY {
        let (mut net, target) = net();
        (0..MANY).for_each(|at| post(&mut net, at, if at == wrong { WRONG } else { KEY }));
        arrive(&mut net);
        answer(&mut net, usize::MAX);
        net[0].progress();
        arrive(&mut net);
        answer(&mut net, usize::MAX);
        let all = net[0].tx();
        for at in 0..MANY {
            let mine: Vec<_> = all.iter().filter(|c| c.ctx.0 == at).map(|c| c.err).collect();
            let want = (at == wrong).then_some(Error::BadKey);
            assert_eq!(mine, [want], "write {at} of which {wrong} is wrong");
            let there = net[1].look(target, PLACES * LEN)[at * LEN..][..LEN].to_vec();
            assert_eq!(there == pattern(LEN, at + 1), at != wrong);
        }
        net.assert_idle();
    }
}

#[test]
fn writes_that_nothing_has_answered_fail_when_the_peer_ends() {
    let (mut net, _) = net();
    post_many(&mut net, 0..MANY);
    arrive(&mut net);
    // All but the last two answers.
    answer(&mut net, ASKING.len() - 2);
    let last = ASKING[ASKING.len() - 3];
    assert_eq!(contexts(&net[0].tx()), Vec::from_iter(0..last + 1));
    net.tamper(1, 0, |frame| frame.truncate(1));
    net.kill(1);
    net.let_pass(1, 0, usize::MAX);
    net.let_pass(0, 1, usize::MAX);
    net.settle();
    let mut all = net[0].tx();
    all.sort_by_key(|c| c.ctx.0);
    assert_eq!(contexts(&all), Vec::from_iter(last + 1..MANY));
    assert!(all.iter().all(|c| c.err.is_some()), "{all:?}");
    net.assert_idle();
}

/// A fault of the target, or of the way to it, that the model has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twin {
    /// None.
    None,
    /// A write without an answer of its own is lost.
    Loses,
    /// A `Flush` is.
    Unheard,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post(bool),
    There(usize),
    Back(usize),
    Progress,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        16 => prop::bool::weighted(0.1).prop_map(Step::Post),
        4 => (1..4usize).prop_map(Step::There),
        4 => (1..3usize).prop_map(Step::Back),
        2 => Just(Step::Progress),
    ];
    prop::collection::vec(step, 1..120)
}

/// Takes these steps: whether each write completed once, and none before its bytes were there or it was known
/// that they will not be.
fn is_right(steps: &[Step], twin: Twin) -> bool {
    let (mut net, target) = net();
    let (mut posted, mut done) = (Vec::new(), Vec::new());
    let mut look = |net: &mut Net, posted: &[bool]| {
        let memory = net[1].look(target, PLACES * LEN);
        net[0].tx().iter().all(|c| {
            let at = c.ctx.0;
            done.push(at);
            let is_there = memory[at % PLACES * LEN..][..LEN] == pattern(LEN, at + 1);
            c.err == posted[at].then_some(Error::BadKey) && is_there != posted[at]
        })
    };
    let mut right = true;
    for step in steps {
        match *step {
            Step::Post(_) if posted.len() == PLACES => {}
            Step::Post(wrong) => {
                post(&mut net, posted.len(), if wrong { WRONG } else { KEY });
                posted.push(wrong);
                net.tamper(0, 1, |frame| {
                    let unasked =
                        matches!(frame[..], [op, flags, ..] if op == Op::Write as u8 && flags & 4 == 0);
                    if unasked && twin == Twin::Loses {
                        frame.truncate(1);
                    }
                });
            }
            Step::There(many) => {
                net.let_pass(0, 1, many);
                net[1].progress();
                net.hold(0, 1);
            }
            Step::Back(many) => answer(&mut net, many),
            Step::Progress => _ = net[0].progress(),
        }
        right &= look(&mut net, &posted);
    }
    for _ in 0..3 {
        net[0].progress();
        net.tamper(0, 1, |frame| {
            if frame[0] == Op::Flush as u8 && twin == Twin::Unheard {
                frame.truncate(1);
            }
        });
        arrive(&mut net);
        answer(&mut net, usize::MAX);
        right &= look(&mut net, &posted);
    }
    done.sort_unstable();
    right && done.iter().copied().eq(0..posted.len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_completion_says_that_the_bytes_are_there(steps in steps()) {
        prop_assert!(is_right(&steps, Twin::None));
    }
}

/// So that the test above is known to see what it looks for.
#[test]
fn the_model_finds_a_lost_write_and_a_flush_that_is_not_heard() {
    let row = [Step::Post(false); 12];
    assert!(is_right(&row, Twin::None));
    assert!(!is_right(&row, Twin::Loses));
    assert!(!is_right(&row, Twin::Unheard));
}
