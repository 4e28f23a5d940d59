//! The order of what is polled, in each order of calls: it is that of one queue.

use hmem::Span;
use link_api::{FrameLink, Link, Path, Refused, Sent, SleepLink, Standing};
use wire::Addr;

use super::*;
use crate::network::{About, Buffer, Dest, Did, Message, NotSent, Poll, Remote, Waits};

/// A network that has messages, each of which ends with its number.
#[derive(Debug, Default)]
struct Fake {
    messages: Vec<Vec<u8>>,
    /// How often each was given back.
    given_back: Vec<u32>,
}

impl Remote for Fake {}

impl Below for Fake {
    const LINK: &'static str = "fake";

    fn about(&self) -> About<'_> {
        unreachable!("what is polled does not depend on it")
    }
    fn meet(&mut self, _address: &[u8]) -> Result<Dest, String> {
        Err("no peer is met".into())
    }
    fn part(&mut self, _dest: Dest) {}
    fn send(&mut self, _to: Dest, _message: &Message<'_>) -> Result<(), NotSent> {
        Err(NotSent::Busy)
    }
    fn keeps(&self, _who: u64) -> bool {
        false
    }
    fn poll(&mut self, _how: Poll) -> Option<Did> {
        None
    }
    fn bytes(&self, buffer: Buffer) -> &[u8] {
        assert_eq!(self.given_back[buffer.0 as usize], 0, "message {} was given back", buffer.0);
        &self.messages[buffer.0 as usize]
    }
    fn give_back(&mut self, buffer: Buffer) {
        self.given_back[buffer.0 as usize] += 1;
    }
    fn try_wait(&mut self) -> bool {
        true
    }
    fn waits(&self) -> Waits {
        Waits::default()
    }
}

/// A connection by which nothing comes.
#[derive(Debug)]
struct NoBase;

impl Link for NoBase {
    fn addr(&self) -> Addr {
        unreachable!()
    }
    fn peer(&mut self, _addr: &Addr) -> PeerId {
        unreachable!()
    }
    fn peer_addr(&self, _peer: PeerId) -> Addr {
        unreachable!()
    }
    fn path(&self, _peer: PeerId) -> Path {
        unreachable!()
    }
    fn describe(&self, _peer: PeerId) -> String {
        unreachable!()
    }
    fn standing(&self) -> Vec<Standing> {
        unreachable!()
    }
}

impl FrameLink for NoBase {
    fn send(&mut self, _: PeerId, _: &[u8], _: &[Span], _: usize, _: usize) -> Result<Sent, Refused> {
        unreachable!()
    }
    fn poll(&mut self) -> Option<Event> {
        unreachable!()
    }
    fn read(&self, _frame: &Frame, _off: usize, _dst: &mut [u8]) -> usize {
        unreachable!()
    }
    fn copy_out(&self, _: &Frame, _: usize, _: &[Span], _: usize, _: usize) -> usize {
        unreachable!()
    }
    fn release(&mut self, _frame: Frame) {
        unreachable!()
    }
}

impl SleepLink for NoBase {
    fn arm(&mut self) -> bool {
        unreachable!()
    }
}

impl RmaLink for NoBase {}

/// What is to be polled: a frame, of which peer, and its number; or an event of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Frame(PeerId, u8),
    Event(u8),
}

/// The inbox, and what it is to have.
struct Both {
    inbox: Inbox,
    below: Option<Fake>,
    queue: VecDeque<Item>,
    held: Option<Item>,
    count: u8,
}

const PEERS: [PeerId; 2] = [PeerId(3), PeerId(4)];
const ACTIONS: [fn(&mut Both); 9] = [
    |both| both.push_frame(PEERS[0]),
    |both| both.push_frame(PEERS[1]),
    Both::push_event,
    Both::next,
    Both::next_frame,
    Both::put_back,
    Both::release,
    |both| both.drop_frames_of(PEERS[0]),
    Both::set_aside,
];
/// Calls in a row: a frame is handed out, another one comes, the first is put back, and one call more.
const CALLS: u32 = 5;

impl Both {
    fn new() -> Both {
        let (inbox, queue) = (Inbox::default(), VecDeque::new());
        Both { inbox, below: Some(Fake::default()), queue, held: None, count: 0 }
    }

    fn fake(&mut self) -> &mut Fake {
        self.below.as_mut().expect("a network")
    }

    fn push_frame(&mut self, from: PeerId) {
        let (number, fake) = (self.count, self.below.as_mut().expect("a network"));
        let at = fake.messages.len();
        fake.messages.push([&[0; BEFORE][..], &[number]].concat());
        fake.given_back.push(0);
        self.inbox.push_frame(from, 1, Came::Buffer(Buffer(at as u32), BEFORE + 1));
        self.queue.push_back(Item::Frame(from, number));
        self.count += 1;
    }

    fn push_event(&mut self) {
        self.inbox.push_event(Event::Done(OpId(self.count.into()), true));
        self.queue.push_back(Item::Event(self.count));
        self.count += 1;
    }

    /// What was handed out, as the test names it.
    fn seen(&self, event: Option<Event>) -> Option<Item> {
        match event? {
            Event::Done(op, true) => Some(Item::Event(op.0 as u8)),
            Event::Frame(frame) => {
                let Some(Held::Fabric(from, 1, came)) = self.inbox.held() else {
                    panic!("{:?} is at hand", self.inbox.held())
                };
                assert_eq!((frame.from, frame.len), (*from, 1));
                Some(Item::Frame(*from, came.bytes(self.below.as_ref())[BEFORE]))
            }
            other => panic!("{other:?} was not put there"),
        }
    }

    fn next(&mut self) {
        if self.held.is_none() {
            let event = self.inbox.next();
            let wanted = self.queue.pop_front();
            assert_eq!(self.seen(event), wanted);
            self.held = wanted.filter(|item| matches!(item, Item::Frame(..)));
        }
    }

    fn next_frame(&mut self) {
        if self.held.is_none() {
            let frame = self.inbox.next_frame();
            let is_frame = matches!(self.queue.front(), Some(Item::Frame(..)));
            self.held = if is_frame { self.queue.pop_front() } else { None };
            assert_eq!(self.seen(frame.map(Event::Frame)), self.held);
        }
    }

    fn put_back(&mut self) {
        if let Some(held) = self.held.take() {
            self.inbox.put_back();
            self.queue.push_front(held);
        }
    }

    fn release(&mut self) {
        let held = self.inbox.take_held();
        assert_eq!(held.is_some(), self.held.take().is_some());
        if let Some(Held::Fabric(_, _, came)) = held {
            came.give_back(self.below.as_mut());
        }
    }

    fn drop_frames_of(&mut self, peer: PeerId) {
        self.inbox.drop_frames_of(peer, &mut NoBase, &mut self.below);
        self.queue.retain(|item| !matches!(item, Item::Frame(from, _) if *from == peer));
    }

    fn set_aside(&mut self) {
        self.inbox.set_aside(&Peers::new(0), &mut NoBase, &mut self.below);
        let out = self.fake().given_back.iter().filter(|n| **n == 0).count();
        assert!(out <= usize::from(self.held.is_some()), "a message of the network was not copied");
    }

    fn check(&self) {
        assert_eq!(self.inbox.is_empty(), self.queue.is_empty());
        for peer in PEERS {
            let is_next = matches!(self.queue.front(), Some(Item::Frame(from, _)) if *from == peer);
            assert_eq!(self.inbox.is_next_from(peer), is_next);
        }
    }
}

#[test]
fn what_is_polled_is_in_order_and_each_message_is_given_back_once() {
    for at in 0..ACTIONS.len().pow(CALLS) {
        for is_polled in [true, false] {
            let (mut both, mut rest) = (Both::new(), at);
            for _ in 0..CALLS {
                ACTIONS[rest % ACTIONS.len()](&mut both);
                rest /= ACTIONS.len();
                both.check();
            }
            both.release();
            while is_polled && !both.queue.is_empty() {
                both.next();
                both.release();
            }
            both.inbox.drop_all(&mut NoBase, &mut both.below);
            assert!(both.inbox.is_empty());
            assert!(both.fake().given_back.iter().all(|n| *n == 1), "calls {at}: each once");
        }
    }
}
