//! All states of the model, and what is so in each; and that a broken rule is noticed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

use super::model::{Faults, World, Wrong};
use super::twins::Broken;

/// A hash that is quick to compute.
#[derive(Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Explores all; how many states there are, or what is wrong with one.
fn explore(broken: Broken, left: Faults) -> Result<usize, Wrong> {
    let first = World::new(broken, left, Instant::now());
    let mut known: HashMap<World, usize, BuildHasherDefault<Quick>> = HashMap::default();
    known.insert(first.clone(), 0);
    let mut todo = vec![first];
    // Who comes before each, by steps that nothing goes wrong in; and those that are where they are to be.
    let (mut before, mut good, mut free) = (vec![Vec::new()], vec![false], vec![true]);
    while let Some(world) = todo.pop() {
        let from = known[&world];
        world.check_halves()?;
        (good[from], free[from]) = (world.is_agreed(), !world.is_taken());
        for (then, is_due) in world.steps()? {
            let to = *known.entry(then).or_insert_with_key(|then| {
                todo.push(then.clone());
                before.push(Vec::new());
                good.push(false);
                free.push(true);
                before.len() - 1
            });
            if is_due {
                before[to].push(from);
            }
        }
        if known.len() > 3_000_000 {
            return Err("too many states");
        }
    }
    let mut reached: Vec<usize> = (0..good.len()).filter(|at| good[*at]).collect();
    while let Some(at) = reached.pop() {
        for from in std::mem::take(&mut before[at]) {
            if !std::mem::replace(&mut good[from], true) {
                reached.push(from);
            }
        }
    }
    match good.iter().zip(&free).all(|(good, free)| *good || !free) {
        true => Ok(good.len()),
        false => Err("there is a state from which no connection is made"),
    }
}

/// What goes wrong: each once, and two things together if `pairs`.
fn scenarios(pairs: bool) -> Vec<Faults> {
    let count = |kinds: &[usize]| {
        let of = |kind| kinds.iter().filter(|other| **other == kind).count() as u8;
        Faults {
            resets: of(0),
            ends: of(1),
            power: of(2),
            late: of(3),
            forgets: of(4),
            forged: of(5),
            cuts: of(6),
        }
    };
    let mut all: Vec<_> = (0..7).map(|one| count(&[one])).collect();
    if pairs {
        let both = (0..7).flat_map(|one| (0..=one).map(move |other| [one, other]));
        // Two other processes at a time make for too many states.
        all.extend(both.filter(|both| *both != [5, 5]).map(|both| count(&both)));
    }
    all
}

fn check(left: Faults) {
    let start = Instant::now();
    let found = explore(Broken::None, left);
    eprintln!("{left:?}: {found:?} in {:?}", start.elapsed());
    assert!(found.is_ok(), "{found:?} where {left:?}");
}

#[test]
fn two_live_peers_keep_their_connection_whatever_happens() {
    scenarios(false).into_iter().for_each(check);
}

#[test]
#[ignore = "minutes"]
fn two_live_peers_keep_their_connection_whatever_happens_twice() {
    scenarios(true).into_iter().for_each(check);
}

/// Each rule is needed: broken, where these go wrong.
#[test]
fn a_broken_rule_is_found() {
    let none = Faults::default();
    let all = [
        (Broken::Epoch, Faults { forgets: 1, ..none }),
        (Broken::Epoch, Faults { forged: 1, ..none }),
        (Broken::Instance, Faults { forged: 1, ..none }),
        (Broken::Instance, Faults { ends: 1, ..none }),
        (Broken::Confirmation, Faults { late: 1, ..none }),
        (Broken::Confirmation, Faults { ends: 1, ..none }),
        (Broken::KeepsCalling, none),
        (Broken::Promise, Faults { forged: 1, ..none }),
        (Broken::Promise, Faults { late: 1, ..none }),
        (Broken::Next, Faults { resets: 2, ..none }),
    ];
    for (broken, left) in all {
        let found = explore(broken, left);
        eprintln!("{broken:?} where {left:?}: {found:?}");
        assert!(found.is_err(), "{broken:?} makes no difference where {left:?}");
    }
}
