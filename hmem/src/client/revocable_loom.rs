//! A client that takes memory back while an adapter registers it, accesses it and ends that: under loom.

use std::sync::Arc as StdArc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::client::contract::Importer;
use crate::client::refused::Refused;
use crate::client::registrations::{Callbacks, Extent, Registrations};

/// Which of the adapter's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// This side posts to it.
    User = 0,
    /// The peer has the key of the registration, and uses it all the time.
    Peer = 1,
}

/// What the adapter has of the memory.
#[derive(Debug, Default)]
struct Hardware {
    is_registered: bool,
    /// It refuses to end the registration.
    refuses: bool,
    in_error: [bool; 2],
    /// A request of this side is under way that names the registration.
    is_under_way: bool,
    /// How many were executed.
    done: u32,
}

type Shared = StdArc<Mutex<Hardware>>;

impl Hardware {
    fn post(&mut self) {
        if !self.in_error[Which::User as usize] {
            assert!(self.is_registered, "the registration of a request has ended");
            self.is_under_way = true;
        }
    }

    fn complete(&mut self) {
        self.done += u32::from(std::mem::take(&mut self.is_under_way));
    }

    fn fail(&mut self, which: Which) {
        self.in_error[which as usize] = true;
        self.is_under_way &= which != Which::User;
    }

    /// The client's memory is another's from now on.
    fn check(&self) {
        assert!(!self.is_under_way, "a request goes on");
        assert!(!self.is_registered || self.in_error[Which::Peer as usize], "the peer has a key");
    }
}

struct Model;

impl Adapter for Model {
    type Mr = Shared;
    type Pair = (Shared, Which);
    type Refused = i32;

    fn deregister(mr: Shared) -> Result<(), i32> {
        let mut hardware = mr.lock().unwrap();
        assert!(!hardware.is_under_way, "the registration of a request ends below it");
        hardware.is_registered = hardware.refuses;
        if hardware.refuses { Err(libc::EBUSY) } else { Ok(()) }
    }

    fn fail((hardware, which): &(Shared, Which)) {
        hardware.lock().unwrap().fail(*which);
    }

    fn is_same(one: &(Shared, Which), other: &(Shared, Which)) -> bool {
        one.1 == other.1
    }
}

/// A client whose memory the adapter has.
struct Client(Shared);

impl Callbacks for Client {
    type Pages = ();

    fn acquire(&self, _addr: usize, _len: usize) -> Result<Option<usize>, Refused> {
        Ok(Some(0))
    }

    fn get_pages(&self, _of: &Extent) -> Result<(), Refused> {
        Ok(())
    }

    fn give_back(&self, _of: &Extent, _pages: Option<StdArc<()>>) {
        self.0.lock().unwrap().check();
    }
}

/// The name of the first registration, which follows the client's number.
const FIRST: u64 = 2;

/// The endpoint registers the memory, posts requests that name it, and ends the registration, as that of the
/// link verbs does; where the memory was taken back it does what is left of that.
fn accesses(all: &Registrations<Client>, hardware: &Shared, twin: Twin, n: usize) {
    let Ok(held) = all.hold((0, 8), true, Importer::Device) else { return };
    let name = held.used.of.name;
    // It was taken back before: another registration has the memory that is there now.
    if name != FIRST {
        return;
    }
    let own = Revocable::<Model>::new(Some((hardware.clone(), Which::Peer)));
    own.lock().twin = twin;
    let revoked = own.clone();
    let Ok(import) = all.import(&held, Box::new(move || revoked.revoke())) else { return };
    drop(held);
    let made = own.register(|| {
        hardware.lock().unwrap().is_registered = true;
        Ok::<_, i32>((hardware.clone(), ()))
    });
    if made.is_some() {
        let user = (hardware.clone(), Which::User);
        for _ in 0..n {
            if !own.begin(&user) {
                break;
            }
            hardware.lock().unwrap().post();
            hardware.lock().unwrap().complete();
            own.note_idle();
        }
    }
    let is_refused = own.end().is_err();
    assert!(!is_refused || hardware.lock().unwrap().refuses, "an end that was refused");
    drop(own);
    all.end_import(name, import);
}

fn beside_a_client_that_takes_it_back(twin: Twin, n: usize, refuses: bool) {
    // In so many orders none was executed, or all were.
    let outcomes: StdArc<[AtomicU32; 2]> = StdArc::default();
    let counted = outcomes.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let hardware: Shared = StdArc::new(Mutex::new(Hardware { refuses, ..Hardware::default() }));
        let all = Arc::new(Registrations::new(8));
        let id = all.register(Client(hardware.clone()));
        // The registration that is taken back is there.
        drop(all.hold((0, 8), true, Importer::Device).ok());
        let (beside, of_it) = (all.clone(), hardware.clone());
        let endpoint = thread::spawn(move || accesses(&beside, &of_it, twin, n));
        assert_eq!(all.invalidate(id, FIRST), Ok(()));
        endpoint.join().unwrap();
        assert_eq!(all.unregister(id), Ok(()));
        let hardware = hardware.lock().unwrap();
        hardware.check();
        counted[0].fetch_add(u32::from(hardware.done == 0), Relaxed);
        counted[1].fetch_add(u32::from(hardware.done as usize == n), Relaxed);
    });
    let [none, all] = outcomes.each_ref().map(|count| count.load(Relaxed));
    assert!(none > 0 && all > 0, "{none} orders without an access, {all} with all of them");
}

#[test]
fn memory_that_is_taken_back_is_accessed_by_no_request_and_no_key() {
    beside_a_client_that_takes_it_back(Twin::Sound, 1, false);
}

/// None was under way in between.
#[test]
fn memory_that_is_taken_back_is_accessed_by_no_later_request() {
    beside_a_client_that_takes_it_back(Twin::Sound, 2, false);
}

#[test]
fn a_registration_whose_end_is_refused_serves_its_peer_no_more() {
    beside_a_client_that_takes_it_back(Twin::Sound, 1, true);
}

#[test]
#[should_panic(expected = "the registration of a request ends below it")]
fn twin_that_ends_the_registration_before_its_queue_pairs() {
    beside_a_client_that_takes_it_back(Twin::DeregistersFirst, 1, false);
}

#[test]
#[should_panic(expected = "the registration of a request")]
fn twin_whose_requests_begin_unseen() {
    beside_a_client_that_takes_it_back(Twin::BeginsUnseen, 1, false);
}

/// The queue pair of the first request was not put in error, since that was over.
#[test]
#[should_panic(expected = "the registration of a request has ended")]
fn twin_whose_requests_begin_after_the_memory_was_taken_back() {
    beside_a_client_that_takes_it_back(Twin::BeginsRevoked, 2, false);
}

#[test]
#[should_panic(expected = "the peer has a key")]
fn twin_that_registers_what_was_taken_back_meanwhile() {
    beside_a_client_that_takes_it_back(Twin::RegistersRevoked, 1, false);
}

#[test]
#[should_panic(expected = "the peer has a key")]
fn twin_that_keeps_the_peer_of_a_registration_whose_end_is_refused() {
    beside_a_client_that_takes_it_back(Twin::KeepsPeer, 1, true);
}
