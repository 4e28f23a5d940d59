//! Requests of peers, carried out by the progress of the process that has the memory.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use hmem::guard::Guard;
use hmem::{AtomicOp, Datatype, Kind, NotApplied, Span};
use link_api::{Link, Parting, PeerId};
use ucx_sys::{self as ucx, Status};
use wire::put;
use wire::ucx::{Head, Reply, Request, What};

use crate::frame::{Refusal, take};
use crate::iface::attr::SEGMENT;
use crate::md::region::Slot;
use crate::param;
use crate::rma::requests::WINDOW;
use crate::state::Iface;

/// Bytes of a reply before the requested ones.
const REPLY: usize = Head::LEN + size_of::<Reply>();

/// Carries a request of a peer out, and replies.
pub(crate) fn serve(i: &mut Iface, from: PeerId, what: u8, body: &[u8]) -> Result<(), Refusal> {
    if i.remote.is_greedy(from) {
        let addr = i.link.peer_addr(from);
        log::warn!(
            "{addr} is cut off: it asks for more than {WINDOW} accesses and does not read the replies"
        );
        i.link.dismiss(from, Parting::CutOff);
        i.busy = true;
        return Ok(());
    }
    let what = What::from_u8(what).ok_or("that request is unknown")?;
    let mut bytes = body;
    let Request { token, addr, a, b, slot, .. } = take(&mut bytes)?;
    let (addr, a, b, slot) = (addr.get(), a.get(), b.get(), Slot::from_wire(slot));
    // An atomic operation is in the one byte behind.
    let op = match what {
        What::Put | What::Get => 0,
        What::Atomic32 | What::Atomic64 => *bytes.first().ok_or("no atomic operation is named")?,
    };
    // SAFETY: the domain outlives its interfaces.
    let regions = unsafe { &(*i.md).regions };
    let len = match what {
        What::Put => bytes.len(),
        What::Get => usize::try_from(a).unwrap_or(usize::MAX),
        What::Atomic32 => 4,
        What::Atomic64 => 8,
    };
    if len > SEGMENT {
        return Err("more bytes are asked for than fit a reply");
    }
    // Memory that was taken back is as good as deregistered, whatever is registered there by now.
    let is_aligned = matches!(what, What::Put | What::Get) || addr as usize % len == 0;
    let may = is_aligned && slot.is_none_or(|slot| regions.is_current(slot));
    let mut reply = Head::bytes(wire::ucx::Kind::Reply, ucx::UCS_OK as u8).to_vec();
    put(&mut reply, &Reply { token });
    let done = match may {
        true => regions.access(addr as usize, len, None, |_| {
            guard_memory();
            // SAFETY: memory that UCP registered with us, or had us allocate, for its peers to access, until
            // it is deregistered, which waits for this; if the application has unmapped it before, that is
            // found out.
            let memory = [unsafe { Span::new(addr as usize, len, Kind::System) }.for_peers()];
            match what {
                What::Put => Ok(hmem::write(&memory, 0, bytes) == len),
                What::Get => {
                    reply.resize(REPLY + len, 0);
                    Ok(hmem::read(&memory, 0, &mut reply[REPLY..]) == len)
                }
                What::Atomic32 => {
                    let (a, b) = ((a as u32).to_ne_bytes(), (b as u32).to_ne_bytes());
                    atomic(&memory, Datatype::Uint32, op, &a, &b, &mut reply)
                }
                What::Atomic64 => {
                    atomic(&memory, Datatype::Uint64, op, &a.to_ne_bytes(), &b.to_ne_bytes(), &mut reply)
                }
            }
        }),
        false => None,
    };
    match done {
        Some(Ok(true)) => {}
        None => reply[1] = ucx::UCS_ERR_INVALID_ADDR as u8,
        Some(Ok(false)) => {
            log::warn!(
                "{} accesses registered memory that is not mapped, or not for that: deregister memory before it is \
                 unmapped",
                i.link.peer_addr(from)
            );
            reply.truncate(REPLY);
            reply[1] = ucx::UCS_ERR_INVALID_ADDR as u8;
        }
        Some(Err(status)) => reply[1] = status as u8,
    }
    // A peer that is gone needs none.
    let _ = i.post(from, reply, true);
    Ok(())
}

/// Sees to it that memory which the application has unmapped is an error to the peer that accesses it; now
/// and then, since another library may have set handlers of its own meanwhile.
fn guard_memory() {
    const SELDOM: u32 = 64;
    static SERVED: AtomicU32 = AtomicU32::new(0);
    if SERVED.fetch_add(1, Relaxed) % SELDOM != 0 {
        return;
    }
    let asked = param::get().fault_handler;
    match hmem::guard::hold(asked) {
        None | Some(Guard::Handler) => {}
        Some(Guard::Call) if !asked => log::info!("peers' requests are carried out by process_vm_readv(2)"),
        Some(Guard::Call) => log::warn!(
            "no handler of SIGSEGV can be kept here (replaced by another library's, or not possible): peers' requests \
             are carried out by process_vm_readv(2), which takes longer"
        ),
        Some(Guard::None) => log::warn!(
            "neither a handler of SIGSEGV nor process_vm_readv(2) is allowed: a peer's request for memory that is \
             registered but not mapped ends this process; set STRAIT_UCX_FAULT_HANDLER=y, or have the seccomp filter \
             allow rt_sigaction(2)"
        ),
    }
}

/// Applies an atomic operation, and adds the value from before to the reply; whether the memory was there.
fn atomic(
    memory: &[Span],
    datatype: Datatype,
    op: u8,
    value: &[u8],
    compare: &[u8],
    reply: &mut Vec<u8>,
) -> Result<bool, Status> {
    let (op, compare) = match op.into() {
        ucx::UCT_ATOMIC_OP_ADD => (AtomicOp::Sum, &[][..]),
        ucx::UCT_ATOMIC_OP_AND => (AtomicOp::Band, &[][..]),
        ucx::UCT_ATOMIC_OP_OR => (AtomicOp::Bor, &[][..]),
        ucx::UCT_ATOMIC_OP_XOR => (AtomicOp::Bxor, &[][..]),
        ucx::UCT_ATOMIC_OP_SWAP => (AtomicOp::AtomicWrite, &[][..]),
        ucx::UCT_ATOMIC_OP_CSWAP => (AtomicOp::Cswap, compare),
        _ => return Err(ucx::UCS_ERR_UNSUPPORTED),
    };
    let mut old = [0; 8];
    let old = &mut old[..datatype.size()];
    match hmem::apply(memory, op, datatype, value, compare, Some(&mut *old)) {
        Ok(()) => reply.extend_from_slice(old),
        Err(NotApplied::Fault) => return Ok(false),
        Err(NotApplied::Unsupported) => return Err(ucx::UCS_ERR_UNSUPPORTED),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requested_atomics_do() {
        let memory = [Span::leak(8).for_peers()];
        let run = |datatype: Datatype, op, value: u64, compare: u64| {
            let mut reply = vec![];
            let size = datatype.size();
            let (value, compare) = (value.to_ne_bytes(), compare.to_ne_bytes());
            let part = [memory[0].part(0, size).unwrap()];
            let done = atomic(&part, datatype, op as u8, &value[..size], &compare[..size], &mut reply);
            let mut now = [0; 8];
            hmem::read(&part, 0, &mut now[..size]);
            reply.resize(8, 0);
            done.map(|is_there| {
                (is_there, u64::from_ne_bytes(reply.try_into().unwrap()), u64::from_ne_bytes(now))
            })
        };
        for width in [Datatype::Uint64, Datatype::Uint32] {
            assert_eq!(
                run(width, ucx::UCT_ATOMIC_OP_SWAP, 12, 0).map(|(is, _, now)| (is, now)),
                Ok((true, 12))
            );
            assert_eq!(run(width, ucx::UCT_ATOMIC_OP_ADD, 3, 0), Ok((true, 12, 15)));
            assert_eq!(run(width, ucx::UCT_ATOMIC_OP_AND, 6, 0), Ok((true, 15, 6)));
            assert_eq!(run(width, ucx::UCT_ATOMIC_OP_OR, 9, 0), Ok((true, 6, 15)));
            assert_eq!(run(width, ucx::UCT_ATOMIC_OP_XOR, 10, 0), Ok((true, 15, 5)));
            assert_eq!(run(width, ucx::UCT_ATOMIC_OP_CSWAP, 7, 4), Ok((true, 5, 5)));
            assert_eq!(run(width, ucx::UCT_ATOMIC_OP_CSWAP, 7, 5), Ok((true, 5, 7)));
            assert_eq!(run(width, 6, 0, 0), Err(ucx::UCS_ERR_UNSUPPORTED));
        }
    }
}
