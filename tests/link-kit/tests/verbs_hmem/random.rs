//! Random messages and accesses between devices, by second queue pairs: contents, and what is left at the end.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::apart::{domains, local, pairs, registrations, turn};
use super::duo::link_with;
use super::*;

/// What is done between closings, which may come at any time: from or into a device at each end, or not.
#[derive(Clone, Copy, Debug)]
enum Step {
    Message(usize, bool, bool),
    Back(usize, bool, bool),
    Write(usize, bool),
    Read(usize, bool),
    /// So many polls in which nothing is asked.
    Idle(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![1..600usize, 10_000..100_000usize, 64_000..100_000usize];
    let one = prop_oneof![
        (len(), any::<bool>(), any::<bool>()).prop_map(|(len, from, into)| Step::Message(len, from, into)),
        (len(), any::<bool>(), any::<bool>()).prop_map(|(len, from, into)| Step::Back(len, from, into)),
        (len(), any::<bool>()).prop_map(|(len, device)| Step::Write(len, device)),
        (len(), any::<bool>()).prop_map(|(len, device)| Step::Read(len, device)),
        (0..300usize).prop_map(Step::Idle),
    ];
    proptest::collection::vec(one, 1..40)
}

fn run(duo: &mut Duo<Verbs>, driver: &Driver, memory: Span, steps: &[Step]) {
    let to = duo.a.peer;
    for (seed, step) in steps.iter().enumerate() {
        match *step {
            Step::Message(len, from, into) => {
                duo.send(&[local(driver, from, len, seed)], &[local(driver, into, len, 99)]);
            }
            Step::Back(len, from, into) => {
                turn(duo);
                duo.send(&[local(driver, from, len, seed)], &[local(driver, into, len, 99)]);
                turn(duo);
            }
            Step::Write(len, device) => {
                let from = [local(driver, device, len, seed)];
                duo.post(|a| a.domain.rma(a.ep, &write(to, &from, &[there(0, len, 9)], 1)));
                assert_eq!(duo.complete(1, 0).0[0].err, None);
                assert!(text(&[memory])[..len] == pattern(len, seed));
            }
            Step::Read(len, device) => {
                let into = [local(driver, device, len, 99)];
                duo.post(|a| a.domain.rma(a.ep, &read(to, &into, &[there(0, len, 9)], 1)));
                assert_eq!(duo.complete(1, 0).0[0].err, None);
                assert!(text(&into) == text(&[memory])[..len]);
            }
            Step::Idle(polls) => {
                for _ in 0..polls {
                    assert!(duo.a.next().is_none() && duo.b.next().is_none());
                }
            }
        }
    }
}

fn nothing_is_lost(device: &str, idle: Option<Duration>) {
    set(device, &[]);
    let driver = driver(2);
    // What is refused while a device looks for how much goes inline.
    drop(open());
    let refused = 3 * pairs();
    let mut duo = Duo::linked(|counts| link_with(open(), counts, |options| options.idle = idle));
    let memory = filled(&driver, 100_000, 1);
    duo.b.domain.mr_reg(&Reg { iov: &[memory], access: BOTH, key: Some(9) }).expect("a key");
    let (mut by_device, ended, mut runner) = (0, ibv(c"ibv_dealloc_pd"), TestRunner::default());
    for n in 1..=16 {
        let all = steps().new_tree(&mut runner).expect("steps").current();
        run(&mut duo, &driver, memory, &all);
        by_device += duo.counts.take()[2];
        // Where all is quick nothing may have been idle for so long.
        let start = Instant::now();
        while idle.is_some() && n % 4 == 0 && domains() > 2 {
            assert!(start.elapsed() < Duration::from_secs(30), "it is not closed");
            duo.settle();
        }
    }
    assert!(by_device > 0, "accesses by the device");
    let closed = ibv(c"ibv_dealloc_pd") - ended;
    assert!(idle.is_none() || closed >= 4, "{closed} domains were given back");
    drop(duo);
    assert_eq!((pairs(), domains(), registrations()), (refused, 0, 0), "what is left");
}

#[test]
fn nothing_is_lost_between_devices() {
    nothing_is_lost("sv0", None);
}

#[test]
fn nothing_is_lost_between_devices_where_connections_are_closed_at_any_time() {
    nothing_is_lost("sv0", Some(Duration::from_micros(100)));
}

#[test]
fn nothing_is_lost_between_devices_on_a_small_device() {
    nothing_is_lost("sv0:nosrq,inline=16,sge=1,reads=1", Some(Duration::from_millis(1)));
}
