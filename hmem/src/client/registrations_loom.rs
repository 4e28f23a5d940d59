//! Clients that go, and memory that goes, while callbacks run: under loom.

use std::sync::Arc as StdArc;

use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::SeqCst;
use loom::thread;

use super::*;

/// A client of memory at 0..100, as it sees itself.
#[derive(Default)]
struct Seen {
    /// It is unregistered: no callback may run.
    over: AtomicUsize,
    running: AtomicUsize,
    /// Which memory is there.
    generation: AtomicUsize,
    /// What it has given, and what came back.
    acquired: AtomicUsize,
    released: AtomicUsize,
    pinned: AtomicUsize,
    put: AtomicUsize,
    /// Calls of get_pages that it refuses.
    refuses: AtomicUsize,
    /// A device of its first registration: whether that has the memory.
    has: Mutex<Has>,
    /// Calls that take it from there.
    revoking: AtomicUsize,
}

#[derive(Debug, Default, PartialEq)]
enum Has {
    #[default]
    NotYet,
    Registered,
    Revoked,
    Ended,
}

impl Seen {
    fn call(&self) {
        self.running.fetch_add(1, SeqCst);
        assert_eq!(self.over.load(SeqCst), 0, "called after unregister");
        self.running.fetch_sub(1, SeqCst);
    }
}

struct Model(StdArc<Seen>);

impl Callbacks for Model {
    type Pages = usize;

    fn acquire(&self, addr: usize, _len: usize) -> Result<Option<usize>, Refused> {
        self.0.call();
        if addr >= 100 {
            return Ok(None);
        }
        self.0.acquired.fetch_add(1, SeqCst);
        Ok(Some(self.0.generation.load(SeqCst)))
    }

    fn get_pages(&self, of: &Extent) -> Result<usize, Refused> {
        self.0.call();
        let left = self.0.refuses.load(SeqCst);
        if left > 0 {
            self.0.refuses.store(left - 1, SeqCst);
            return Err(libc::ENOMEM.into());
        }
        self.0.pinned.fetch_add(1, SeqCst);
        Ok(of.ctx)
    }

    fn give_back(&self, of: &Extent, pages: Option<StdArc<usize>>) {
        self.0.call();
        assert!(of.name != FIRST || *self.0.has.lock().unwrap() != Has::Registered, "a device has it");
        if pages.is_some() {
            self.0.put.fetch_add(1, SeqCst);
        }
        self.0.released.fetch_add(1, SeqCst);
    }
}

struct Side {
    all: Registrations<Model>,
    seen: StdArc<Seen>,
    id: u64,
}

/// The name of the first registration, which follows the client's number.
const FIRST: u64 = 2;

impl Side {
    fn unregister(&self) {
        self.all.unregister(self.id).unwrap();
        self.seen.over.store(1, SeqCst);
        assert_eq!(self.seen.running.load(SeqCst), 0, "runs after unregister");
    }

    /// With no callback left, all has come back.
    fn check(&self) {
        let count = |n: &AtomicUsize| n.load(SeqCst);
        assert_eq!(count(&self.seen.acquired), count(&self.seen.released), "not released");
        assert_eq!(count(&self.seen.pinned), count(&self.seen.put), "not put");
    }
}

/// `first` alone, then `one` beside `other`, in each order; then `last`.
fn model(
    twin: Twin,
    bound: usize,
    first: fn(&Side),
    one: fn(&Side),
    other: fn(&Side),
    last: impl Fn(&Side) + Sync + Send + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let all = Registrations { twin, ..Registrations::new(bound) };
        let seen = StdArc::new(Seen::default());
        let id = all.register(Model(seen.clone()));
        let side = Arc::new(Side { all, seen, id });
        first(&side);
        let beside = side.clone();
        let thread = thread::spawn(move || one(&beside));
        other(&side);
        thread.join().unwrap();
        last(&side);
    });
}

fn nothing(_: &Side) {}

fn is_stale(side: &Side) -> bool {
    side.all.use_one((0, 8), true, Importer::Process).is_err_and(|e| e.errno == libc::ESTALE)
}

fn touch(side: &Side) {
    drop(side.all.hold((0, 8), true, Importer::Process));
}

fn unregister_beside(twin: Twin, first: fn(&Side), one: fn(&Side)) {
    model(twin, 1, first, one, Side::unregister, Side::check);
}

/// An operation whose client has not been asked yet.
fn unregister_beside_an_operation(twin: Twin) {
    unregister_beside(twin, nothing, touch);
}

#[test]
fn no_callback_of_an_operation_runs_after_unregister() {
    unregister_beside_an_operation(Twin::Sound);
}

#[test]
#[should_panic(expected = "not released")]
fn twin_that_does_not_wait_for_acquire() {
    unregister_beside_an_operation(Twin::Running);
}

#[test]
#[should_panic(expected = "deadlock")]
fn twin_whose_operations_end_silently() {
    unregister_beside_an_operation(Twin::Silent);
}

fn unregister_beside_an_invalidation(twin: Twin) {
    unregister_beside(twin, touch, |side| {
        let _ = side.all.invalidate(side.id, FIRST);
    });
}

#[test]
fn no_callback_of_an_invalidation_runs_after_unregister() {
    unregister_beside_an_invalidation(Twin::Sound);
}

#[test]
#[should_panic(expected = "unregister")]
fn twin_whose_registrations_leave_the_list_before_their_callbacks() {
    unregister_beside_an_invalidation(Twin::LeavesListFirst);
}

#[test]
fn no_callback_of_an_eviction_runs_after_unregister() {
    unregister_beside(Twin::Sound, touch, |side| drop(side.all.hold((50, 8), true, Importer::Process)));
}

#[test]
fn no_callback_of_a_registration_that_got_no_pages_runs_after_unregister() {
    unregister_beside(Twin::Sound, |side| side.seen.refuses.store(1, SeqCst), touch);
}

fn end(side: &Side) {
    side.unregister();
    side.check();
}

#[test]
fn two_operations_on_one_place_leave_nothing_behind() {
    model(Twin::Sound, 1, nothing, touch, touch, end);
    // The first one to ask is refused.
    model(Twin::Sound, 1, |side| side.seen.refuses.store(1, SeqCst), touch, touch, end);
}

#[test]
fn two_invalidations_have_given_back_when_they_return() {
    let invalidate = |side: &Side| {
        let _ = side.all.invalidate(side.id, FIRST);
        side.check();
    };
    model(Twin::Sound, 1, touch, invalidate, invalidate, end);
}

fn copy_beside_an_invalidation(twin: Twin) {
    let copies = |side: &Side| {
        let Ok(held) = side.all.hold((0, 8), true, Importer::Process) else { return };
        let name = held.used.of.name;
        let (seen, before) = (&side.seen, side.seen.released.load(SeqCst));
        // The other thread ends the first registration alone.
        assert!(name != FIRST || (before == 0 && seen.released.load(SeqCst) == 0), "given back in use");
    };
    let invalidates = |side: &Side| side.all.invalidate(side.id, FIRST).unwrap();
    model(twin, 1, touch, copies, invalidates, end);
}

#[test]
fn what_is_in_use_is_not_given_back() {
    copy_beside_an_invalidation(Twin::Sound);
}

#[test]
#[should_panic(expected = "given back in use")]
fn twin_that_does_not_wait_for_operations() {
    copy_beside_an_invalidation(Twin::InUse);
}

/// The invalidation of `FIRST`, after which other memory is at its address.
fn replace(side: &Side) {
    if side.all.invalidate(side.id, FIRST).is_ok() {
        side.seen.generation.fetch_add(1, SeqCst);
    }
}

/// What is registered is out of reach once it has been invalidated, as long as it is registered.
fn pin_beside_an_invalidation(twin: Twin) {
    let pins = |side: &Side| {
        // Not the registration that is invalidated: other memory.
        let Ok(name) = side.all.pin(0, 8, true) else { return };
        if side.seen.generation.load(SeqCst) > 0 && name == FIRST {
            assert!(is_stale(side), "open after invalidate");
        }
        side.all.unpin(name);
    };
    model(twin, 1, nothing, pins, replace, end);
}

#[test]
fn an_invalidation_between_finding_and_registering_leaves_nothing_open() {
    pin_beside_an_invalidation(Twin::Sound);
}

#[test]
#[should_panic(expected = "open after invalidate")]
fn twin_that_registers_what_was_invalidated_meanwhile() {
    pin_beside_an_invalidation(Twin::PinsEnded);
}

fn other_memory_beside_an_invalidation(twin: Twin) {
    let first = |side: &Side| assert_eq!(side.all.pin(0, 8, false), Ok(FIRST));
    // Not covered by the registration, which is for reading.
    let writes = |side: &Side| {
        let used = side.all.use_one((0, 8), true, Importer::Process);
        assert!(used.is_err() || used.is_ok_and(|used| used.of.ctx == 0), "other memory is reached");
    };
    model(twin, 8, first, writes, replace, |side| {
        side.all.unpin(FIRST);
        end(side);
    });
}

/// Other memory at the address is out of reach until the registration is closed.
#[test]
fn registration_does_not_reach_memory_that_replaced_its_own() {
    other_memory_beside_an_invalidation(Twin::Sound);
}

#[test]
#[should_panic(expected = "other memory is reached")]
fn twin_that_looks_for_invalidated_memory_only_before_it_asks() {
    other_memory_beside_an_invalidation(Twin::StaleOnce);
}

fn map_for_device(side: &Side) -> Option<Held<'_, Model>> {
    side.all.hold((0, 8), true, Importer::Device).ok()
}

/// A device registers memory, as soon as it was imported, and ends that, while the client takes the memory back.
fn device_beside_an_invalidation(twin: Twin) {
    let device = |side: &Side| {
        let Some(held) = map_for_device(side) else { return };
        let (name, seen) = (held.used.of.name, side.seen.clone());
        if name != FIRST {
            return;
        }
        let revoke = move || {
            seen.revoking.fetch_add(1, SeqCst);
            *seen.has.lock().unwrap() = Has::Revoked;
            seen.revoking.fetch_sub(1, SeqCst);
        };
        let Ok(import) = side.all.import(&held, Box::new(revoke)) else { return };
        drop(held);
        let seen = &side.seen;
        let mut has = seen.has.lock().unwrap();
        if *has == Has::NotYet {
            *has = Has::Registered;
        }
        drop(has);
        *seen.has.lock().unwrap() = Has::Ended;
        side.all.end_import(name, import);
        assert_eq!(seen.revoking.load(SeqCst), 0, "revoked behind its end");
    };
    let first = |side: &Side| drop(map_for_device(side));
    let invalidates = |side: &Side| side.all.invalidate(side.id, FIRST).unwrap();
    model(twin, 8, first, device, invalidates, end);
}

#[test]
fn what_a_device_has_is_taken_from_it_before_it_is_given_back() {
    device_beside_an_invalidation(Twin::Sound);
}

#[test]
#[should_panic(expected = "a device has it")]
fn twin_that_gives_back_what_a_device_has() {
    device_beside_an_invalidation(Twin::RevokesLast);
}

#[test]
#[should_panic(expected = "revoked behind its end")]
fn twin_whose_devices_do_not_wait_for_what_revokes() {
    device_beside_an_invalidation(Twin::EndsUnwaited);
}
