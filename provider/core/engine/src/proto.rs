//! How the bytes of an operation travel: [`choose`] alone decides that.
//!
//! It decides from what is known without trying: the peer's path, the operation, and what was tried for it
//! already. What a plan needs beyond that (room, a counter, an exported handle) its executor finds out; where
//! that is not to be had it says so in [`Op::tried`] and chooses again. Frames always serve.

mod cut;
mod when;

use hmem::Span;
use link_api::{Path, RmaCaps};

pub(crate) use cut::Cut;
pub(crate) use when::{Tried, When};

/// What the way to a peer allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most bytes of payload that travel eagerly.
    pub(crate) eager: usize,
    /// Most that do, of many in a row, or while bytes travel both ways: one side then copies while the other
    /// does, which one alone would not gain by. And of host memory that no side can access but by frames: the
    /// peer would ask for the same frame, and so take a round trip more.
    pub(crate) in_a_row: usize,
    /// Most bytes of messages of host memory that go one way to few peers: their sender need not wait until
    /// they are copied.
    pub(crate) one_way: usize,
    /// Most bytes of payload that fit a frame beside the longest header.
    pub(crate) fits: usize,
    /// How the peer's memory is accessed, and ours by the peer: the path's, without what has turned out not
    /// to work.
    pub(crate) rma: RmaCaps,
    /// How frames of this path may name memory, whatever has turned out.
    names: RmaCaps,
    /// From this many bytes on memory is got, where it can be.
    pub(crate) least_get: usize,
}

impl Limits {
    /// The path's, but no more than fits a frame beside the longest header.
    pub(crate) fn new(path: &Path) -> Self {
        let &Path { max_frame, eager, eager_in_a_row, eager_one_way, rma, least_get, .. } = path;
        debug_assert!(max_frame >= wire::EAGER_HEAD, "every link's frames hold a header");
        let fits = max_frame.saturating_sub(wire::EAGER_HEAD);
        let in_a_row = eager_in_a_row.max(eager).min(fits);
        let one_way = eager_one_way.max(in_a_row).min(fits);
        Limits { eager: eager.min(fits), in_a_row, one_way, fits, rma, names: rma, least_get }
    }

    /// Longest frame.
    pub(crate) fn max_frame(&self) -> usize {
        self.fits + wire::EAGER_HEAD
    }

    /// Whether a frame that came by this path may name memory of its sender so. The bytes are accessed by the
    /// means of the link that the frame came by; a link without these means grants no access by them.
    pub(crate) fn allows(&self, named: Reach) -> bool {
        match named {
            Reach::Frames => true,
            Reach::Cpu => self.names.contains(RmaCaps::SYNC),
            Reach::Handles => !self.names.difference(RmaCaps::SYNC).is_empty(),
        }
    }

    /// Whether nothing but frames goes to the peer.
    pub(crate) fn is_by_frames(&self) -> bool {
        self.rma.is_empty()
    }

    /// Whether host memory is accessed in the call.
    pub(crate) fn is_sync(&self) -> bool {
        self.rma.contains(RmaCaps::SYNC)
    }

    /// Whether peers get messages of memory here by handles, because they can and there is no quicker way.
    pub(crate) fn is_got_by_handles(&self, memory: Memory, len: usize) -> bool {
        self.is_by_handles(memory) || self.is_got(memory, len)
    }

    /// Whether so many bytes of memory are got by handles, and not put.
    fn is_got(&self, memory: Memory, len: usize) -> bool {
        let needs = match memory {
            Memory::Host => RmaCaps::HOST_GETS,
            Memory::Device => RmaCaps::DEVICE_GETS,
            Memory::Both => RmaCaps::HOST_GETS | RmaCaps::DEVICE_GETS,
        };
        self.rma.contains(needs) && !self.is_sync() && len >= self.least_get
    }

    /// Whether so many bytes are put by handles, where they are got, too. It pays for reads, whose target
    /// then says nothing before it moves them; writes are better got by their target, by one message less
    /// (docs/measurements/hosts.md).
    fn is_put(&self, memory: Memory, len: usize) -> bool {
        memory == Memory::Host
            && self.rma.contains(RmaCaps::HOST_PUTS)
            && !self.is_sync()
            && len >= self.least_get
    }

    /// Whether what the link starts by itself may access memory of this side for as long as that takes. Where
    /// the link gets a device's, it does not know whether a registration's is still there: that takes the
    /// job's promise. It can for the host's ([`Span::stays`]).
    fn is_kept(&self, op: &Op) -> bool {
        op.memory == Memory::Host
            || op.when.contains(When::LASTING)
            || !self.rma.contains(RmaCaps::DEVICE_GETS)
    }

    /// Whether handles of memory are made for the time of a request.
    pub(crate) fn is_retiring(&self) -> bool {
        self.rma.contains(RmaCaps::HOST_GETS)
    }

    /// Whether peers get and put memory here by handles.
    pub(crate) fn is_by_handles(&self, memory: Memory) -> bool {
        match memory {
            Memory::Host => self.rma.contains(RmaCaps::HOST_HANDLES) && !self.is_sync(),
            Memory::Device => self.rma.contains(RmaCaps::DEVICE_HANDLES),
            Memory::Both => self.rma.contains(RmaCaps::HOST_HANDLES | RmaCaps::DEVICE_HANDLES),
        }
    }
}

/// Which memory an operation has on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The host's alone.
    Host,
    /// Devices' alone.
    Device,
    /// Some of either.
    Both,
}

impl Memory {
    pub(crate) fn of(iov: &[Span]) -> Memory {
        let has = |device: bool| iov.iter().any(|s| !s.is_empty() && s.can(hmem::Caps::DEVICE) == device);
        match (has(true), has(false)) {
            (false, _) => Memory::Host,
            (true, false) => Memory::Device,
            (true, true) => Memory::Both,
        }
    }
}

/// How a peer says that segments of its memory may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// By frames alone.
    Frames,
    /// By the CPU.
    Cpu,
    /// By an operation of the link's, with the handles that the peer has sent.
    Handles,
}

impl Reach {
    pub(crate) fn of(flags: wire::Flags) -> Reach {
        if flags.contains(wire::Flags::HANDLES) {
            Reach::Handles
        } else if flags.contains(wire::Flags::DIRECT) {
            Reach::Cpu
        } else {
            Reach::Frames
        }
    }
}

/// Which side of an operation this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends a message.
    Send,
    /// Writes memory of the peer's.
    Write,
    /// Reads memory of the peer's.
    Read,
    /// Takes in what the peer has offered: a message, or what it writes. The peer's memory is reached so.
    Fetch(Reach),
    /// Answers a read. The peer's memory is reached so.
    Serve(Reach),
    /// Sends what the peer requested, and cannot be put where it belongs. Memory of this side's device is
    /// reached so by the peer.
    Feed(Reach),
}

/// An operation, as far as the choice depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) role: Role,
    /// Bytes to be moved.
    pub(crate) len: usize,
    pub(crate) memory: Memory,
    pub(crate) when: When,
    pub(crate) tried: Tried,
}

impl Op {
    pub(crate) fn new(role: Role, len: usize, iov: &[Span], when: When) -> Op {
        Op { role, len, memory: Memory::of(iov), when, tried: Tried::empty() }
    }
}

/// How the bytes of an operation travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// There are none.
    Nothing,
    /// Inside the frame that announces them.
    Eager,
    /// Inside the frame, although they are many: one side copies while the other does, since more are to
    /// come, this way or the other; or there are frames alone.
    EagerInARow,
    /// The frame says where they are, or are to go, and the peer moves them: in the call if it can, or it
    /// asks for frames.
    Rendezvous,
    /// The peer is offered what is injected, a message or a write, whose bytes were copied aside, and asks
    /// for them: a message when it has room; and either where no frame holds it.
    OfferKept,
    /// The peer is offered an injected message of a device's, and the call waits a little for the peer to say
    /// where the device is to put it.
    OfferAndWait,
    /// A write inside a frame that the target does not answer, complete when it is sent.
    OneSidedFrame,
    /// One get or put that is over when the call returns.
    InCall,
    /// One of a registration that the peer publishes, which the link does by itself.
    Published,
    /// Both sides copy pieces.
    Cooperative(Cut),
    /// An operation in flight, by handles: started here, or, where this side initiates, by the peer.
    ByHandles,
    /// The next call of progress takes them in, so that what is posted before that does not wait for a copy.
    InProgress,
    /// The initiator of a read gets the bytes, by handles that this side sends.
    Lend,
    /// The sender of a message is invited to put it where this side says, by handles.
    Invite,
    /// By way of bounce buffers of the sender's device, which this side asks for, or fills. Where the
    /// sender's memory turns out to be another sort, or this side's to be in reach, in frames or put by
    /// handles.
    Bounce,
    /// In frames that this side asks for, or sends as they are requested.
    Frames,
}

/// How the bytes of `op` travel on a path with these limits.
#[inline]
pub(crate) fn choose(limits: &Limits, op: &Op) -> Plan {
    match op.role {
        Role::Send => choose_send(limits, op),
        Role::Write | Role::Read => {
            choose_one_sided(limits, op).unwrap_or_else(|| choose_by_target(limits, op))
        }
        Role::Fetch(reach) => choose_fetch(limits, op, reach),
        Role::Serve(reach) => choose_serve(limits, op, reach),
        Role::Feed(reach) => choose_feed(limits, op, reach),
    }
}

/// Whether [`choose`] answers [`Plan::OneSidedFrame`] for a write of this memory that is [`When::ONE_SIDED`]
/// and not
/// [`When::DELIVERY`]: the same choice for what nearly every short write is, in few instructions.
#[inline(always)]
pub(crate) fn is_one_sided_frame(limits: &Limits, span: &Span) -> bool {
    let len = span.len();
    len > 0 && len <= limits.eager && limits.is_sync() && !span.can(hmem::Caps::DEVICE)
}

/// Inside its frame, if it fits. What is injected is copied at once, whatever the threshold is set to.
fn choose_eager(limits: &Limits, op: &Op) -> Option<Plan> {
    if op.len <= limits.eager || (op.when.contains(When::INJECT) && op.len <= limits.fits) {
        Some(Plan::Eager)
    } else {
        // Both ways are a reason where the alternative is a copy by one of the two cores.
        let both = op.when.contains(When::BOTH_WAYS) && limits.is_sync() && op.memory == Memory::Host;
        let by_frames = limits.is_by_frames() && op.memory == Memory::Host;
        let may = op.when.contains(When::IN_A_ROW) || both || by_frames;
        let most = if goes_one_way(limits, op) { limits.one_way } else { limits.in_a_row };
        (may && !op.when.contains(When::INJECT) && op.len <= most).then_some(Plan::EagerInARow)
    }
}

/// Whether a message goes to a peer while no receive waits here, and either others were posted just before it
/// or the peer has sent none back since the last large one. Its sender has something else to do than to wait
/// until the receiver has copied it.
fn goes_one_way(limits: &Limits, op: &Op) -> bool {
    const ABOUT: When = When::IN_A_ROW.union(When::BOTH_WAYS).union(When::BEHIND);
    let is_host = limits.is_sync() && op.memory == Memory::Host;
    op.role == Role::Send && is_host && op.when & ABOUT == When::IN_A_ROW
}

/// Whether this side sends handles of its memory for the peer to use.
fn exports(limits: &Limits, op: &Op, in_frame: bool) -> bool {
    (!in_frame || op.memory != Memory::Host)
        && op.len > 0
        && !op.when.contains(When::INJECT)
        && !op.tried.contains(Tried::HANDLES)
        && match op.role {
            Role::Send => limits.is_got_by_handles(op.memory, op.len),
            Role::Write if op.when.contains(When::LASTING) => limits.is_got_by_handles(op.memory, op.len),
            // The peer puts the bytes of a read; and memory that may vanish is not got to.
            Role::Read if op.when.contains(When::LASTING) && limits.is_put(op.memory, op.len) => true,
            _ => limits.is_by_handles(op.memory),
        }
}

fn choose_send(limits: &Limits, op: &Op) -> Plan {
    let eager = choose_eager(limits, op);
    let inject = op.when.contains(When::INJECT);
    if exports(limits, op, eager.is_some()) {
        return Plan::ByHandles;
    }
    match eager {
        Some(_) if op.when.contains(When::PAUSED) && inject => Plan::OfferKept,
        Some(_) if op.when.contains(When::PAUSED) => Plan::Rendezvous,
        Some(_)
            if inject
                && op.memory != Memory::Host
                // A device that the two processes have in turns is not waited for.
                && !op.when.intersects(When::DELIVERY | When::ONE_DEVICE)
                && !op.tried.contains(Tried::WAIT) =>
        {
            Plan::OfferAndWait
        }
        Some(eager) => eager,
        None if inject => Plan::OfferKept,
        None => Plan::Rendezvous,
    }
}

/// An access that needs nothing of its target.
fn choose_one_sided(limits: &Limits, op: &Op) -> Option<Plan> {
    let may = op.when.contains(When::ONE_SIDED) && !op.tried.contains(Tried::ONE_SIDED);
    let is_host = op.memory == Memory::Host;
    if !may || op.len == 0 || !is_host && !limits.rma.contains(RmaCaps::FROM_DEVICES) {
        return None;
    }
    if !limits.is_sync() {
        // What is injected is gone when the call returns, unless it was copied; and an access would overtake
        // what is in frames.
        let stays = !op.when.contains(When::INJECT) || op.when.contains(When::COPIED);
        let may = stays && !op.when.contains(When::BEHIND_UNACKED);
        return (may && limits.rma.contains(RmaCaps::REGIONS)).then_some(Plan::Published);
    }
    if !is_host {
        return None;
    }
    let in_frame = op.role == Role::Write && choose_eager(limits, op).is_some();
    if in_frame && !op.when.contains(When::DELIVERY) {
        return Some(Plan::OneSidedFrame);
    }
    // A copy would overtake what is in frames.
    let may = !op.when.contains(When::BEHIND_UNACKED);
    may.then(|| choose_cooperative(op).unwrap_or(Plan::InCall))
}

/// Least bytes of a message that the sender copies a half of where they come from many peers in turn and no
/// more are behind it: of shorter ones the receiver has copied the whole before the sender, which writes to
/// the memory that all write to, is done with a half.
const LEAST_WITH_HELP: usize = 128 << 10;

fn choose_cooperative(op: &Op) -> Option<Plan> {
    // What the peer helped with here it would be late with of its own.
    let helped = op.when & (When::HELPED | When::BOTH_WAYS) == When::HELPED;
    let unaided = op.when & (When::FROM_MANY | When::DELEGATE) == When::FROM_MANY;
    let is_quick = unaided && op.len < LEAST_WITH_HELP;
    let may = helped && !is_quick && !op.tried.contains(Tried::COOPERATIVE);
    let cut = may.then(|| Cut::of(op.len, op.when.contains(When::DELEGATE)))?;
    Some(Plan::Cooperative(cut?))
}

/// An access that the target has a part in.
fn choose_by_target(limits: &Limits, op: &Op) -> Plan {
    let is_write = op.role == Role::Write;
    let eager = if is_write {
        choose_eager(limits, op)
    } else {
        (op.len <= limits.eager).then_some(Plan::Rendezvous)
    };
    if exports(limits, op, eager.is_some()) {
        return Plan::ByHandles;
    }
    match eager {
        Some(plan) => plan,
        None if is_write && op.when.contains(When::INJECT) => Plan::OfferKept,
        None => Plan::Rendezvous,
    }
}

/// Least bytes whose copy by a call that posts a receive would delay what the program posts next, its own
/// messages above all: neighbours that each receive before they send would take turns, where they could copy
/// at the same time.
const LEFT_TO_PROGRESS: usize = 16 << 10;

fn choose_fetch(limits: &Limits, op: &Op, reach: Reach) -> Plan {
    match reach {
        _ if op.len == 0 => Plan::Nothing,
        Reach::Cpu if limits.is_sync() && op.memory == Memory::Host => match choose_cooperative(op) {
            _ if op.when.contains(When::IN_POST) && op.len >= LEFT_TO_PROGRESS => Plan::InProgress,
            Some(plan) => plan,
            None if !op.tried.contains(Tried::IN_CALL) => Plan::InCall,
            None => Plan::Frames,
        },
        Reach::Handles if op.when.contains(When::INVITE) && !op.tried.contains(Tried::INVITE) => Plan::Invite,
        Reach::Handles if !op.tried.contains(Tried::HANDLES) && limits.is_kept(op) => Plan::ByHandles,
        // Memory whose handles are of no use is no reason to expect more of those of buffers.
        Reach::Frames | Reach::Cpu if bounces(limits, op) => Plan::Bounce,
        _ => Plan::Frames,
    }
}

/// Least bytes that go through bounce buffers: a copy on either side's device, each found over by a later
/// call, and an answer, for what is few frames otherwise.
const LEAST_BOUNCED: usize = 32 << 10;

/// The same where both sides are on one device: the copies on it wait for each process's turn (some 170 us
/// for the two), and those between it and the host do not.
const LEAST_IN_TURNS: usize = 640 << 10;
/// The same on one device, where more are in flight or to come: they share a turn.
const LEAST_OF_MANY_IN_TURNS: usize = 160 << 10;

/// Whether a device's memory had better be sent, or taken, by way of bounce buffers.
fn bounces(limits: &Limits, op: &Op) -> bool {
    let least = match (op.when.contains(When::ONE_DEVICE), op.when.contains(When::INVITE)) {
        (false, _) => LEAST_BOUNCED,
        (true, false) => LEAST_IN_TURNS,
        (true, true) => LEAST_OF_MANY_IN_TURNS,
    };
    op.memory == Memory::Device
        && limits.is_by_handles(Memory::Device)
        && op.len >= least
        && !op.when.contains(When::INJECT)
        && !op.tried.contains(Tried::BOUNCE)
}

fn choose_feed(limits: &Limits, op: &Op, reach: Reach) -> Plan {
    if reach == Reach::Handles && bounces(limits, op) { Plan::Bounce } else { Plan::Frames }
}

fn choose_serve(limits: &Limits, op: &Op, reach: Reach) -> Plan {
    let is_short = op.len <= limits.eager;
    match reach {
        _ if op.len == 0 => Plan::Nothing,
        Reach::Cpu
            if limits.is_sync()
                && op.memory == Memory::Host
                && !is_short
                && !op.tried.contains(Tried::IN_CALL) =>
        {
            Plan::InCall
        }
        Reach::Handles if !op.tried.contains(Tried::HANDLES) => Plan::ByHandles,
        _ if limits.is_got(op.memory, op.len)
            && limits.is_kept(op)
            && !is_short
            && !op.tried.contains(Tried::HANDLES) =>
        {
            Plan::Lend
        }
        // Read now, before a later write can change it.
        _ if is_short && !op.when.contains(When::LAGGING) => Plan::Eager,
        _ => Plan::Frames,
    }
}

#[cfg(test)]
mod tests;
