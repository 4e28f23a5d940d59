//! Memory that the program has not registered, by on-demand registrations: one serves all accesses, whatever is
//! mapped there, and what a device does not serve so is pinned for each access.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use below::{Dest, Remote as _};
use hmem::{Kind, Span};
use link_api::Way;
use link_kit::text;
use stand_in::program::{self, Program};
use testkit::pattern;
use verbs::{Options, Verbs};

use crate::device::{open, options, set};
use crate::lone::{accesses, join, say};

/// Longer than what is copied, and not of whole pages; what is mapped for it.
const LEN: usize = 50_000;
const OFF: usize = 1000;
const MAPPED: usize = 13 * 4096;

fn program() -> Program {
    Program::open(program::path("verbs_stand_in"))
}

/// Pages of the process's, at an address that has to be free if one is given; `None` if it is not.
fn map(at: Option<usize>) -> Option<usize> {
    let fixed = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    let (flags, prot) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: it takes the place of nothing.
    let found = unsafe { libc::mmap(at.unwrap_or(0) as *mut _, MAPPED, prot, flags, -1, 0) };
    (found != libc::MAP_FAILED).then_some(found as usize)
}

/// A part of such pages that begins inside of one.
fn part(at: usize) -> Span {
    // SAFETY: the tests' own memory, which stays while an access uses it.
    unsafe { Span::new(at + OFF, LEN, Kind::System) }
}

/// One that accesses memory of the other one.
struct Both {
    by: Verbs,
    other: Verbs,
    memory: Span,
    to: (Dest, u64, u64),
}

impl Both {
    fn new(devices: &str) -> Both {
        set(devices, &[]);
        let wanted = Options { on_demand: true, ..options() };
        let by = verbs::open(&wanted, Ipv4Addr::LOCALHOST.into()).expect("a device").0;
        let memory = Span::leak(LEN);
        let mut both = Both { by, other: open(), memory, to: (Dest(0), 0, 0) };
        both.connect();
        both
    }

    fn connect(&mut self) {
        let (at, to_by) = join(&mut self.by, &mut self.other);
        let lease = self.other.publish(self.memory, true, true).expect("memory of the host");
        let key = self.other.admit(to_by, &lease, true, true).expect("a key");
        say(&mut self.other, to_by, &mut self.by);
        self.to = (at, key, lease.base);
    }

    fn access(&mut self, way: Way, local: Span) -> bool {
        let (at, key, base) = self.to;
        accesses(&mut self.by, (way, at, key, base), local)
    }

    /// Writes new bytes from memory, and reads others into it.
    fn exchange(&mut self, local: Span, seed: usize) {
        hmem::write(&[local], 0, &pattern(LEN, seed));
        assert!(self.access(Way::Put, local));
        assert!(text(&[self.memory]) == pattern(LEN, seed), "written: bytes of seed {seed}");
        hmem::write(&[self.memory], 0, &pattern(LEN, seed + 1));
        assert!(self.access(Way::Get, local));
        assert!(text(&[local]) == pattern(LEN, seed + 1), "read: bytes of seed {seed}");
    }

    /// What three exchanges of this memory register, and what the path says.
    fn registers(&mut self, local: Span) -> (u64, String) {
        let before = program().calls(c"ibv_reg_mr");
        (0..3).for_each(|seed| self.exchange(local, 2 * seed));
        (program().calls(c"ibv_reg_mr") - before, self.by.registered())
    }
}

#[test]
fn one_registration_serves_all_accesses_of_memory_and_what_is_mapped_there_next() {
    let mut both = Both::new("sv0");
    let at = map(None).expect("memory");
    // Its own memory and its places, a registration that is read alone, and one that is written.
    assert_eq!(both.registers(part(at)), (4, "System by on demand".into()));
    let before = program().calls(c"ibv_dereg_mr");
    for seed in 0..20 {
        // SAFETY: pages that no access uses.
        assert_eq!(unsafe { libc::munmap(at as *mut _, MAPPED) }, 0);
        map(Some(at)).expect("the same address");
        assert_eq!(both.registers(part(at)).0, 0, "round {seed}");
    }
    assert_eq!(program().calls(c"ibv_dereg_mr"), before);
}

#[test]
fn a_device_that_copies_wrong_bytes_on_demand_pins_memory() {
    let mut both = Both::new("sv0:odpwrong");
    let (registrations, said) = both.registers(part(map(None).expect("memory")));
    assert_eq!(registrations, 2 + 2 * 3, "each access, and once what was compared");
    let why =
        "System by address (not on demand: what a transfer of memory on demand has brought: Bad message";
    assert!(said.starts_with(why), "{said}");
}

#[test]
fn a_device_without_on_demand_registrations_pins_memory() {
    let mut both = Both::new("sv0:noodp");
    let (registrations, said) = both.registers(part(map(None).expect("memory")));
    assert_eq!(registrations, 2 * 3);
    assert!(
        said.starts_with("System by address (not on demand: odp_caps: Operation not supported"),
        "{said}"
    );
}

/// No device faults this memory in from now on.
fn no_faults(span: Span) {
    let hook = program().symbol("stand_in_verbs_no_faults");
    // SAFETY: that function's type.
    let hook: extern "C" fn(u64, u64) = unsafe { std::mem::transmute(hook) };
    hook(span.addr(), span.len() as u64);
}

#[test]
fn memory_that_the_device_does_not_fault_in_is_pinned_and_other_memory_is_not() {
    let mut both = Both::new("sv0");
    let (local, other) = (part(map(None).expect("memory")), part(map(None).expect("memory")));
    no_faults(local.part(LEN - 1, 1).expect("its last byte"));
    let (registrations, said) = both.registers(local);
    // Each access is tried on demand, by queue pairs of its own, whose places are two.
    assert_eq!(registrations, 2 * 3 * 4, "{said}");
    let why = "System by address (not on demand: a transfer of memory on demand: Bad address";
    assert!(said.starts_with(why), "{said}");
    both.registers(other);
    assert_eq!(both.registers(other).0, 0);
}

#[test]
fn memory_that_is_not_faulted_in_any_more_ends_the_connection_and_is_pinned_by_the_next_one() {
    let mut both = Both::new("sv0");
    let local = part(map(None).expect("memory"));
    both.exchange(local, 1);
    no_faults(local);
    assert!(!both.access(Way::Put, local), "the device has no way to it");
    both.connect();
    both.exchange(local, 2);
    both.exchange(local, 4);
}

#[test]
fn memory_with_a_page_inside_that_is_not_faulted_in_ends_one_connection_and_is_pinned_from_then_on() {
    let mut both = Both::new("sv0");
    let local = part(map(None).expect("memory"));
    // Neither its first nor its last byte.
    no_faults(local.part(LEN / 2, 1).expect("a byte inside"));
    assert!(!both.access(Way::Put, local), "the device has no way to it");
    both.connect();
    both.exchange(local, 2);
    both.exchange(local, 4);
}

/// What the other thread does to pages, which are mapped when it has.
#[derive(Clone, Copy, Debug)]
enum Change {
    Unmap,
    Fixed,
    Remap,
    Discard,
    Fork,
}

fn change(what: Change, at: usize) {
    let (flags, prot) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    let at_all = at as *mut libc::c_void;
    // SAFETY: pages of this test that no access uses, and nothing else has.
    unsafe {
        match what {
            Change::Unmap => assert_eq!(libc::munmap(at_all, MAPPED), 0),
            Change::Fixed => {
                assert_eq!(libc::mmap(at_all, MAPPED, prot, flags | libc::MAP_FIXED, -1, 0), at_all);
            }
            Change::Remap => {
                let other = libc::mmap(std::ptr::null_mut(), MAPPED, prot, flags, -1, 0);
                let moved = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                assert_eq!(libc::mremap(other, MAPPED, MAPPED, moved, at_all), at_all);
            }
            Change::Discard => assert_eq!(libc::madvise(at_all, MAPPED, libc::MADV_DONTNEED), 0),
            Change::Fork => {
                let child = libc::fork();
                if child == 0 {
                    // What this changes is the child's.
                    at_all.cast::<u8>().add(OFF).write_bytes(0xee, LEN);
                    libc::_exit(0);
                }
                assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
            }
        }
    }
}

/// One thread changes what is mapped at an address, the other one uses it as soon as there is memory.
fn pages_change(time: Duration) {
    let mut both = Both::new("sv0");
    let at = map(None).expect("memory");
    let (changes, asked) = mpsc::channel();
    let (say, said) = mpsc::channel();
    let other = thread::spawn(move || {
        for what in asked {
            change(what, at);
            say.send(()).expect("the other thread");
        }
    });
    let all = [Change::Unmap, Change::Fixed, Change::Remap, Change::Discard, Change::Fork];
    let start = Instant::now();
    for (seed, what) in (0usize..).step_by(2).zip(all.iter().cycle()) {
        both.exchange(part(at), seed % 251);
        changes.send(*what).expect("the other thread");
        if matches!(what, Change::Unmap) {
            // The other thread may be in munmap(2) still.
            while map(Some(at)).is_none() {
                thread::yield_now();
            }
            both.exchange(part(at), seed % 241);
        }
        said.recv().expect("the other thread");
        if start.elapsed() > time && seed >= 20 {
            break;
        }
    }
    drop(changes);
    other.join().expect("the other thread");
    assert_eq!(both.by.registered(), "System by on demand");
}

#[test]
fn what_another_thread_maps_at_an_address_is_what_the_device_accesses() {
    pages_change(Duration::from_millis(500));
}

#[test]
#[ignore = "ten minutes"]
fn what_another_thread_maps_at_an_address_is_what_the_device_accesses_for_long() {
    pages_change(Duration::from_secs(600));
}
