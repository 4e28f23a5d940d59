//! The checks of memory that every link passes, of memory that is none of the host's own: dma-bufs of the program, and
//! memory of a client.

use hmem::Span;
use verbs::Verbs;

use super::client_memory::{Memory, Says};
use super::device::harness;
use super::own::lasting;
use crate::support::OfiHarness;

/// Links of a device whose checks are of such memory.
fn over(device: &str, memory: impl FnMut(usize) -> Span + 'static) -> OfiHarness<Verbs> {
    let mut harness = harness(device, &[]);
    harness.memory = Some(Box::new(memory));
    harness
}

fn of_dmabufs(device: &str) -> OfiHarness<Verbs> {
    over(device, |len| {
        let span = lasting(len, 0);
        hmem::write(&[span], 0, &vec![0; len]);
        span
    })
}

/// Parts of one client's memory, each of which begins inside of a page.
fn of_client(device: &str, says: Says) -> OfiHarness<Verbs> {
    const ALL: usize = 64 << 20;
    let (memory, _) = Memory::register(ALL, says);
    let mut next = 0;
    over(device, move |len| {
        let span = memory.part(next + 100, len);
        next += (len + 100).next_multiple_of(4096);
        span
    })
}

mod dmabufs {
    use super::of_dmabufs;
    link_kit::conform! { of_dmabufs("sv0"); handles flights regions_in_flight }
}

mod dmabufs_on_a_small_device {
    use super::of_dmabufs;
    link_kit::conform! { of_dmabufs("sv0:nosrq,inline=16,sge=1,reads=1"); handles flights regions_in_flight }
}

mod clients {
    use super::{Says, of_client};
    link_kit::conform! { of_client("sv0", Says::Dmabuf); handles flights regions_in_flight }
}

mod clients_where_the_driver_repeats_requests {
    use super::{Says, of_client};
    link_kit::conform! { of_client("sv0:rxe,repeats", Says::Dmabuf); handles flights regions_in_flight }
}

mod addresses_of_clients {
    use super::{Says, of_client};
    link_kit::conform! { of_client("sv0:nodmabuf", Says::Address); handles flights regions_in_flight }
}
