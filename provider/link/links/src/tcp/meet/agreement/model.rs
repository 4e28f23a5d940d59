//! All that can happen between two endpoints, one step at a time in any order, as far as it goes: their calls
//! cross, messages are late, a connection is reset, a process ends and starts anew under its name, a host
//! loses power, peers are forgotten, and another process of the job calls by a name that is not its own.
//!
//! In each state: no side ends a connection that a live peer uses, unless the network or the peer has ended
//! it; where nothing is under way any more, both sides have the same connection or none; no frame comes of a
//! connection that its receiver does not use. And from each state both sides get to a connection, if no more
//! goes wrong.

use std::time::Instant;

use wire::session::Verdict;

use super::twins::{Broken, Rules, hello};
use super::{Answer, Conn};

mod steps;

/// Connections at a time.
const CONNS: usize = 3;
/// The instance that another process says, where it does not say the peer's.
const STRANGE: u8 = 99;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    /// And the answer to it.
    Hello,
    Proof,
    Verdict(Option<Declined>),
    Confirmation,
    Frame,
    End,
}

/// Why a caller was declined: whether it waits for a call, or calls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Declined {
    Crossing,
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Guest,
    Promised,
    Over,
}

/// Messages on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Queue([Option<Message>; 5]);

impl Queue {
    fn of(messages: &[Message]) -> Queue {
        let mut queue = Queue::default();
        messages.iter().for_each(|message| queue.push(*message));
        queue
    }

    fn push(&mut self, message: Message) {
        *self.0.iter_mut().find(|place| place.is_none()).expect("few messages") = Some(message);
    }

    fn pop(&mut self) -> Message {
        self.0.rotate_left(1);
        let last = self.0.len() - 1;
        self.0[last].take().expect("a message")
    }

    fn contains(&self, message: Message) -> bool {
        self.0.contains(&Some(message))
    }

    fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }
}

/// A connection: its caller is side 0, its answerer side 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Link {
    /// The endpoint that is called, by the name of the other one.
    to: usize,
    /// By a process that has not that name.
    forged: bool,
    /// What the caller's hello says of it, and the epochs of both.
    instance: u8,
    epochs: [u8; 2],
    /// What is on its way to each side, and whether that one has its end open, and uses it.
    queues: [Queue; 2],
    open: [bool; 2],
    uses: [bool; 2],
    stage: Stage,
    /// The network has reset it, or a process has ended.
    faulty: bool,
    /// One end has vanished without a word.
    silent: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct End {
    rules: Rules,
    lives: bool,
    instance: u8,
    call: Option<usize>,
    waits: bool,
    channel: Option<usize>,
    next: Option<usize>,
}

/// How often each may still go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) resets: u8,
    pub(super) ends: u8,
    pub(super) power: u8,
    pub(super) late: u8,
    pub(super) forgets: u8,
    pub(super) forged: u8,
    pub(super) cuts: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    ends: [End; 2],
    links: [Option<Link>; CONNS],
    left: Faults,
}

/// What must not be.
pub(super) type Wrong = &'static str;
/// A state that follows, and whether it does though nothing goes wrong.
pub(super) type Steps = Vec<(World, bool)>;

impl World {
    pub(super) fn new(broken: Broken, left: Faults, start: Instant) -> World {
        let end = |own| End {
            rules: Rules::new(broken, own, start),
            lives: true,
            instance: 1,
            call: None,
            waits: false,
            channel: None,
            next: None,
        };
        World { ends: [end(0), end(1)], links: [None; CONNS], left }
    }

    fn link(&mut self, at: usize) -> &mut Link {
        self.links[at].as_mut().expect("a connection")
    }

    fn say(&mut self, at: usize, from: usize, what: Message) {
        let link = self.link(at);
        if link.open[1 - from] {
            link.queues[1 - from].push(what);
        }
    }

    /// One side closes its end. `told`: since the other one has, as far as it knows.
    fn close(&mut self, at: usize, side: usize, told: bool) -> Result<(), Wrong> {
        let link = self.link(at);
        if !link.open[side] {
            return Ok(());
        }
        let of_live = link.open[1 - side] && !(link.forged && side == 1);
        if of_live && link.uses[1 - side] && !link.faulty && !told {
            return Err("a connection is ended that its live peer uses");
        }
        (link.open[side], link.uses[side]) = (false, false);
        link.queues[side] = Queue::default();
        self.say(at, side, Message::End);
        self.sweep(at);
        Ok(())
    }

    fn sweep(&mut self, at: usize) {
        if self.links[at].as_ref().is_some_and(|l| l.open == [false; 2]) {
            self.links[at] = None;
        }
    }

    /// The endpoint and side at which a message is.
    fn owner(&self, at: usize, side: usize) -> usize {
        let link = self.links[at].as_ref().expect("a connection");
        if side == 1 { link.to } else { 1 - link.to }
    }

    fn drop_call(&mut self, own: usize) -> Result<(), Wrong> {
        if let Some(at) = self.ends[own].call.take() {
            self.ends[own].rules.call_over(1 - own);
            self.close(at, 0, false)?;
        }
        Ok(())
    }

    fn adopt(&mut self, own: usize, at: usize, side: usize) -> Result<(), Wrong> {
        self.link(at).uses[side] = true;
        self.ends[own].waits = false;
        if let Some(next) = self.ends[own].next {
            let next_side = usize::from(self.link(next).to == own);
            self.close(next, next_side, false)?;
            return Err("a connection is replaced whose frames were not looked at");
        }
        if self.ends[own].channel.is_some() {
            self.ends[own].next = Some(at);
        } else {
            self.ends[own].channel = Some(at);
        }
        self.say(at, side, Message::Frame);
        Ok(())
    }

    /// The end of the connection that an endpoint has is told.
    fn end(&mut self, own: usize, told: bool) -> Result<(), Wrong> {
        let Some(at) = self.ends[own].channel.take() else { return Ok(()) };
        let side = usize::from(self.link(at).to == own);
        self.ends[own].rules.ended(1 - own, Conn(at as u64), true);
        self.ends[own].channel = self.ends[own].next.take();
        self.close(at, side, told)
    }

    /// An answerer hears a proof. `seen`: the end of the connection that it has has arrived, if it is under
    /// way.
    fn hear_proof(&mut self, own: usize, at: usize, seen: bool) -> Result<(), Wrong> {
        let link = self.links[at].expect("a connection");
        let caller = hello(1 - own, own, link.instance);
        let (next, rules) = (self.ends[own].next, &mut self.ends[own].rules);
        let has_ended = seen && (next.is_none() || rules.replaces_next());
        let answer = rules.called(&caller, link.epochs[0], Conn(at as u64), has_ended);
        let declined = match answer {
            Answer::Promised => None,
            Answer::Declined(Verdict::Crossing) => Some(Declined::Crossing),
            Answer::Declined(_) | Answer::Probe => Some(Declined::Busy),
        };
        self.say(at, 1, Message::Verdict(declined));
        if declined.is_some() {
            self.link(at).stage = Stage::Over;
            return self.close(at, 1, true);
        }
        self.link(at).stage = Stage::Promised;
        if self.ends[own].call.is_some() && !self.ends[own].rules.keeps_calling() {
            self.drop_call(own)?;
            self.ends[own].waits = true;
        }
        if !self.ends[own].rules.confirms() {
            self.hear_confirmation(own, at)?;
        }
        Ok(())
    }

    fn hear_confirmation(&mut self, own: usize, at: usize) -> Result<(), Wrong> {
        let link = self.links[at].expect("a connection");
        self.link(at).stage = Stage::Over;
        let caller = hello(1 - own, own, link.instance);
        if !self.ends[own].rules.confirmed(&caller, link.epochs[0], Conn(at as u64)) {
            return self.close(at, 1, false);
        }
        self.drop_call(own)?;
        self.adopt(own, at, 1)
    }

    fn hear_accepted(&mut self, own: usize, at: usize) -> Result<(), Wrong> {
        let peer_instance = self.ends[1 - own].instance;
        let (epoch, answerer) = (self.link(at).epochs[1], hello(1 - own, own, peer_instance));
        self.ends[own].call = None;
        self.say(at, 0, Message::Confirmation);
        let (counts, void) = self.ends[own].rules.accepted(&answerer, epoch, Conn(at as u64));
        if let Some(Conn(void)) = void {
            self.link(void as usize).stage = Stage::Over;
            self.close(void as usize, 1, false)?;
        }
        if counts { self.adopt(own, at, 0) } else { self.close(at, 0, false) }
    }

    /// A message is heard.
    fn hear(&mut self, at: usize, side: usize, seen: bool) -> Result<(), Wrong> {
        let message = self.link(at).queues[side].pop();
        let (own, stage) = (self.owner(at, side), self.link(at).stage);
        let has = self.ends[own].channel == Some(at);
        match message {
            Message::Hello => {
                self.link(at).epochs[1] = self.ends[own].rules.epoch();
                Ok(())
            }
            Message::Proof => self.hear_proof(own, at, seen),
            Message::Verdict(None) => self.hear_accepted(own, at),
            Message::Verdict(Some(_)) => {
                self.drop_call(own)?;
                self.ends[own].waits = true;
                Ok(())
            }
            Message::Confirmation if stage == Stage::Promised => self.hear_confirmation(own, at),
            Message::Confirmation => Ok(()),
            Message::Frame if has => Ok(()),
            Message::Frame => Err("a frame comes of a connection that its receiver does not use"),
            Message::End if has => self.end(own, true),
            Message::End if self.ends[own].call == Some(at) => self.drop_call(own),
            Message::End => {
                if stage == Stage::Promised {
                    self.link(at).stage = Stage::Over;
                    self.ends[own].rules.ended(1 - own, Conn(at as u64), false);
                    self.ends[own].waits = false;
                }
                self.close(at, side, true)
            }
        }
    }

    /// The process of an endpoint ends, or (`silent`) its host.
    fn die(&mut self, own: usize, silent: bool) {
        for at in 0..CONNS {
            for side in 0..2 {
                let Some(link) = &mut self.links[at] else { continue };
                let owner = if side == 1 { link.to } else { 1 - link.to };
                if owner != own || link.forged && side == 0 || !link.open[side] {
                    continue;
                }
                (link.faulty, link.silent) = (true, silent || link.silent);
                (link.open[side], link.uses[side]) = (false, false);
                link.queues[side] = Queue::default();
                if !silent {
                    self.say(at, side, Message::End);
                }
                self.sweep(at);
            }
        }
        let old = &self.ends[own];
        let rules = old.rules.anew(own);
        let instance = old.instance + 1;
        self.ends[own] =
            End { rules, lives: false, instance, call: None, waits: false, channel: None, next: None };
    }

    fn free(&self) -> Option<usize> {
        self.links.iter().position(Option::is_none)
    }

    fn place(&mut self, to: usize, forged: bool, instance: u8, epoch: u8) -> Option<usize> {
        let at = self.free()?;
        self.links[at] = Some(Link {
            to,
            forged,
            instance,
            epochs: [epoch, 0],
            queues: [Queue::default(), Queue::of(&[Message::Hello, Message::Proof])],
            open: [true; 2],
            uses: [false; 2],
            stage: Stage::Guest,
            faulty: false,
            silent: false,
        });
        Some(at)
    }

    pub(super) fn is_agreed(&self) -> bool {
        let both = [self.ends[0].channel, self.ends[1].channel];
        let used = |at: usize| self.links[at].as_ref().is_some_and(|l| l.uses == [true; 2] && !l.forged);
        both[0].is_some() && both[0] == both[1] && both[0].is_some_and(used)
    }

    /// Another process has a name here.
    pub(super) fn is_taken(&self) -> bool {
        let taken = |l: &Link| l.forged && (l.uses[1] || l.stage == Stage::Promised) && l.open[1];
        self.links.iter().flatten().any(taken)
    }

    /// Where nothing is under way both have one connection, or none.
    pub(super) fn check_halves(&self) -> Result<(), Wrong> {
        let busy = |l: &Link| {
            l.silent || l.queues.iter().zip(l.open).any(|(queue, open)| open && !queue.is_empty()) || l.forged
        };
        let calls = |end: &End| end.call.is_some() || end.next.is_some() || !end.lives;
        if self.links.iter().flatten().any(busy) || self.ends.iter().any(calls) {
            return Ok(());
        }
        match (self.ends[0].channel, self.ends[1].channel) {
            (None, None) => Ok(()),
            _ if self.is_agreed() => Ok(()),
            _ => Err("one side has a connection that the other one has not"),
        }
    }
}
