//! The commands of a ring that have been taken and are not over, in their order: what may start, and what has
//! to wait. It posts nothing and touches no shared memory.

use std::collections::{HashMap, VecDeque};

use crate::command::{Command, Work};
use crate::layout::flag;
use crate::ring::slot;

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not begun.
    New,
    /// Waits until it is the first of its peer.
    Waiting,
    /// The engine has it.
    Posted,
    /// Its bytes are there; the signal waits until it is the first of its peer.
    Held,
    /// The engine has its signal.
    Signalled,
    /// Over.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    command: Command,
    stage: Stage,
}

/// What is under way to one peer: tickets, in order; those that are over go when they are the first.
#[derive(Debug, Default)]
struct Line {
    tickets: VecDeque<u64>,
}

/// Peers to which nothing is under way and whose line is kept, since the next command needs no memory then. A
/// device may name any number of peers.
const LINES: usize = 1024;

/// The commands under way of one ring.
#[derive(Debug)]
pub(crate) struct Window {
    log2: u32,
    entries: Vec<Option<Entry>>,
    /// The next to be taken.
    pub(crate) next: u64,
    /// All before it are over.
    pub(crate) done: u64,
    lines: HashMap<u32, Line>,
    /// Those that have become the first of their peer, and wait for that.
    ready: VecDeque<u64>,
    /// Of each peer, the first command that failed: no strong signal after it is set, as long as the ring
    /// lives.
    broken: HashMap<u32, u64>,
    /// The first command that failed of any peer, once there are too many of these.
    all_broken: Option<u64>,
}

impl Window {
    pub(crate) fn new(log2: u32) -> Window {
        let entries = vec![None; 1 << log2];
        Window {
            log2,
            entries,
            next: 0,
            done: 0,
            lines: HashMap::new(),
            ready: VecDeque::new(),
            broken: HashMap::new(),
            all_broken: None,
        }
    }

    /// Whether as many are under way as there are slots.
    pub(crate) fn is_full(&self) -> bool {
        self.next - self.done >= 1 << self.log2
    }

    /// Takes the next command in; its ticket.
    pub(crate) fn admit(&mut self, command: Command) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.entries[slot(ticket, self.log2)] = Some(Entry { command, stage: Stage::New });
        if has_line(&command) {
            self.lines.entry(command.peer).or_default().tickets.push_back(ticket);
        }
        ticket
    }

    /// Takes in one that does nothing: it is over at once, if nothing is under way; else not taken.
    #[inline]
    pub(crate) fn pass(&mut self) -> bool {
        let empty = self.is_empty();
        self.next += u64::from(empty);
        self.done += u64::from(empty);
        empty
    }

    /// One more that is over as soon as it is taken: it was refused. `peer`: to which it was.
    pub(crate) fn skip(&mut self, peer: Option<u32>) -> u64 {
        let ticket = self.next;
        self.next += 1;
        if let Some(peer) = peer {
            self.fail(ticket, peer);
        }
        self.entries[slot(ticket, self.log2)] = None;
        self.advance();
        ticket
    }

    /// A command under way.
    #[inline]
    pub(crate) fn get(&self, ticket: u64) -> Option<(Command, Stage)> {
        let inside = (self.done..self.next).contains(&ticket);
        self.entries[slot(ticket, self.log2)].filter(|_| inside).map(|e| (e.command, e.stage))
    }

    pub(crate) fn set(&mut self, ticket: u64, stage: Stage) {
        if let Some(e) = &mut self.entries[slot(ticket, self.log2)] {
            e.stage = stage;
        }
    }

    /// Whether all before it, to the same peer, are over.
    pub(crate) fn is_first(&self, ticket: u64, peer: u32) -> bool {
        self.lines.get(&peer).is_none_or(|l| l.tickets.front().is_none_or(|first| *first >= ticket))
    }

    /// Whether something before it, to the same peer, failed.
    pub(crate) fn is_broken(&self, ticket: u64, peer: u32) -> bool {
        let first = [self.broken.get(&peer).copied(), self.all_broken].into_iter().flatten().min();
        first.is_some_and(|first| first < ticket)
    }

    fn fail(&mut self, ticket: u64, peer: u32) {
        if self.broken.len() < LINES || self.broken.contains_key(&peer) {
            let first = self.broken.entry(peer).or_insert(ticket);
            *first = ticket.min(*first);
        } else {
            self.all_broken = Some(self.all_broken.map_or(ticket, |first| first.min(ticket)));
        }
    }

    /// It is over.
    pub(crate) fn finish(&mut self, ticket: u64, ok: bool) {
        let Some((command, _)) = self.get(ticket) else { return };
        self.set(ticket, Stage::Over);
        if has_line(&command) {
            if !ok {
                self.fail(ticket, command.peer);
            }
            let many = self.lines.len() > LINES;
            let line = self.lines.entry(command.peer).or_default();
            let over =
                |t: &u64| matches!(self.entries[slot(*t, self.log2)], Some(e) if e.stage == Stage::Over);
            let before = line.tickets.front().copied();
            while line.tickets.front().is_some_and(over) {
                line.tickets.pop_front();
            }
            match line.tickets.front() {
                Some(first) if before != Some(*first) => self.ready.push_back(*first),
                None if many => drop(self.lines.remove(&command.peer)),
                _ => {}
            }
        }
        self.advance();
    }

    fn advance(&mut self) {
        while self.done < self.next {
            let entry = &mut self.entries[slot(self.done, self.log2)];
            if entry.is_some_and(|e| e.stage != Stage::Over) {
                return;
            }
            *entry = None;
            self.done += 1;
        }
    }

    /// A command that was waiting to be the first of its peer, and is.
    pub(crate) fn ready(&mut self) -> Option<u64> {
        while let Some(ticket) = self.ready.pop_front() {
            if matches!(self.get(ticket), Some((_, Stage::Waiting | Stage::Held))) {
                return Some(ticket);
            }
        }
        None
    }

    /// A command that does nothing, if all before it are over.
    pub(crate) fn idle(&self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let (command, stage) = self.get(self.done)?;
        (command.work == Work::Nop && stage == Stage::New).then_some(self.done)
    }

    /// Whether none is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.done == self.next
    }
}

/// Whether later commands to its peer may have to wait for it.
fn has_line(command: &Command) -> bool {
    !matches!(command.work, Work::Nop | Work::Recv { .. })
}

/// Whether it has to be the first of its peer to begin.
pub(crate) fn waits(command: &Command) -> bool {
    command.has(flag::FENCE) || matches!(command.work, Work::Signal(s) if !s.weak)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Limits, Raw};

    fn command(op: u8, flags: u16, peer: u32) -> Command {
        let raw = Raw { op, flags, peer, region: crate::layout::NO_REGION, ..Raw::default() };
        raw.check(&Limits { peers: 4, regions: &[], message: Some(64) }).unwrap()
    }

    #[test]
    fn what_is_over_out_of_order_moves_the_mark_when_those_before_it_are() {
        let mut w = Window::new(2);
        for _ in 0..4 {
            w.admit(command(2, flag::INLINE_DATA, 1));
        }
        assert!(w.is_full());
        for (ticket, done) in [(2, 0), (0, 1), (1, 3), (3, 4)] {
            w.finish(ticket, true);
            assert_eq!(w.done, done);
        }
        // Once more is nothing.
        w.finish(3, false);
        assert!(w.is_empty() && w.get(3).is_none());
    }

    #[test]
    fn a_fenced_command_is_ready_when_all_before_it_to_its_peer_are_over() {
        let mut w = Window::new(3);
        let [a, other, fenced] = [(1, 0), (2, 0), (1, flag::FENCE)]
            .map(|(peer, f)| w.admit(command(2, flag::INLINE_DATA | f, peer)));
        assert!(waits(&w.get(fenced).unwrap().0) && !w.is_first(fenced, 1) && w.is_first(other, 2));
        w.set(fenced, Stage::Waiting);
        w.finish(other, true);
        assert_eq!(w.ready(), None);
        w.finish(a, true);
        assert_eq!(w.ready(), Some(fenced));
        assert!(w.is_first(fenced, 1));
    }

    #[test]
    fn a_failure_breaks_all_that_comes_behind_it_to_that_peer_alone() {
        let mut w = Window::new(3);
        let [before, failed, behind, other] = [1, 1, 1, 2].map(|peer| w.admit(command(5, 0, peer)));
        w.finish(failed, false);
        let later = w.admit(command(5, 0, 1));
        assert_eq!([before, failed, behind, later].map(|t| w.is_broken(t, 1)), [false, false, true, true]);
        assert!(!w.is_broken(other, 2));
        for t in [before, behind, other, later] {
            w.finish(t, true);
        }
        assert!(w.is_empty() && w.is_broken(w.next, 1) && !w.is_broken(w.next, 2));
        // What is refused fails, too.
        w.skip(Some(2));
        assert!(w.is_broken(w.next, 2) && !w.is_broken(w.next, 3));
    }

    #[test]
    fn a_device_that_names_ever_new_peers_takes_no_ever_more_memory() {
        let mut w = Window::new(2);
        let one = command(2, flag::INLINE_DATA, 0);
        for peer in 0..10_000 {
            let ticket = w.admit(Command { peer, ..one });
            w.finish(ticket, peer % 2 == 0);
        }
        assert!(w.lines.len() <= LINES + 1, "{} lines", w.lines.len());
        assert!(w.broken.len() <= LINES, "{} broken", w.broken.len());
        // That of a peer of which no record is kept is not forgotten.
        assert!(w.is_broken(w.next, 9_999) && w.is_broken(w.next, 1));
    }

    #[test]
    fn a_command_that_does_nothing_is_over_after_all_before_it() {
        let mut w = Window::new(3);
        let put = w.admit(command(2, flag::INLINE_DATA, 0));
        let nop = w.admit(command(1, 0, 0));
        assert_eq!(w.idle(), None);
        w.finish(put, true);
        assert_eq!(w.idle(), Some(nop));
        assert!(!w.pass(), "it is over before what is under way");
        w.finish(nop, true);
        assert_eq!((w.idle(), w.done), (None, 2));
        assert!(w.pass() && w.is_empty() && w.done == 3);
    }
}
