//! What is pending in the domains of this process, for `strait doctor`: a thread looks into them once a
//! second, and writes it to the journal when a doctor asks. Without a journal there is no such thread.

use std::collections::HashMap;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use engine::Pending;
use link::usage::json_string;
use runtime::Observed;
use wire::Addr;

use crate::domain::Shared;

/// Between two questions whether a doctor asks, and how many of these pass between two looks for new
/// operations.
const PERIOD: Duration = Duration::from_millis(200);
const PERIODS: u32 = 5;
/// How long a domain is tried in which threads are.
const WITHIN: Duration = Duration::from_millis(500);
/// Operations of a domain that are written, at most.
const MOST: usize = 64;

/// Whether domains are looked into, so that each needs a lock that any thread may take.
pub(crate) fn is_observing() -> bool {
    link::journal::is_open()
}

/// Includes a domain in what is written when a doctor asks what is pending.
pub(crate) fn observe(shared: &Arc<Shared>) {
    static STARTED: Once = Once::new();
    if is_observing() {
        runtime::observable(shared);
        STARTED.call_once(|| {
            if let Err(e) = runtime::start_observer(watch) {
                log::warn!("strait doctor cannot see what this process waits for: {e}");
            }
        });
    }
}

/// Since when operations are pending that a look has found, by domain, kind and name.
type Since = HashMap<(usize, &'static str, (u32, u64)), Instant>;

fn watch() {
    let mut since = Since::new();
    let mut answered = false;
    for period in 1u32.. {
        std::thread::sleep(PERIOD);
        let asked = link::journal::is_asked();
        if !asked && period % PERIODS != 0 {
            continue;
        }
        let all = runtime::observe(MOST, WITHIN);
        age(&mut since, &all);
        if asked && !answered {
            write(&since, &all);
        }
        answered = asked;
    }
}

fn keyed(all: &[Observed]) -> impl Iterator<Item = ((usize, &'static str, (u32, u64)), &Pending)> {
    all.iter().enumerate().flat_map(|(at, observed)| {
        let pending = match observed {
            Observed::Pending(pending) => &pending[..],
            Observed::Busy | Observed::Closed => &[],
        };
        pending.iter().map(move |one| ((at, one.kind.name(), one.name), one))
    })
}

/// Forgets what is over, and takes in what is new.
fn age(since: &mut Since, all: &[Observed]) {
    let now = Instant::now();
    let aged = keyed(all).map(|(key, _)| (key, since.get(&key).copied().unwrap_or(now))).collect();
    // Of a domain in which a thread stays nothing is known to be over.
    let unknown = |at: usize| matches!(all.get(at), Some(Observed::Busy));
    let kept: Vec<_> = since.iter().filter(|((at, ..), _)| unknown(*at)).map(|(k, v)| (*k, *v)).collect();
    *since = aged;
    since.extend(kept);
}

fn write(since: &Since, all: &[Observed]) {
    for (key, one) in keyed(all) {
        let (tag, ignore) = one.tag.map_or((None, None), |(tag, ignore)| (Some(tag), Some(ignore)));
        let age = since.get(&key).map_or(0, |since| since.elapsed().as_millis());
        let hex = |n: Option<u64>| n.map_or("null".into(), |n| format!("\"{n:#x}\""));
        let addr = |addr: &Option<Addr>| addr.map_or("null".into(), |a| json_string(&a.to_string()));
        let members = [
            ("kind", json_string(one.kind.name())),
            ("endpoint", addr(&one.endpoint)),
            ("peer", addr(&one.peer)),
            ("tag", hex(tag)),
            ("ignore", hex(ignore)),
            ("bytes", one.len.to_string()),
            ("done", one.done.to_string()),
            ("millis", age.to_string()),
            ("state", json_string(one.state)),
        ];
        link::journal::note("pending", &members);
    }
    let count = |of: &Observed| all.iter().filter(|one| *one == of).count().to_string();
    let members = [
        ("domains", all.len().to_string()),
        ("busy", count(&Observed::Busy)),
        ("closed", count(&Observed::Closed)),
    ];
    link::journal::note("asked", &members);
}

#[cfg(test)]
mod tests {
    use engine::PendingKind;

    use super::*;

    fn pending(name: u64) -> Pending {
        Pending {
            kind: PendingKind::Receive,
            name: (1, name),
            endpoint: None,
            peer: None,
            tag: None,
            len: 8,
            done: 0,
            state: "",
        }
    }

    #[test]
    fn an_operation_ages_from_the_first_look_that_finds_it() {
        let mut since = Since::new();
        let key = |name| (0, "receive", (1, name));
        age(&mut since, &[Observed::Pending(vec![pending(1)])]);
        let first = since[&key(1)];
        std::thread::sleep(Duration::from_millis(2));
        age(&mut since, &[Observed::Pending(vec![pending(1), pending(2)])]);
        assert_eq!(since[&key(1)], first);
        assert!(since[&key(2)] > first);
        age(&mut since, &[Observed::Busy]);
        assert_eq!(since.len(), 2);
        age(&mut since, &[Observed::Pending(vec![pending(2)])]);
        assert_eq!(since.keys().collect::<Vec<_>>(), [&key(2)]);
    }
}
