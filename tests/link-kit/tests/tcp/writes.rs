//! Short writes in frames that go together.

use crate::node::{complete, post};
use crate::pair::{open, options, until};
use engine::{Access, Cntrs, OpFlags, Reg};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::Link as _;
use testkit::{from, msg, pattern, read, there, write};

type Node = crate::node::Node<TcpLink>;

const KEY: u64 = 5;
/// Bytes of a short write, and how many are under way at once.
const SHORT: usize = 8;
const MANY: usize = 33;
/// The last of them that requests an answer: one of eight does, once there are as many.
const LAST_ASKING: usize = 25;
/// What one more writes.
const LAST: [u8; SHORT] = [0xa5; SHORT];

fn gathering() -> TcpOptions {
    let mut options = options("of writes");
    options.gathers = true;
    options
}

fn look(memory: Span) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    assert_eq!(hmem::read(&[memory], 0, &mut bytes), bytes.len());
    bytes
}

/// Two that have met, and memory of the second.
fn pair_of(how: fn() -> TcpOptions) -> ([Node; 2], Span) {
    let (a, b) = (open(how()), open(how()));
    let names = [a.addr(), b.addr()];
    let (mut a, mut b) = (Node::new(a, names[1]), Node::new(b, names[0]));
    let span = Span::leak(1);
    b.domain.recv(b.rx, &from(b.peer, &[span], 0)).expect("room");
    let to_b = a.peer;
    post([&mut a, &mut b], |a| a.domain.send(a.ep, &msg(to_b, &[span], 0)));
    complete([&mut a, &mut b], 1, 1);
    let memory = Span::leak(MANY * SHORT);
    let reg = Reg { iov: &[memory], access: Access::REMOTE_WRITE | Access::REMOTE_READ, key: Some(KEY) };
    b.domain.mr_reg(&reg).expect("a key that is free");
    ([a, b], memory)
}

fn post_many(a: &mut Node) -> Vec<u8> {
    post_so_many(a, MANY)
}

fn post_so_many(a: &mut Node, many: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for at in 0..many {
        let (bytes, src) = (pattern(SHORT, at + 1), Span::leak(SHORT));
        hmem::write(&[src], 0, &bytes);
        let to = [there((at * SHORT) as u64, SHORT, KEY)];
        a.domain.rma(a.ep, &write(a.peer, &[src], &to, at)).expect("room");
        // It was copied.
        hmem::write(&[src], 0, &[0xee; SHORT]);
        all.extend(bytes);
    }
    all
}

/// One more to the first place.
fn post_one(a: &mut Node, flags: OpFlags) {
    let src = Span::leak(SHORT);
    hmem::write(&[src], 0, &LAST);
    let to = [there(0, SHORT, KEY)];
    a.domain.rma(a.ep, &engine::Rma { flags, ..write(a.peer, &[src], &to, MANY) }).expect("room");
}

/// The second takes all in that is there.
fn settle(b: &mut Node) {
    (0..300).for_each(|_| assert!(b.next().is_none()));
}

#[test]
fn writes_behind_the_last_one_that_requests_an_answer_go_with_the_next_call_of_progress() {
    let calls: [fn(&mut Node); 2] = [|a| _ = a.domain.progress(), |a| _ = a.domain.arm()];
    for call in calls {
        let ([mut a, mut b], memory) = pair_of(gathering);
        let all = post_many(&mut a);
        let sent = (LAST_ASKING + 1) * SHORT;
        until("those that request an answer, and those before them", || {
            settle(&mut b);
            look(memory)[..sent] == all[..sent]
        });
        assert!(look(memory)[sent..].iter().all(|byte| *byte == 0), "the others are not sent yet");
        call(&mut a);
        until("all of them", || {
            settle(&mut b);
            look(memory) == all
        });
        let (mut done, _) = complete([&mut a, &mut b], MANY, 0);
        done.sort_by_key(|c| c.ctx.0);
        assert!(done.iter().enumerate().all(|(at, c)| c.ctx.0 == at && c.err.is_none()), "{done:?}");
    }
}

#[test]
fn while_a_thread_sleeps_each_write_is_sent_when_it_is_posted() {
    let ([mut a, mut b], memory) = pair_of(gathering);
    until("there is nothing to do", || {
        assert!(a.next().is_none() && b.next().is_none());
        a.domain.arm()
    });
    let all = post_many(&mut a);
    until("all of them", || {
        settle(&mut b);
        look(memory) == all
    });
}

#[test]
fn the_first_write_is_sent_when_it_is_posted_whatever_else_is_under_way() {
    let ([mut a, mut b], memory) = pair_of(gathering);
    post_many(&mut a);
    complete([&mut a, &mut b], MANY, 0);
    for at in 0..4 {
        let to = [there(0, SHORT, KEY)];
        a.domain.rma(a.ep, &read(a.peer, &[Span::leak(SHORT)], &to, at)).expect("room");
    }
    post_one(&mut a, OpFlags::COMPLETION);
    until("it", || {
        settle(&mut b);
        look(memory)[..SHORT] == LAST
    });
}

#[test]
fn an_injected_write_without_a_completion_is_sent_with_all_before_it_when_it_is_posted() {
    let ([mut a, mut b], memory) = pair_of(gathering);
    let counter = a.domain.cntr_open();
    a.domain.ep_bind_cntrs(a.ep, Cntrs { write: Some(counter), ..Cntrs::default() });
    // The next one requests no answer.
    let all = post_so_many(&mut a, LAST_ASKING + 3);
    post_one(&mut a, OpFlags::INJECT);
    until("all of them", || {
        settle(&mut b);
        let now = look(memory);
        now[..SHORT] == LAST && now[SHORT..all.len()] == all[SHORT..]
    });
}

#[test]
fn without_that_option_each_write_is_sent_when_it_is_posted() {
    let ([mut a, mut b], memory) = pair_of(|| options("of writes"));
    let all = post_many(&mut a);
    until("all of them", || {
        settle(&mut b);
        look(memory) == all
    });
}

#[test]
fn a_message_comes_behind_the_writes_that_were_posted_before_it() {
    let ([mut a, mut b], memory) = pair_of(gathering);
    let span = Span::leak(1);
    b.domain.recv(b.rx, &from(b.peer, &[span], 7)).expect("room");
    let all = post_many(&mut a);
    a.domain.send(a.ep, &msg(a.peer, &[span], 99)).expect("room");
    until("the message", || b.next().is_some_and(|c| c.ctx.0 == 7 && c.err.is_none()));
    assert!(look(memory) == all, "a write is missing behind which the message was posted");
}

#[test]
fn an_endpoint_that_closes_sends_what_it_has_kept_back() {
    let ([mut a, mut b], memory) = pair_of(gathering);
    let all = post_many(&mut a);
    drop(a);
    until("all of them", || {
        _ = b.next();
        look(memory) == all
    });
}
