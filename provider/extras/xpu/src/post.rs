//! Checked commands as operations of the engine.

use engine::{Atomic, Ctx, Domain, Error, OpFlags, Pattern, Recv, Rma, Send};
use hmem::{AtomicOp, Span};
use link_api::RmaLink;
use wire::RmaSeg;

use crate::command::{Command, Local, Remote, Signal, Work};
use crate::port::{Peers, Port};

/// Where the number of a ring is in the context of an operation; below it is the ticket.
pub(crate) const RING_SHIFT: u32 = 48;

pub(crate) fn ctx(ring: usize, ticket: u64) -> Ctx {
    Ctx((((ring as u64 + 1) << RING_SHIFT) | ticket & ((1 << RING_SHIFT) - 1)) as usize)
}

/// Whether the engine has it.
#[derive(Debug)]
pub(crate) enum Posted {
    Yes,
    Again,
    No(Error),
}

impl From<Result<(), Error>> for Posted {
    fn from(how: Result<(), Error>) -> Posted {
        match how {
            Ok(()) => Posted::Yes,
            Err(Error::Again) => Posted::Again,
            Err(e) => Posted::No(e),
        }
    }
}

/// Each ends with a completion, when the bytes are where the target's application finds them.
const FLAGS: OpFlags = OpFlags::COMPLETION.union(OpFlags::DELIVERY);

fn segment(at: Remote, len: usize) -> [RmaSeg; 1] {
    [RmaSeg { addr: at.addr.into(), len: (len as u64).into(), key: at.key.into() }]
}

/// Bytes that it moves here.
pub(crate) fn length(work: &Work) -> usize {
    match work {
        Work::Nop => 0,
        Work::Put { local, .. } | Work::Send { local, .. } => local.len(),
        Work::Get { local, .. } | Work::Recv { local, .. } => local.len(),
        Work::Signal(signal) => signal.datatype.size(),
        Work::Atomic { datatype, .. } => datatype.size(),
    }
}

/// Sets a signal, or adds to it. `operand` holds the value.
pub(crate) fn signal<L: RmaLink>(
    engine: &mut Domain<L>,
    port: &Port,
    peers: &Peers,
    command: &Command,
    signal: &Signal,
    operand: Span,
    ctx: Ctx,
) -> Posted {
    let op = if signal.add { AtomicOp::Sum } else { AtomicOp::AtomicWrite };
    let atomic = Atomic {
        to: peers.addr(command.peer),
        op,
        datatype: signal.datatype,
        operand: &[operand],
        compare: &[],
        result: &[],
        remote: &segment(signal.at, operand.len()),
        data: None,
        ctx,
        flags: FLAGS,
    };
    engine.atomic(port.ep, &atomic).into()
}

/// A command, or the put of one with a signal. `cell`: memory for a value, of so many bytes.
pub(crate) fn command<L: RmaLink>(
    engine: &mut Domain<L>,
    port: &Port,
    peers: &Peers,
    command: &Command,
    cell: &mut dyn FnMut(usize, u64, usize) -> Span,
    ctx: Ctx,
) -> Posted {
    let to = peers.addr(command.peer);
    let mut source = |local: Local| match local {
        Local::Memory(span) => span,
        Local::Inline(value, len) => cell(0, value, len),
    };
    let flags = FLAGS;
    match command.work {
        Work::Put { local, remote, data, .. } => {
            let (iov, remote) = ([source(local)], segment(remote, local.len()));
            engine.rma(port.ep, &Rma { to, write: true, iov: &iov, remote: &remote, data, ctx, flags }).into()
        }
        Work::Get { local, remote } => {
            let (iov, remote) = ([local], segment(remote, local.len()));
            let op = Rma { to, write: false, iov: &iov, remote: &remote, data: None, ctx, flags };
            engine.rma(port.ep, &op).into()
        }
        Work::Atomic { op, datatype, operand, compare, result, remote } => {
            let size = datatype.size();
            let operands = [cell(0, operand, size)];
            let compares = compare.map(|value| cell(1, value, size));
            let reads = op == AtomicOp::AtomicRead;
            let atomic = Atomic {
                to,
                op,
                datatype,
                operand: if reads { &[] } else { &operands },
                compare: compares.as_slice(),
                result: result.as_slice(),
                remote: &segment(remote, size),
                data: None,
                ctx,
                flags,
            };
            engine.atomic(port.ep, &atomic).into()
        }
        Work::Send { local, tag, data } => {
            let iov = [source(local)];
            // Not until the target has them: it may have to send first, through a ring that waits, too.
            let flags = OpFlags::COMPLETION;
            engine.send(port.ep, &Send { to, iov: &iov, tag, data, ctx, flags }).into()
        }
        // The drain asks for them otherwise.
        Work::Nop | Work::Signal(_) | Work::Recv { .. } => Posted::No(Error::Invalid),
    }
}

/// Posts a receive.
pub(crate) fn receive<L: RmaLink>(
    engine: &mut Domain<L>,
    port: &Port,
    peers: &Peers,
    command: &Command,
    ctx: Ctx,
) -> Posted {
    let (Work::Recv { local, tag }, Some(rx)) = (command.work, port.rx) else {
        return Posted::No(Error::Unsupported);
    };
    let pattern = Pattern { src: peers.addr(command.peer), tag };
    engine.recv(rx, &Recv { pattern, iov: &[local], ctx, flags: OpFlags::COMPLETION }).into()
}
