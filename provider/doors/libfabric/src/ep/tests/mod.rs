//! Endpoints as an application sees them: through the tables of the ABI, sending to themselves.

use std::ptr;

use super::*;
use crate::fabric;
use crate::tests::{call, call_fid, close, leak};

mod asked;
mod counted;
mod life;
mod link_ops;
mod moves;
mod several;
mod waits;

/// A domain with a queue and an address vector.
struct World {
    fabric: *mut fi::fid_fabric,
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    cq: *mut fi::fid_cq,
    av: *mut fi::fid_av,
}

impl World {
    fn new() -> World {
        let attr = leak(fi::fi_fabric_attr { api_version: fi::FI_VERSION(2, 1), ..Default::default() });
        let mut fabric = ptr::null_mut();
        // SAFETY: valid attributes, and a place for the answer.
        assert_eq!(unsafe { fabric::open(attr, &mut fabric, ptr::null_mut()) }, 0);
        let caps = fi::FI_MSG
            | fi::FI_TAGGED
            | fi::FI_RMA
            | fi::FI_ATOMIC
            | fi::FI_TRIGGER
            | fi::FI_MULTI_RECV
            | fi::FI_DIRECTED_RECV;
        let domain_attr = fi::fi_domain_attr { threading: fi::FI_THREAD_SAFE, ..Default::default() };
        let ep_attr = fi::fi_ep_attr { type_: fi::FI_EP_RDM, ..Default::default() };
        let info = leak(fi::fi_info {
            caps,
            addr_format: fi::FI_SOCKADDR_IN,
            domain_attr: leak(domain_attr),
            ep_attr: leak(ep_attr),
            tx_attr: leak(fi::fi_tx_attr { size: 100, ..Default::default() }),
            rx_attr: leak(fi::fi_rx_attr { size: 200, ..Default::default() }),
            fabric_attr: attr,
            ..Default::default()
        });
        let mut domain = ptr::null_mut();
        assert_eq!(call!(fabric, ops.domain(info, &mut domain, ptr::null_mut())), 0);
        let mut cq = ptr::null_mut();
        let attr = &mut fi::fi_cq_attr { format: fi::FI_CQ_FORMAT_TAGGED, ..Default::default() };
        assert_eq!(call!(domain, ops.cq_open(attr, &mut cq, ptr::null_mut())), 0);
        let mut av = ptr::null_mut();
        let attr = &mut fi::fi_av_attr { type_: fi::FI_AV_TABLE, ..Default::default() };
        assert_eq!(call!(domain, ops.av_open(attr, &mut av, ptr::null_mut())), 0);
        World { fabric, domain, info, cq, av }
    }

    fn cntr(&self) -> *mut fi::fid_cntr {
        let mut cntr = ptr::null_mut();
        let attr = &mut fi::fi_cntr_attr::default();
        assert_eq!(call!(self.domain, ops.cntr_open(attr, &mut cntr, ptr::null_mut())), 0);
        cntr
    }

    /// An endpoint that is not bound to anything.
    fn ep(&self) -> *mut fi::fid_ep {
        let mut ep = ptr::null_mut();
        assert_eq!(call!(self.domain, ops.endpoint(self.info, &mut ep, ptr::null_mut())), 0);
        ep
    }

    fn bind(&self, ep: *mut fi::fid_ep, cq_flags: u64) {
        assert_eq!(bind_to(ep, self.cq, cq_flags), 0);
        assert_eq!(bind_to(ep, self.av, 0), 0);
    }

    /// An endpoint ready for use, and its address.
    fn enabled(&self, cq_flags: u64) -> (*mut fi::fid_ep, fi::fi_addr_t) {
        let ep = self.ep();
        self.bind(ep, fi::FI_TRANSMIT | fi::FI_RECV | cq_flags);
        assert_eq!(enable(ep), 0);
        (ep, self.insert(ep))
    }

    fn insert(&self, ep: *mut fi::fid_ep) -> fi::fi_addr_t {
        let name = name(ep);
        let mut addr = fi::FI_ADDR_UNSPEC;
        let n = call!(self.av, ops.insert(name.as_ptr().cast(), 1, &mut addr, 0, ptr::null_mut()));
        assert_eq!(n, 1);
        addr
    }

    /// The next completion, or the error there is instead.
    fn next(&self) -> Result<fi::fi_cq_tagged_entry, c_int> {
        self.soon().expect("no completion came")
    }

    /// As [`World::next`]; `None` if none comes.
    fn soon(&self) -> Option<Result<fi::fi_cq_tagged_entry, c_int>> {
        for _ in 0..10_000 {
            let mut entry = fi::fi_cq_tagged_entry::default();
            let n = call!(self.cq, ops.read((&raw mut entry).cast(), 1));
            if n == 1 {
                return Some(Ok(entry));
            }
            if n == -(fi::FI_EAVAIL as isize) {
                let mut entry = fi::fi_cq_err_entry::default();
                assert_eq!(call!(self.cq, ops.readerr(&mut entry, 0)), 1);
                return Some(Err(entry.err));
            }
            assert_eq!(n, -(fi::FI_EAGAIN as isize));
        }
        None
    }

    /// Contexts of the next two completions, in the order of their values.
    fn two(&self) -> [usize; 2] {
        let mut both = [(); 2].map(|()| self.next().unwrap().op_context.addr());
        both.sort_unstable();
        both
    }

    fn end(self) {
        for object in [self.av.cast::<fi::fid>(), self.cq.cast(), self.domain.cast(), self.fabric.cast()] {
            assert_eq!(close(object), 0);
        }
    }
}

fn bind_to(ep: *mut fi::fid_ep, to: *mut impl Sized, flags: u64) -> c_int {
    call_fid!(ep, bind(to.cast(), flags))
}

fn enable(ep: *mut fi::fid_ep) -> c_int {
    call_fid!(ep, control(fi::FI_ENABLE, ptr::null_mut()))
}

fn name(ep: *mut fi::fid_ep) -> Vec<u8> {
    let mut name = vec![0; 64];
    let mut len = name.len();
    assert_eq!(getname(ep, &mut name, &mut len), 0);
    name.truncate(len);
    name
}

fn getname(ep: *mut fi::fid_ep, to: &mut [u8], len: &mut usize) -> c_int {
    // SAFETY: an open endpoint, whose tables are full, and `len`, which is no more than `to` has.
    unsafe { ((*(*ep).cm).getname.unwrap())(ep.cast(), to.as_mut_ptr().cast(), len) }
}

/// A context that is only a number.
fn context(n: usize) -> *mut c_void {
    ptr::without_provenance_mut(n)
}
