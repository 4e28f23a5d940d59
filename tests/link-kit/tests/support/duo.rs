//! The engine over links over fabrics: two endpoints, of which is counted what they ask of the provider
//! below.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use below::{Below, BelowLink, BelowOptions};
use engine::{Completion, Error};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::Link as _;
use testkit::{from_any, msg, pattern};
use wire::session::JobKey;

use super::counted::{Counted, Counts};
use super::node;

pub type Over<F> = BelowLink<TcpLink, Counted<F>>;

/// The engine over such a link.
pub type Node<F> = node::Node<Over<F>>;

pub struct Duo<F: Below> {
    pub counts: Arc<Counts>,
    pub a: Node<F>,
    pub b: Node<F>,
}

/// A link over a fabric, which alone has payloads.
pub fn link_over<F: Below>(fabric: F, counts: &Arc<Counts>) -> Over<F> {
    link_with(fabric, counts, |_| {})
}

/// The same with options that are changed so.
pub fn link_with<F: Below>(
    fabric: F,
    counts: &Arc<Counts>,
    change: impl FnOnce(&mut BelowOptions),
) -> Over<F> {
    let key = JobKey::from_secret(b"of the engine's checks");
    let to = "127.0.0.1:0".parse().expect("an address");
    let base = TcpLink::bind(to, TcpOptions::new(key.clone())).expect("a free name");
    let mut options = BelowOptions::new(key);
    options.fallback = false;
    change(&mut options);
    BelowLink::new(base, Ok(Counted(fabric, Arc::clone(counts))), options).expect("descriptors")
}

impl<F: Below> Duo<F> {
    /// Over fabrics that `make` opens; messages have been exchanged.
    pub fn new(make: impl FnMut() -> F) -> Duo<F> {
        Duo::prepared(make, |_| {})
    }

    /// Over fabrics that `make` opens, by links that were prepared so.
    pub fn prepared(mut make: impl FnMut() -> F, prepare: impl Fn(&mut Over<F>)) -> Duo<F> {
        Duo::linked(|counts| {
            let mut link = link_over(make(), counts);
            prepare(&mut link);
            link
        })
    }

    /// Over such links.
    pub fn linked(mut make: impl FnMut(&Arc<Counts>) -> Over<F>) -> Duo<F> {
        let counts = Arc::new(Counts::default());
        let (a, b) = (make(&counts), make(&counts));
        let names = (a.addr(), b.addr());
        let mut duo = Duo { a: Node::new(a, names.1), b: Node::new(b, names.0), counts: Arc::clone(&counts) };
        // As an application says by FI_MR_ALLOCATED.
        duo.a.domain.set_lasting();
        duo.b.domain.set_lasting();
        for _ in 0..2 {
            duo.send(&[filled(8, 1)], &[Span::leak(8)]);
            std::mem::swap(&mut duo.a, &mut duo.b);
        }
        duo.settle();
        duo.counts.take();
        duo
    }

    /// Has both make progress until so many operations of either have completed.
    pub fn complete(&mut self, of_a: usize, of_b: usize) -> (Vec<Completion>, Vec<Completion>) {
        node::complete([&mut self.a, &mut self.b], of_a, of_b)
    }

    /// Posts as soon as there is room.
    pub fn post(&mut self, post: impl FnMut(&mut Node<F>) -> Result<(), Error>) {
        node::post([&mut self.a, &mut self.b], post);
    }

    /// Sends a message from the first to the second, as long as it is, which arrives.
    pub fn send(&mut self, src: &[Span], dst: &[Span]) {
        let (to, len) = (self.a.peer, hmem::total(src));
        self.b.domain.recv(self.b.rx, &from_any(dst, 2)).expect("a receive");
        self.post(|a| a.domain.send(a.ep, &msg(to, src, 1)));
        let (sent, got) = self.complete(1, 1);
        assert_eq!((sent[0].err, got[0].err, got[0].len), (None, None, len));
        assert!(link_kit::text(dst)[..len] == link_kit::text(src)[..], "{len} bytes");
    }

    /// A message, which arrives, and leaves nothing registered: how many accesses it took, and bytes in frames.
    pub fn counted_send(&mut self, src: Span, dst: Span) -> (u64, u64) {
        self.counts.take();
        self.send(&[src], &[dst]);
        let [_, bytes, accesses, _] = self.counts.take();
        assert_eq!(self.lent(), 0, "what is registered when it is over");
        (accesses, bytes)
    }

    /// Has messages from a device's memory be accesses, where it is exported: the first ones go in frames.
    pub fn send_until_accesses(&mut self, src: impl Fn() -> Span) {
        let by_access = || {
            self.settle();
            let src = src();
            self.counted_send(src, Span::leak(src.len())).0 == 1
        };
        assert!(std::iter::repeat_with(by_access).take(100).any(|is_so| is_so), "100 messages in frames");
    }

    /// Waits until nothing is said any more.
    pub fn settle(&mut self) {
        for _ in 0..50 {
            assert!(self.a.next().is_none() && self.b.next().is_none());
            sleep(Duration::from_micros(50));
        }
    }

    /// How much memory is registered for peers.
    pub fn lent(&self) -> u64 {
        self.counts.lent.load(Relaxed)
    }
}

pub fn filled(len: usize, seed: usize) -> Span {
    let span = Span::leak(len);
    hmem::write(&[span], 0, &pattern(len, seed));
    span
}

/// A long message is one read, and no frame has any of it.
pub fn a_long_message_is_one_read<F: Below>(mut duo: Duo<F>, len: usize) {
    for i in 0..3 {
        duo.send(&[filled(len, i)], &[Span::leak(len)]);
        let [messages, bytes, reads, read] = duo.counts.take();
        assert_eq!((reads, read), (1, len as u64), "reads of the provider below, and their bytes");
        assert!(messages <= 8 && bytes < 2_000, "{messages} messages of {bytes} bytes");
        assert_eq!(duo.lent(), 0, "what is registered when the message is over");
    }
}

/// A receive that is too short: it fails, and no byte behind it is written.
pub fn a_long_message_is_cut_to_its_receive<F: Below>(mut duo: Duo<F>) {
    const LEN: usize = 200_000;
    let (to, src, dst) = (duo.a.peer, filled(LEN, 3), Span::leak(LEN));
    for len in [0, 10, 70_000] {
        let before = link_kit::text(&[dst]);
        let room = dst.part(0, len).expect("a part");
        duo.b.domain.recv(duo.b.rx, &from_any(&[room], 2)).expect("a receive");
        duo.post(|a| a.domain.send(a.ep, &msg(to, &[src], 1)));
        let (sent, got) = duo.complete(1, 1);
        assert_eq!((sent[0].err, got[0].err), (None, Some(Error::Truncated)));
        let after = link_kit::text(&[dst]);
        assert!(after[..len] == pattern(LEN, 3)[..len] && after[len..] == before[len..], "{len} bytes");
        assert_eq!(duo.lent(), 0);
    }
}

/// More than the provider below is given at once.
pub fn many_long_messages_at_once<F: Below>(mut duo: Duo<F>) {
    const LEN: usize = 66_000;
    const N: usize = 200;
    let to = duo.a.peer;
    let of: Vec<[Span; 2]> = (0..N).map(|i| [filled(LEN, i), Span::leak(LEN)]).collect();
    for (i, [src, dst]) in of.iter().enumerate() {
        duo.b.domain.recv(duo.b.rx, &from_any(&[*dst], i)).expect("a receive");
        duo.post(|a| a.domain.send(a.ep, &msg(to, &[*src], i)));
    }
    duo.complete(N, N);
    for [src, dst] in of {
        assert!(link_kit::text(&[dst]) == link_kit::text(&[src]));
    }
    assert_eq!((duo.counts.take()[2], duo.lent()), (N as u64, 0), "reads, and what is lent");
}
