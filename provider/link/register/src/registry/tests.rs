//! The registry over an adapter that was made for its tests.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

mod client;
mod own;
mod pages;

/// An adapter whose ways refuse, each with an errno or 0.
#[derive(Debug, Default)]
struct Fake {
    errno: BTreeMap<u8, i32>,
    /// What was called, by way.
    calls: Vec<Way>,
    live: BTreeSet<u32>,
    /// What the owner has taken back, and how often a key was said to be idle.
    gone: BTreeSet<u32>,
    idle: u32,
    last: u32,
    stuck: bool,
    /// Beside so many there is room for one more.
    room: Option<usize>,
    /// When the owner sees what is written; `None`: the memory is none for an adapter.
    sees: Option<AdapterWrites>,
    flushes: u32,
}

impl Device for Fake {
    type Key = u32;

    fn sees(&mut self, _span: Span) -> Result<AdapterWrites, (&'static str, i32)> {
        self.sees.ok_or(("where it is", libc::EINVAL))
    }

    fn flush(&mut self, _span: Span) -> Result<(), (&'static str, i32)> {
        self.flushes += 1;
        Ok(())
    }

    fn register(&mut self, way: Way, _span: Span, _uses: Uses) -> Result<u32, (&'static str, i32)> {
        self.calls.push(way);
        if self.room.is_some_and(|room| self.live.len() > room) {
            return Err(("ibv_reg", libc::ENOMEM));
        }
        match self.errno.get(&(way as u8)) {
            Some(errno) => Err(("ibv_reg", *errno)),
            None => {
                self.last += 1;
                self.live.insert(self.last);
                Ok(self.last)
            }
        }
    }

    fn is_there(&self, key: &u32) -> bool {
        !self.gone.contains(key)
    }

    fn note_idle(&mut self, _key: &u32) {
        self.idle += 1;
    }

    fn deregister(&mut self, key: u32) -> Result<(), (&'static str, i32)> {
        if self.stuck {
            return Err(("ibv_dereg_mr", libc::EBUSY));
        }
        assert!(self.live.remove(&key), "a key ends once");
        Ok(())
    }
}

fn registry(errno: &[(Way, i32)]) -> Registry<Fake> {
    registry_of(errno, false)
}

fn registry_of(errno: &[(Way, i32)], on_demand: bool) -> Registry<Fake> {
    let errno = errno.iter().map(|(way, errno)| (*way as u8, *errno)).collect();
    Registry::new(Fake { errno, sees: Some(AdapterWrites::Seen), ..Fake::default() }, on_demand)
}

/// Memory that is said to be a device's; nothing follows its address.
fn device(len: usize) -> Span {
    // SAFETY: memory that is never freed, and that no call of this test accesses.
    unsafe { Span::new(Span::leak(len).addr() as usize, len, Kind::Cuda) }
}

const READ: Uses = Uses { local_write: false, remote_read: true, remote_write: false, domain: 0 };
const WRITE: Uses = Uses { local_write: true, remote_read: false, remote_write: true, domain: 0 };

#[test]
fn host_memory_is_registered_by_its_address_alone() {
    let mut all = registry(&[]);
    all.register(Span::leak(64), READ, false).expect("a way");
    assert_eq!(all.device().calls, [Way::Plain]);
}

#[test]
fn ways_are_tried_in_order_and_each_refusal_is_kept_with_call_and_errno() {
    let mut all = registry(&[(Way::DmabufPcie, 524), (Way::Dmabuf, libc::EINVAL)]);
    all.register(device(64), READ, false).expect("a way");
    assert_eq!(all.device().calls, [Way::DmabufPcie, Way::Dmabuf, Way::PeerMemory]);
    let text = all.describe(Kind::Cuda, true).expect("what came of it");
    assert!(text.starts_with("Cuda for peers by peer memory (not dma-buf over PCIe: ibv_reg: "), "{text}");
    assert!(text.contains("524") && text.contains("not dma-buf: ibv_reg: Invalid argument"), "{text}");
    assert_eq!(all.describe(Kind::Rocr, true), None);
}

#[test]
fn refusals_of_ways_behind_the_one_that_works_are_not_said() {
    let mut all = registry(&[(Way::DmabufPcie, libc::EAGAIN), (Way::Dmabuf, libc::EAGAIN)]);
    all.register(device(64), READ, false).expect("a way");
    all.device().errno.remove(&(Way::DmabufPcie as u8));
    all.register(device(64), READ, false).expect("the first way");
    assert_eq!(all.describe(Kind::Cuda, true).as_deref(), Some("Cuda for peers by dma-buf over PCIe"));
}

#[test]
fn memory_that_no_way_takes_is_refused_with_all_reasons() {
    let of = |way, errno| (way, errno);
    let mut all = registry(&[
        of(Way::DmabufPcie, libc::EOPNOTSUPP),
        of(Way::Dmabuf, libc::EOPNOTSUPP),
        of(Way::PeerMemory, libc::ENODEV),
    ]);
    for round in 0..2 {
        let refusals = all.register(device(64), READ, false).expect_err("no way is left");
        let all_errnos: Vec<i32> = refusals.iter().map(|r| r.errno).collect();
        assert_eq!(all_errnos, [libc::EOPNOTSUPP, libc::EOPNOTSUPP, libc::ENODEV], "round {round}");
    }
    // What is refused for good is not tried again.
    assert_eq!(all.device().calls.len(), 3);
    assert!(!all.may(Kind::Cuda, true) && all.may(Kind::Cuda, false), "for this side nothing was tried");
    assert!(all.describe(Kind::Cuda, true).expect("reasons").starts_with("Cuda for peers by no way (not "));
}

#[test]
fn room_is_looked_for_again_where_a_registration_has_ended_or_after_a_time() {
    let (mut all, now) = (registry(&[]), Instant::now());
    let (number, _) = all.register(Span::leak(64), READ, false).expect("a way");
    assert!(!all.has_no_room(now));
    all.note_no_room(now);
    assert!(all.has_no_room(now) && !all.has_no_room(now + AGAIN));
    all.begin(number);
    assert_eq!((all.close(number), all.has_no_room(now)), (Ok(false), true), "a request names it");
    assert_eq!((all.end(number), all.has_no_room(now)), (Ok(()), false));
}

#[test]
fn refusals_for_now_are_tried_again_without_end_and_others_eight_times() {
    for (errno, tries) in [(libc::ENOMEM, 20), (libc::EFAULT, 8)] {
        let mut all = registry(&[(Way::DmabufPcie, errno)]);
        (0..20).for_each(|_| drop(all.register(device(64), READ, false).map(drop)));
        let tried = all.device().calls.iter().filter(|way| **way == Way::DmabufPcie).count();
        assert_eq!(tried, tries, "errno {errno}");
    }
}

#[test]
fn host_memory_is_tried_again_whatever_was_refused() {
    let mut all = registry(&[(Way::Plain, libc::EFAULT)]);
    (0..20).for_each(|_| drop(all.register(Span::leak(64), READ, false).map(drop)));
    assert_eq!(all.device().calls.len(), 20);
    assert!(all.may(Kind::System, true) && all.may(Kind::System, false));
}

#[test]
fn a_registration_is_used_while_a_request_is_under_way() {
    let mut all = registry(&[]);
    let (number, _) = all.register(Span::leak(64), READ, true).expect("a way");
    assert!(!all.is_used(), "the program's own may stay for good");
    all.begin(number);
    assert!(all.is_used());
    all.end(number).expect("an end");
    assert!(!all.is_used());
}

#[test]
fn only_what_is_shared_holds_it_and_serves_is_found() {
    let mut all = registry(&[]);
    let (one, other) = (Span::leak(100), Span::leak(100));
    let part = |span: Span| span.part(10, 80).expect("a part");
    let (shared, _) = all.register(one, Uses { local_write: true, ..READ }, true).expect("a way");
    all.register(other, WRITE, false).expect("a way");
    let local = |local_write| Uses { local_write, ..Uses::default() };
    assert_eq!(all.find(part(one), local(true)).map(|(n, _)| n), Some(shared));
    assert!(all.find(part(one), WRITE).is_none(), "not for peers' writes");
    assert!(all.find(part(other), local(false)).is_none(), "one that is not shared");
    let aside = Uses { domain: 7, ..local(false) };
    assert!(all.find(part(one), aside).is_none(), "one of another domain");
    // SAFETY: memory that no call of this test accesses.
    let beyond = unsafe { Span::new(one.addr() as usize + 50, 51, Kind::System) };
    assert!(all.find(beyond, local(false)).is_none(), "a byte beyond its end");
    assert_eq!(all.close(shared), Ok(true));
    assert!(all.find(part(one), local(false)).is_none(), "one that has ended");
}

#[test]
fn a_registration_ends_with_the_last_request_that_names_it() {
    let mut all = registry(&[]);
    let (number, _) = all.register(Span::leak(64), WRITE, true).expect("a way");
    all.begin(number);
    all.begin(number);
    assert_eq!(all.close(number), Ok(false));
    assert_eq!(all.end(number), Ok(()));
    assert_eq!((all.len(), all.device().live.len()), (1, 1));
    assert_eq!(all.end(number), Ok(()));
    assert_eq!((all.len(), all.device().live.len()), (0, 0));
    assert_eq!(all.close(number), Ok(true));
}

#[test]
fn an_adapter_that_does_not_let_go_is_an_error() {
    let mut all = registry(&[]);
    let (number, _) = all.register(Span::leak(64), WRITE, true).expect("a way");
    all.device().stuck = true;
    assert_eq!(all.close(number), Err(("ibv_dereg_mr", libc::EBUSY)));
}

proptest! {
    /// Whatever is registered, used and closed in whatever order: the adapter has what is not closed, or is
    /// in use, and nothing else.
    #[test]
    fn the_adapter_has_what_is_open_or_in_use(steps in prop::collection::vec((0u8..4, 0usize..6), 0..60)) {
        let mut all = registry(&[]);
        let span = Span::leak(64);
        // By number: open, and requests.
        let mut model: BTreeMap<u64, (bool, u32)> = BTreeMap::new();
        for (what, which) in steps {
            let number = model.keys().nth(which).copied();
            match (what, number) {
                (0, _) => {
                    let (number, _) = all.register(span, WRITE, true).expect("a way");
                    model.insert(number, (true, 0));
                }
                (1, Some(number)) if model[&number].0 => {
                    all.begin(number);
                    model.get_mut(&number).expect("known").1 += 1;
                }
                (2, Some(number)) if model[&number].1 > 0 => {
                    all.end(number).expect("it lets go");
                    model.get_mut(&number).expect("known").1 -= 1;
                }
                (3, Some(number)) => {
                    let over = all.close(number).expect("it lets go");
                    let entry = model.get_mut(&number).expect("known");
                    prop_assert_eq!(over, entry.1 == 0);
                    entry.0 = false;
                }
                _ => {}
            }
            model.retain(|_, (open, requests)| *open || *requests > 0);
            prop_assert_eq!(all.len(), model.len());
            prop_assert_eq!(all.device().live.len(), model.len());
            prop_assert_eq!(all.find(span, WRITE).is_some(), model.values().any(|(open, _)| *open));
        }
    }
}

#[test]
fn memory_whose_owner_may_not_see_what_is_written_is_registered_to_be_read_alone() {
    let mut all = registry(&[]);
    all.device().sees = Some(AdapterWrites::Unknown);
    for _ in 0..2 {
        let refusals = all.register(device(64), WRITE, false).expect_err("it may not be written");
        let [Refusal { way: None, call: "the order of an adapter's writes", errno: libc::EOPNOTSUPP }] =
            refusals[..]
        else {
            panic!("{refusals:?}");
        };
    }
    assert!(all.device().calls.is_empty(), "no way is tried");
    all.register(device(64), READ, false).expect("it is read");
    let text = all.describe(Kind::Cuda, true).expect("what came of it");
    assert!(
        text.starts_with(
            "Cuda for peers by dma-buf over PCIe (not written: the order of an adapter's writes: "
        ),
        "{text}"
    );
}

#[test]
fn what_a_flush_is_needed_for_is_written_by_this_side_alone() {
    let mut all = registry(&[]);
    all.device().sees = Some(AdapterWrites::Flushed);
    all.register(device(64), WRITE, false).expect_err("peers do not flush");
    let own = Uses { local_write: true, ..Uses::default() };
    let written = all.register(device(64), own, false).expect("this side does").0;
    let read = all.register(device(64), READ, false).expect("what is read needs none").0;
    for (number, flushes) in [(read, 0), (written, 1), (99, 1)] {
        all.flush(number).expect("it works");
        assert_eq!(all.device().flushes, flushes, "registration {number}");
    }
}

#[test]
fn memory_that_is_none_for_an_adapter_says_nothing_of_other_memory_of_its_kind() {
    let mut all = registry(&[]);
    all.device().sees = None;
    for _ in 0..20 {
        all.register(device(64), WRITE, false).expect_err("memory that moves");
    }
    assert_eq!((all.may(Kind::Cuda, true), all.describe(Kind::Cuda, true)), (true, None));
    all.device().sees = Some(AdapterWrites::Seen);
    all.register(device(64), WRITE, false).expect("memory that does not");
}

const OWN_READ: Uses = Uses { local_write: false, remote_read: false, remote_write: false, domain: 0 };
const OWN_WRITE: Uses = Uses { local_write: true, ..OWN_READ };

/// Registers memory for one request, which is under way when this returns, and is said to be.
fn for_one(all: &mut Registry<Fake>, span: Span, uses: Uses) -> u64 {
    let found = all.find(span, uses).map(|(number, _)| number);
    let number = found.unwrap_or_else(|| all.register(span, uses, false).expect("a way").0);
    all.begin(number);
    if found.is_none() {
        all.let_go(number).expect("it is in use");
    }
    number
}

#[test]
fn what_is_registered_on_demand_stays_and_is_found_again() {
    let mut all = registry_of(&[], true);
    let span = Span::leak(4096);
    let part = span.part(10, 80).expect("a part");
    let first = for_one(&mut all, span, OWN_WRITE);
    assert_eq!(all.device().calls, [Way::OnDemand]);
    all.end(first).expect("an end");
    assert_eq!(for_one(&mut all, part, OWN_WRITE), first);
    assert_eq!(all.device().calls, [Way::OnDemand], "one registration serves all");
    // Memory may be written when it is written, and may not when it is read.
    let read = for_one(&mut all, part, OWN_READ);
    assert_eq!((all.device().calls.len(), read == first), (2, false));
    assert_eq!((for_one(&mut all, part, OWN_READ), for_one(&mut all, span, OWN_WRITE)), (read, first));
    assert!(all.find(span, READ).is_none() && all.find(span, WRITE).is_none(), "no peer");
}

#[test]
fn peers_and_what_is_shared_get_none_on_demand() {
    let mut all = registry_of(&[], true);
    all.register(Span::leak(64), READ, false).expect("a way");
    all.register(Span::leak(64), OWN_READ, true).expect("a way");
    assert_eq!(all.device().calls, [Way::Plain, Way::Plain]);
}

#[test]
fn what_is_on_demand_is_of_the_domain_that_peers_share() {
    let mut all = registry_of(&[], true);
    let (span, apart) = (Span::leak(64), Uses { domain: 7, ..OWN_READ });
    for_one(&mut all, span, OWN_READ);
    assert!(all.find(span, apart).is_none());
    all.register(span, apart, false).expect("a way");
    assert_eq!(all.device().calls, [Way::OnDemand, Way::Plain]);
}

#[test]
fn memory_that_the_adapter_does_not_fault_in_is_pinned_for_each_request() {
    let mut all = registry_of(&[(Way::OnDemand, libc::EFAULT)], true);
    for _ in 0..2 {
        let number = for_one(&mut all, Span::leak(64), OWN_WRITE);
        all.end(number).expect("an end");
        assert_eq!(all.device().live.len(), 0, "what was pinned for one request");
    }
    assert_eq!(all.device().calls, [Way::OnDemand, Way::Plain, Way::OnDemand, Way::Plain]);
    let text = all.describe(Kind::System, false).expect("what came of it");
    assert!(text.starts_with("System by address (not on demand: ibv_reg: Bad address"), "{text}");
}

#[test]
fn what_failed_is_registered_anew() {
    let mut all = registry_of(&[], true);
    let (span, other) = (Span::leak(64), Span::leak(64));
    let [read, written, beside] =
        [(span, OWN_READ), (span.part(1, 63).expect("a part"), OWN_WRITE), (other, OWN_WRITE)]
            .map(|(span, uses)| for_one(&mut all, span, uses));
    all.note_failure(read, false).expect("it is in use");
    assert!(
        all.find(span, OWN_READ).is_none() && all.find(span.part(1, 1).expect("a part"), OWN_WRITE).is_none()
    );
    for number in [read, written, beside] {
        all.end(number).expect("an end");
    }
    assert_eq!(all.device().live.len(), 1, "the one of other memory");
    assert_ne!(for_one(&mut all, span, OWN_READ), read);
    let pinned = registry(&[]).register(span, OWN_READ, false).map(|(number, _)| number);
    assert_eq!(registry(&[]).note_failure(pinned.expect("a way"), true), Ok(()));
}

#[test]
fn memory_that_the_adapter_had_no_access_to_is_not_registered_on_demand_again() {
    let mut all = registry_of(&[], true);
    let memory = Span::leak(4096);
    let part = |off, len| memory.part(off, len).expect("a part");
    let failed = for_one(&mut all, part(100, 50), OWN_READ);
    all.note_failure(failed, true).expect("it is in use");
    all.end(failed).expect("an end");
    for (span, way) in [
        (part(100, 50), Way::Plain),
        (part(0, 101), Way::Plain),
        (memory, Way::Plain),
        (part(0, 100), Way::OnDemand),
        (part(150, 9), Way::OnDemand),
    ] {
        let number = for_one(&mut all, span, OWN_WRITE);
        assert_eq!(all.device().calls.last(), Some(&way), "{span:?}");
        all.end(number).expect("an end");
    }
    assert_eq!(all.device().live.len(), 2, "what is pinned does not stay");
    // The failure of a pinned registration says nothing, and of many the last ones are known.
    let (pinned, _) = all.register(memory, READ, false).expect("a way");
    all.note_failure(pinned, true).expect("it is there");
    for_one(&mut all, part(200, 9), OWN_READ);
    assert_eq!(all.device().calls.last(), Some(&Way::OnDemand));
    for _ in 0..crate::kept::FAILED {
        let failed = for_one(&mut all, Span::leak(8), OWN_READ);
        all.note_failure(failed, true).expect("it is in use");
    }
    for_one(&mut all, part(100, 50), OWN_READ);
    assert_eq!(all.device().calls.last(), Some(&Way::OnDemand));
}

#[test]
fn what_makes_room_ends_with_its_last_request() {
    let mut all = registry_of(&[], true);
    let memory = Span::leak(8192);
    let part = |off, len| memory.part(off, len).expect("a part");
    let small = for_one(&mut all, part(100, 50), OWN_WRITE);
    let large = for_one(&mut all, part(0, 4096), OWN_WRITE);
    assert_eq!(all.device().live.len(), 2, "one is in use that another one holds");
    all.end(small).expect("an end");
    all.end(large).expect("an end");
    assert_eq!(all.device().live.len(), 1);
    for at in 0..2 * crate::kept::MOST {
        let number = for_one(&mut all, Span::leak(64 + at % 3), OWN_READ);
        all.end(number).expect("an end");
    }
    assert_eq!(all.device().live.len(), crate::kept::MOST);
}

#[test]
fn without_room_those_used_longest_ago_end_and_memory_is_tried_once_more() {
    let mut all = registry_of(&[], true);
    let memory = Span::leak(4096);
    let part = |off, len| memory.part(off, len).expect("a part");
    for at in 0..8 {
        let number = for_one(&mut all, part(100 * at, 100), OWN_READ);
        all.end(number).expect("an end");
    }
    // There is room beside six, for 150 bytes two of eight go.
    all.device().room = Some(6);
    let number = for_one(&mut all, part(2000, 150), OWN_READ);
    assert_eq!((all.device().calls.len(), all.device().live.len()), (10, 7));
    assert!(all.find(part(100, 1), OWN_READ).is_none() && all.find(part(200, 1), OWN_READ).is_some());
    all.end(number).expect("an end");
    // What there is no room for then, either, is refused.
    let mut all = registry_of(&[(Way::Plain, libc::ENOMEM)], true);
    let number = for_one(&mut all, memory, OWN_READ);
    all.end(number).expect("an end");
    for calls in [3, 4] {
        assert!(all.register(Span::leak(64), READ, false).is_err());
        assert_eq!((all.device().live.len(), all.device().calls.len()), (0, calls));
    }
}
