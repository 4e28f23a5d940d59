//! The lock under loom: an owner that enters several times, and another thread that ends that. membarrier(2)
//! is modelled by a fence on both sides, as in `link`'s `shm::wake`.

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::fence;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{Entry, Words, enter, enter_with_mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twin {
    Sound,
    /// There are no fences.
    Fences,
    /// The owner does not look again.
    Look,
    /// Leaving is no release.
    Release,
}

struct Model {
    owner: AtomicUsize,
    inside: AtomicUsize,
    twin: Twin,
    mutex: Mutex<()>,
    value: UnsafeCell<u32>,
}

// SAFETY: loom checks every access to the value.
unsafe impl Sync for Model {}

impl Words for Model {
    fn owner(&self) -> usize {
        // The twin that does not look again finds itself there.
        if self.twin == Twin::Look && self.inside.load(Relaxed) != 0 {
            return OWNER;
        }
        self.owner.load(Relaxed)
    }

    fn set_owner(&self, owner: usize) {
        self.owner.store(owner, Relaxed);
    }

    fn inside(&self) -> bool {
        self.inside.load(Acquire) != 0
    }

    fn set_inside(&self, inside: bool) {
        let order = if self.twin == Twin::Release { Relaxed } else { Release };
        self.inside.store(usize::from(inside), order);
    }

    fn light(&self) {
        if self.twin != Twin::Fences {
            fence(SeqCst);
        }
    }

    fn heavy(&self) -> bool {
        self.light();
        true
    }
}

const OWNER: usize = 100;

/// `patient`: it waits for the owner; else it may give up.
fn add(model: &Model, me: usize, patient: bool) -> u32 {
    let add = || model.value.with_mut(|value| unsafe { *value += 1 });
    if enter(model, me) == Entry::Owner {
        add();
        model.set_inside(false);
        return 1;
    }
    let held = model.mutex.lock().unwrap();
    let pause = || {
        thread::yield_now();
        patient
    };
    match enter_with_mutex(model, me, pause) {
        Ok(true) => {
            drop(held);
            add();
            model.set_inside(false);
            1
        }
        Ok(false) => {
            add();
            1
        }
        Err(_) => 0,
    }
}

fn of(owner: usize, twin: Twin) -> Arc<Model> {
    let (owner, inside) = (AtomicUsize::new(owner), AtomicUsize::new(0));
    Arc::new(Model { owner, inside, twin, mutex: Mutex::new(()), value: UnsafeCell::new(0) })
}

fn two_threads(twin: Twin, patient: bool) {
    loom::model(move || {
        let model = of(OWNER, twin);
        let owner = model.clone();
        let owning = thread::spawn(move || add(&owner, OWNER, true) + add(&owner, OWNER, true));
        let other = add(&model, OWNER + 1, patient);
        assert!(other == 1 || !patient);
        let both = owning.join().unwrap() + other;
        assert_eq!(model.value.with(|value| unsafe { *value }), both);
    });
}

#[test]
fn one_thread_is_inside_at_a_time() {
    two_threads(Twin::Sound, true);
}

#[test]
fn an_owner_that_is_not_waited_for_stays_one() {
    two_threads(Twin::Sound, false);
}

/// Two threads that have not entered yet: one becomes the owner.
#[test]
fn one_of_two_newcomers_becomes_the_owner() {
    loom::model(|| {
        let model = of(0, Twin::Sound);
        let other = model.clone();
        let entering = thread::spawn(move || add(&other, OWNER, true));
        let both = add(&model, OWNER + 1, true) + entering.join().unwrap();
        assert_eq!((both, model.value.with(|value| unsafe { *value })), (2, 2));
    });
}

#[test]
#[should_panic]
fn twin_without_fences_lets_two_in() {
    two_threads(Twin::Fences, true);
}

#[test]
#[should_panic]
fn twin_that_does_not_look_again_lets_two_in() {
    two_threads(Twin::Look, true);
}

#[test]
#[should_panic]
fn twin_that_leaves_without_a_release_races() {
    two_threads(Twin::Release, true);
}
