//! A link with a flaw, to test the checks.

mod flaw;
mod frames;
mod rma;

use std::collections::VecDeque;
use std::time::Duration;

use hmem::Span;
use link_api::{Event, Frame, Grant, OpId, Path, PeerId, PieceCounter, RmaCaps, RmaLink};
use wire::Addr;

pub use self::flaw::Flaw;
use crate::Harness;

/// What is to be handed out.
#[derive(Debug)]
enum Item {
    Frame(PeerId, Vec<u8>),
    Other(Event),
}

/// A frame that was not copied in time: to which peer, head, body, and where in it.
type Late = (PeerId, Vec<u8>, Vec<Span>, usize, usize);

/// A link with a flaw. It takes frames from the link inside before they are asked for.
#[derive(Debug)]
pub struct Broken<L> {
    link: L,
    flaw: Flaw,
    queue: VecDeque<Item>,
    held: Option<(PeerId, Vec<u8>)>,
    count: usize,
    late: Option<Late>,
    counters: Vec<PieceCounter>,
    last_piece: Option<u16>,
    noted: Vec<u64>,
    freed: Option<PeerId>,
    last: Option<PeerId>,
    name: Option<Addr>,
    corked: bool,
}

impl<L: RmaLink> Broken<L> {
    /// This link, with that flaw.
    pub fn new(link: L, flaw: Flaw) -> Broken<L> {
        let (queue, held, late, counters) = Default::default();
        let noted = Vec::new();
        let (last_piece, last, freed) = (None, None, None);
        #[rustfmt::skip]
        let broken = Broken {
            link, flaw, queue, held, count: 0, late, counters, last_piece, noted, freed, last, name: None,
            corked: false,
        };
        broken
    }

    /// The same under this name, by which it is known to a link inside it.
    pub fn named(self, name: Addr) -> Broken<L> {
        Broken { name: Some(name), ..self }
    }

    /// The link inside.
    pub fn inner(&mut self) -> &mut L {
        &mut self.link
    }

    /// The link inside, alone.
    pub fn into_inner(self) -> L {
        self.link
    }

    /// Whether the flaw shows: every so many times.
    fn shows(&mut self, flaw: Flaw, every: usize) -> bool {
        self.count += usize::from(self.flaw == flaw);
        self.flaw == flaw && self.count % every == 0
    }

    /// Takes in what the link inside has: one event, or all of them.
    fn pump(&mut self, all: bool) {
        self.flush();
        while let Some(event) = self.link.poll() {
            let item = match event {
                Event::Frame(frame) => {
                    let (from, mut bytes) = (frame.from, vec![0; frame.len]);
                    self.link.read(&frame, 0, &mut bytes);
                    self.link.release(frame);
                    Item::Frame(from, bytes)
                }
                other => Item::Other(other),
            };
            self.arrive(item);
            if !all {
                break;
            }
        }
    }

    fn arrive(&mut self, item: Item) {
        match item {
            Item::Frame(from, mut bytes) => {
                if self.shows(Flaw::DropsFrames, 9) {
                    return;
                }
                if self.shows(Flaw::RepeatsFrames, 9) {
                    self.queue.push_back(Item::Frame(from, bytes.clone()));
                }
                let last = self.last.replace(from).unwrap_or(from);
                let shown = if self.shows(Flaw::MovesFramesToAnotherPeer, 5) { last } else { from };
                if self.flaw == Flaw::CutsLongFrames {
                    bytes.truncate(Path::LEAST_FRAME - 1);
                }
                let at = if self.shows(Flaw::SwapsFrames, 2) { 0 } else { self.queue.len() };
                self.queue.insert(at, Item::Frame(shown, bytes));
            }
            Item::Other(Event::Closed(peer, why)) => match self.flaw {
                Flaw::ReportsNoEnd => {}
                Flaw::ReportsEndFirst => self.queue.push_front(Item::Other(Event::Closed(peer, why))),
                Flaw::ReportsEndTwice => {
                    (0..2).for_each(|_| self.queue.push_back(Item::Other(Event::Closed(peer, why))));
                }
                _ => self.queue.push_back(Item::Other(Event::Closed(peer, why))),
            },
            Item::Other(Event::Done(op, ok)) => match self.flaw {
                Flaw::IsDoneAtOnce => {}
                Flaw::NeverCancels if self.noted.contains(&op.0) => {}
                Flaw::IsDoneTwice => {
                    (0..2).for_each(|_| self.queue.push_back(Item::Other(Event::Done(op, ok))));
                }
                Flaw::SaysAllIsDone => self.queue.push_back(Item::Other(Event::Done(op, true))),
                Flaw::ReusesOperations => self.queue.push_back(Item::Other(Event::Done(OpId(1), ok))),
                _ => self.queue.push_back(Item::Other(Event::Done(op, ok))),
            },
            Item::Other(other) => self.queue.push_back(Item::Other(other)),
        }
    }

    /// Sends what was not copied in time.
    fn flush(&mut self) {
        if let Some((to, head, body, off, len)) = self.late.take() {
            let _ = self.link.send(to, &head, &body, off, len);
        }
    }

    fn hand_out(&mut self, from: PeerId, bytes: Vec<u8>) -> Frame {
        let len = bytes.len() + usize::from(self.flaw == Flaw::SaysFramesAreLonger);
        self.held = Some((from, bytes));
        Frame { from, len, slot: 0 }
    }

    fn pop_frame_of(&mut self, from: PeerId) -> Option<Frame> {
        let is_of = |item: &Item| matches!(item, Item::Frame(of, _) if *of == from);
        let any = self.flaw == Flaw::LooksAtAnyPeer;
        let at = self.queue.iter().position(|i| is_of(i) || any && matches!(i, Item::Frame(..)))?;
        match self.queue.remove(at) {
            Some(Item::Frame(of, bytes)) => Some(self.hand_out(of, bytes)),
            _ => None,
        }
    }

    fn rest(&self, off: usize) -> &[u8] {
        let (_, bytes) = self.held.as_ref().expect("a frame that was not released");
        let off = if self.flaw == Flaw::ForgetsOffsetOfRead { 0 } else { off };
        bytes.get(off..).unwrap_or_default()
    }

    /// What allows an access, if the flaw is that it is not asked.
    fn grant(&self, grant: Grant) -> Grant {
        match grant {
            Grant::Request(_) if self.flaw == Flaw::AllowsWhatWasTakenBack => Grant::Agreed,
            Grant::Region(_) if self.flaw == Flaw::AllowsWhatWasTakenBack => Grant::Agreed,
            other => other,
        }
    }
}

/// A harness whose links all have a flaw, and which does not wait long where that flaw is to be waited for.
#[derive(Debug)]
pub struct Flawed<H> {
    harness: H,
    flaw: Flaw,
}

impl<H: Harness> Flawed<H> {
    /// This harness, with that flaw.
    pub fn new(harness: H, flaw: Flaw) -> Flawed<H> {
        Flawed { harness, flaw }
    }
}

impl<H: Harness> Harness for Flawed<H> {
    type Link = Broken<H::Link>;

    fn open(&mut self) -> Self::Link {
        Broken::new(self.harness.open(), self.flaw)
    }

    fn end(&mut self, link: Self::Link) {
        self.harness.end(link.into_inner());
    }

    fn reopen(&mut self, addr: &Addr) -> Self::Link {
        Broken::new(self.harness.reopen(addr), self.flaw)
    }

    fn nowhere(&mut self) -> Addr {
        self.harness.nowhere()
    }

    fn caps(&self) -> RmaCaps {
        self.harness.caps()
    }

    fn memory(&mut self, of: &Self::Link, len: usize, handles: bool) -> Span {
        self.harness.memory(&of.link, len, handles)
    }

    fn takes_frames(&self) -> bool {
        true
    }

    fn pass(&mut self) {
        self.harness.pass();
    }

    fn pass_long(&mut self) {
        self.harness.pass_long();
    }

    fn patience(&self) -> Duration {
        let whole = self.harness.patience();
        if self.flaw.shows_by_waiting() { whole.min(Duration::from_secs(1)) } else { whole }
    }

    /// As few as there are where each round makes a connection: they show what loses a wake-up now and then.
    fn rounds(&self) -> usize {
        500
    }

    fn halt(&mut self, at: Option<usize>) -> bool {
        self.harness.halt(at)
    }

    fn attacks(&self) -> usize {
        self.harness.attacks()
    }

    fn attack(&mut self, how: usize, from: &mut Self::Link, to: &Self::Link) -> bool {
        self.harness.attack(how, from.inner(), &to.link)
    }
}
