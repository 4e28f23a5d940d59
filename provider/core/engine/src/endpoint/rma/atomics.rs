//! Atomics that peers ask for, and what they answer to ours.

use hmem::{AtomicOp, Datatype, NotApplied, total};
use wire::{Aux, Flags, Head, RmaSeg, Status};

use crate::core::{Bound, Core, unmoved};
use crate::endpoint::device::staging::Source;
use crate::endpoint::malformed::{Fields, Handled, Malformed};
use crate::endpoint::rma::target::Accesses;
use crate::types::*;
use link_api::{PeerId, RmaLink};

/// Up to so many bytes of operands, and of what was there, need no memory of their own.
const FEW: usize = 64;

impl<L: RmaLink> Accesses<'_, L> {
    pub(in crate::endpoint) fn on_atomic(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        (frame, size): (Source<'_>, usize),
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let aux = Aux::parse_atomic(head.aux.get()).ok_or(Malformed::Aux)?;
        let segs = fields.take_many::<RmaSeg>(aux.rma.into())?;
        let off = Head::LEN + size_of_val(segs);
        let size = size - off;
        let (mut here, mut buffer) = ([0; FEW], None);
        let payload = match here.get_mut(..size) {
            Some(few) => few,
            None => &mut buffer.insert(core.buffers.take(size))[..size],
        };
        self.net.read_from(frame, off, payload);
        let op = AtomicOp::from_code(aux.op);
        let (fetch, compare) = (flags.contains(Flags::FETCH), flags.contains(Flags::COMPARE));
        let reads_only = op == Some(AtomicOp::AtomicRead);
        let mut want = if reads_only { Access::empty() } else { Access::REMOTE_WRITE };
        if fetch {
            want |= Access::REMOTE_READ;
        }
        let (mut few_old, mut many_old, mut n_old) = ([0; FEW], Vec::new(), 0);
        let mut cntrs = Bound::new();
        let most = self.net.peer(peer).flow.limits().max_frame() - Head::LEN;
        let outcome = core.mrs.reach(segs, want).and_then(|reached| {
            let (op, datatype) = (
                op.ok_or(Status::Unsupported)?,
                Datatype::from_code(aux.datatype).ok_or(Status::Unsupported)?,
            );
            let operand = if reads_only { 0 } else { reached.len };
            let all = operand.checked_add(if compare { reached.len } else { 0 });
            if Some(payload.len()) != all {
                return Err(Status::Malformed);
            }
            if fetch && reached.len > most {
                return Err(Status::Unsupported);
            }
            cntrs = reached.cntrs;
            let (operand, compare) = payload.split_at(operand);
            n_old = if fetch { reached.len } else { 0 };
            many_old.resize(if n_old > FEW { n_old } else { 0 }, 0);
            let old = few_old.get_mut(..n_old).unwrap_or(&mut many_old);
            hmem::apply(&reached.iov, op, datatype, operand, compare, fetch.then_some(old)).map_err(
                |why| match why {
                    NotApplied::Unsupported => Status::Unsupported,
                    NotApplied::Fault => unmoved(&reached.iov),
                },
            )?;
            Ok(total(&reached.iov))
        });
        if let Some(buffer) = buffer {
            core.buffers.give_back(buffer);
        }
        let status = outcome.err().unwrap_or(Status::Ok);
        if fetch && status == Status::Ok {
            self.bind.was_read(core, cntrs);
        } else {
            let data = flags.contains(Flags::CQ_DATA).then(|| head.data.get());
            self.written(core, peer, status, What::ATOMIC, outcome.unwrap_or(0), data, cntrs);
        }
        if !flags.contains(Flags::ACK) {
            if status != Status::Ok {
                self.net.refuse(peer, head.tag.get(), status, true);
            }
            return Ok(());
        }
        if fetch && status == Status::Ok {
            self.net.send_result(peer, head.tag.get(), few_old.get(..n_old), &many_old);
        } else {
            self.net.fin(peer, head.tag.get(), status, 0);
        }
        Ok(())
    }
}
