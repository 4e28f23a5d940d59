//! Devices of the stand-in.

use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::sync::Once;
use std::time::Duration;

use link_api::RmaCaps;
use stand_in::program::{self, Program};
use verbs::{Options, Verbs};

use crate::support::OfiHarness;

/// Has the stand-in, which reads the environment once, have these devices, and be so. Each test is a process.
pub fn set(devices: &str, others: &[(&str, &str)]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let fabric = std::process::id().to_string();
        let all = [("DEVICES", devices), ("FABRIC", fabric.as_str())];
        for (name, value) in all.iter().chain(others) {
            // SAFETY: nothing reads the environment yet: the stand-in is not loaded, and no link is open.
            unsafe { std::env::set_var(format!("VERBS_STAND_IN_{name}"), value) };
        }
    });
}

/// How the stand-in is found.
pub fn options() -> Options {
    let path = program::path("verbs_stand_in");
    // It is librdmacm, too.
    Options { library: Some(path.clone()), manager: Some(path), ..Options::default() }
}

pub fn stand_in() -> Program {
    Program::open(program::path("verbs_stand_in"))
}

/// Has a call of the stand-in fail from now on.
pub fn fail(call: &CStr, errno: i32) {
    stand_in().fail(call, 0, errno);
}

/// How often a call of the stand-in was made.
pub fn calls(name: &CStr) -> u64 {
    stand_in().calls(name)
}

/// A port of a device is up or down.
pub fn port(device: usize, port: u8, is_up: bool) {
    let symbol = stand_in().symbol("stand_in_verbs_port");
    // SAFETY: that function's type.
    let set: extern "C" fn(usize, u8, bool) = unsafe { std::mem::transmute(symbol) };
    set(device, port, is_up);
}

/// Bytes of the requests of a port that have succeeded.
pub fn moved(device: usize, port: u8) -> u64 {
    let symbol = stand_in().symbol("stand_in_verbs_moved");
    // SAFETY: that function's type.
    let moved: extern "C" fn(usize, u8) -> u64 = unsafe { std::mem::transmute(symbol) };
    moved(device, port)
}

fn hold(function: &str, are_held: bool) {
    let symbol = stand_in().symbol(function);
    // SAFETY: the type of those that are named here.
    let set: extern "C" fn(bool) = unsafe { std::mem::transmute(symbol) };
    set(are_held);
}

/// Calls of rdma_connect do not return.
pub fn hold_connects(are_held: bool) {
    hold("stand_in_verbs_hold_connects", are_held);
}

/// Nor does rdma_destroy_id of a connection that is requested, and not answered.
pub fn hold_ends(are_held: bool) {
    hold("stand_in_verbs_hold_ends", are_held);
}

pub fn open() -> Verbs {
    open_with(&options())
}

fn open_with(options: &Options) -> Verbs {
    let found = verbs::open(options, Ipv4Addr::LOCALHOST.into());
    found.unwrap_or_else(|why| panic!("no device can be opened: {why:?}")).0
}

/// Links over such devices, with nothing that goes another way.
pub fn harness(devices: &str, others: &[(&str, &str)]) -> OfiHarness<Verbs> {
    harness_with(devices, others, |_| {})
}

/// The same, opened otherwise.
pub fn harness_with(
    devices: &str,
    others: &[(&str, &str)],
    change: impl FnOnce(&mut Options),
) -> OfiHarness<Verbs> {
    set(devices, others);
    let mut options = options();
    change(&mut options);
    let mut harness = OfiHarness::new(move || Ok(open_with(&options)));
    harness.fallback = false;
    harness.caps = RmaCaps::HOST_GETS
        | RmaCaps::HOST_PUTS
        | RmaCaps::DEVICE_GETS
        | RmaCaps::REGIONS
        | RmaCaps::DATA
        | RmaCaps::FROM_DEVICES;
    harness
}

/// The same by two ports, where what has 1 KiB is long.
pub fn harness_with_rails(devices: &str, others: &[(&str, &str)]) -> OfiHarness<Verbs> {
    let mut harness = harness_with(devices, others, |options| options.rails = 2);
    harness.stripes = Some(1 << 10);
    harness
}

/// The same whose connections are closed as soon as nothing goes by them.
pub fn harness_that_closes(devices: &str, others: &[(&str, &str)]) -> OfiHarness<Verbs> {
    let mut harness = harness(devices, others);
    harness.idle = Some(Duration::from_micros(100));
    harness
}

/// The same of devices by which no memory is accessed.
pub fn harness_without_accesses(devices: &str, others: &[(&str, &str)]) -> OfiHarness<Verbs> {
    let mut harness = harness(devices, others);
    harness.caps = RmaCaps::empty();
    harness
}
