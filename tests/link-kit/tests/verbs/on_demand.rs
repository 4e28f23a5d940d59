//! Memory that the program has not registered, by on-demand registrations: one serves all accesses, whatever is
//! mapped there, and what a device does not serve so is pinned for each access.

use std::time::Duration;

use below::Remote as _;
use hmem::Span;
use link_api::Way;

use crate::changes::{Both, LEN, MAPPED, long, map, pages_change, part};
use crate::device::{calls, stand_in};

impl Both {
    /// What three exchanges of this memory register, and what the path says.
    fn registers(&mut self, local: Span) -> (u64, String) {
        let before = calls(c"ibv_reg_mr");
        (0..3).for_each(|seed| self.exchange(local, 2 * seed));
        (calls(c"ibv_reg_mr") - before, self.by.registered())
    }
}

#[test]
fn one_registration_serves_all_accesses_of_memory_and_what_is_mapped_there_next() {
    let mut both = Both::new("sv0", true);
    let at = map(None).expect("memory");
    // Its own memory and its places, a registration that is read alone, and one that is written.
    assert_eq!(both.registers(part(at)), (4, "System by on demand".into()));
    let before = calls(c"ibv_dereg_mr");
    for seed in 0..20 {
        // SAFETY: pages that no access uses.
        assert_eq!(unsafe { libc::munmap(at as *mut _, MAPPED) }, 0);
        map(Some(at)).expect("the same address");
        assert_eq!(both.registers(part(at)).0, 0, "round {seed}");
    }
    assert_eq!(calls(c"ibv_dereg_mr"), before);
}

#[test]
fn a_device_that_copies_wrong_bytes_on_demand_pins_memory() {
    let mut both = Both::new("sv0:odpwrong", true);
    let (registrations, said) = both.registers(part(map(None).expect("memory")));
    assert_eq!(registrations, 2 + 2 * 3, "each access, and once what was compared");
    let why =
        "System by address (not on demand: what a transfer of memory on demand has brought: Bad message";
    assert!(said.starts_with(why), "{said}");
}

#[test]
fn a_device_without_on_demand_registrations_pins_memory() {
    let mut both = Both::new("sv0:noodp", true);
    let (registrations, said) = both.registers(part(map(None).expect("memory")));
    assert_eq!(registrations, 2 * 3);
    assert!(
        said.starts_with("System by address (not on demand: odp_caps: Operation not supported"),
        "{said}"
    );
}

/// No device faults this memory in from now on.
fn no_faults(span: Span) {
    let hook = stand_in().symbol("stand_in_verbs_no_faults");
    // SAFETY: that function's type.
    let hook: extern "C" fn(u64, u64) = unsafe { std::mem::transmute(hook) };
    hook(span.addr(), span.len() as u64);
}

#[test]
fn memory_that_the_device_does_not_fault_in_is_pinned_and_other_memory_is_not() {
    let mut both = Both::new("sv0", true);
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
    let mut both = Both::new("sv0", true);
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
    let mut both = Both::new("sv0", true);
    let local = part(map(None).expect("memory"));
    // Neither its first nor its last byte.
    no_faults(local.part(LEN / 2, 1).expect("a byte inside"));
    assert!(!both.access(Way::Put, local), "the device has no way to it");
    both.connect();
    both.exchange(local, 2);
    both.exchange(local, 4);
}

#[test]
fn what_another_thread_maps_at_an_address_is_what_the_device_accesses() {
    for_some(Duration::from_millis(500));
}

#[test]
#[ignore = "ten minutes"]
fn what_another_thread_maps_at_an_address_is_what_the_device_accesses_for_long() {
    for_some(long());
}

fn for_some(time: Duration) {
    let mut both = Both::new("sv0", true);
    pages_change(&mut both, time);
    assert_eq!(both.by.registered(), "System by on demand");
}
