use super::*;

const SYNC: RmaCaps = RmaCaps::SYNC;
const HOST: RmaCaps = RmaCaps::HOST_HANDLES;
const GETS: RmaCaps = RmaCaps::HOST_GETS;
const PUTS: RmaCaps = GETS.union(RmaCaps::HOST_PUTS);
const DEVICE: RmaCaps = RmaCaps::DEVICE_HANDLES;
const ALL_GETS: RmaCaps = GETS.union(RmaCaps::DEVICE_GETS);
const FRAMES: RmaCaps = RmaCaps::empty();

fn limits(rma: RmaCaps) -> Limits {
    Limits { eager: 256, in_a_row: 600, one_way: 800, fits: 1000, rma, names: rma, least_get: 500 }
}

fn op(role: Role, len: usize, memory: Memory, when: When) -> Op {
    Op { role, len, memory, when, tried: Tried::empty() }
}

const NONE: When = When::empty();
const INJECT: When = When::INJECT;
const ROW: When = When::IN_A_ROW;
const BOTH: When = When::BOTH_WAYS;
const FROM_MANY: When = When::HELPED.union(When::FROM_MANY);
const ALONE: When = When::ONE_SIDED;

/// Caps, role, bytes, memory, conditions, what was tried in vain, and the plan.
type Row = (RmaCaps, Role, usize, Memory, When, Tried, Plan);

fn check(rows: &[Row]) {
    for row in rows {
        let &(rma, role, len, memory, when, tried, plan) = row;
        assert_eq!(choose(&limits(rma), &Op { tried, ..op(role, len, memory, when) }), plan, "{row:?}");
    }
}

#[test]
fn messages() {
    use Memory::*;
    use Role::Send;
    let none = Tried::empty();
    check(&[
        (SYNC, Send, 0, Host, NONE, none, Plan::Eager),
        (SYNC, Send, 256, Host, NONE, none, Plan::Eager),
        (SYNC, Send, 257, Host, NONE, none, Plan::Rendezvous),
        (SYNC, Send, 257, Host, ROW, none, Plan::EagerInARow),
        (SYNC, Send, 600, Host, ROW, none, Plan::EagerInARow),
        (SYNC, Send, 800, Host, ROW, none, Plan::EagerInARow),
        (SYNC, Send, 801, Host, ROW, none, Plan::Rendezvous),
        // One way, to few.
        (SYNC, Send, 601, Host, ROW | BOTH, none, Plan::Rendezvous),
        (SYNC, Send, 601, Host, ROW | INJECT, none, Plan::Eager),
        (SYNC, Send, 601, Host, ROW | When::PAUSED, none, Plan::Rendezvous),
        (FRAMES, Send, 601, Host, ROW, none, Plan::Rendezvous),
        (SYNC, Role::Write, 601, Host, ROW, none, Plan::Rendezvous),
        (SYNC, Send, 601, Host, ROW | When::BEHIND, none, Plan::Rendezvous),
        (SYNC, Send, 600, Host, ROW | When::BEHIND, none, Plan::EagerInARow),
        // So is one that is sent while a receive waits, where a core would copy it otherwise.
        (SYNC, Send, 256, Host, BOTH, none, Plan::Eager),
        (SYNC, Send, 600, Host, BOTH, none, Plan::EagerInARow),
        (SYNC, Send, 601, Host, BOTH, none, Plan::Rendezvous),
        (SYNC, Send, 1001, Host, INJECT | BOTH, none, Plan::OfferKept),
        (SYNC | DEVICE, Send, 600, Device, BOTH, none, Plan::ByHandles),
        (SYNC | DEVICE, Send, 600, Device, BOTH, Tried::HANDLES, Plan::Rendezvous),
        (SYNC, Send, 300, Host, When::PAUSED | BOTH, none, Plan::Rendezvous),
        (HOST, Send, 257, Host, BOTH, none, Plan::ByHandles),
        (DEVICE, Send, 300, Host, BOTH, none, Plan::Rendezvous),
        (SYNC, Send, 1000, Host, INJECT, none, Plan::Eager),
        (SYNC, Send, 1001, Host, INJECT | ROW, none, Plan::OfferKept),
        // A peer that is short of room is offered messages.
        (SYNC, Send, 1, Host, When::PAUSED, none, Plan::Rendezvous),
        (SYNC, Send, 300, Host, When::PAUSED | ROW, none, Plan::Rendezvous),
        (SYNC, Send, 1, Host, When::PAUSED | INJECT, none, Plan::OfferKept),
        (SYNC | DEVICE, Send, 1, Device, When::PAUSED | INJECT, none, Plan::OfferKept),
        // Handles: for all of a device's memory, and for host memory that is not eager.
        (SYNC | DEVICE, Send, 1, Device, NONE, none, Plan::ByHandles),
        (SYNC | DEVICE, Send, 0, Device, NONE, none, Plan::Eager),
        (SYNC | DEVICE, Send, 1, Device, NONE, Tried::HANDLES, Plan::Eager),
        (SYNC | DEVICE, Send, 900, Device, NONE, Tried::HANDLES, Plan::Rendezvous),
        (SYNC | DEVICE, Send, 1, Both, NONE, none, Plan::Eager),
        (SYNC | DEVICE | HOST, Send, 1, Both, NONE, none, Plan::ByHandles),
        (SYNC | HOST, Send, 900, Host, NONE, none, Plan::Rendezvous),
        (HOST, Send, 256, Host, NONE, none, Plan::Eager),
        (HOST, Send, 257, Host, NONE, none, Plan::ByHandles),
        (HOST, Send, 257, Host, ROW, none, Plan::EagerInARow),
        (HOST, Send, 257, Host, NONE, Tried::HANDLES, Plan::Rendezvous),
        (HOST, Send, 257, Device, NONE, none, Plan::Rendezvous),
        (HOST, Send, 257, Host, INJECT, none, Plan::Eager),
        (GETS, Send, 256, Host, NONE, none, Plan::Eager),
        (GETS, Send, 257, Host, NONE, none, Plan::Rendezvous),
        (GETS, Send, 499, Host, NONE, none, Plan::Rendezvous),
        (GETS, Send, 500, Host, NONE, none, Plan::ByHandles),
        (GETS | HOST, Send, 257, Host, NONE, none, Plan::ByHandles),
        (GETS, Send, 500, Host, NONE, Tried::HANDLES, Plan::Rendezvous),
        (GETS, Send, 500, Both, NONE, none, Plan::Rendezvous),
        (SYNC | GETS, Send, 900, Host, NONE, none, Plan::Rendezvous),
        // Of devices, too.
        (GETS, Send, 900, Device, NONE, none, Plan::Rendezvous),
        (ALL_GETS, Send, 500, Device, NONE, none, Plan::ByHandles),
        (ALL_GETS, Send, 500, Both, NONE, none, Plan::ByHandles),
        (ALL_GETS, Send, 500, Host, NONE, none, Plan::ByHandles),
        (ALL_GETS, Send, 499, Device, NONE, none, Plan::Rendezvous),
        (ALL_GETS, Send, 256, Device, NONE, none, Plan::Eager),
        (ALL_GETS, Send, 500, Device, NONE, Tried::HANDLES, Plan::Rendezvous),
        (ALL_GETS, Send, 900, Device, INJECT, Tried::WAIT, Plan::Eager),
        // Where there are frames alone, another round trip would bring the same one.
        (FRAMES, Send, 256, Host, NONE, none, Plan::Eager),
        (FRAMES, Send, 600, Host, NONE, none, Plan::EagerInARow),
        (FRAMES, Send, 601, Host, NONE, none, Plan::Rendezvous),
        (FRAMES, Send, 601, Host, ROW, none, Plan::Rendezvous),
        (FRAMES, Send, 1000, Host, INJECT, none, Plan::Eager),
        (FRAMES, Send, 1001, Host, INJECT, none, Plan::OfferKept),
        (FRAMES, Send, 257, Device, NONE, none, Plan::Rendezvous),
        (FRAMES, Send, 257, Both, NONE, none, Plan::Rendezvous),
        (FRAMES, Send, 600, Host, When::PAUSED, none, Plan::Rendezvous),
        (DEVICE, Send, 1, Device, INJECT, none, Plan::OfferAndWait),
        (DEVICE, Send, 1, Device, INJECT, Tried::WAIT, Plan::Eager),
        (DEVICE, Send, 1, Device, INJECT | When::ONE_DEVICE, none, Plan::Eager),
        (DEVICE, Send, 1, Device, INJECT | When::DELIVERY, none, Plan::Eager),
    ]);
}

#[test]
fn accesses_to_a_peers_memory() {
    use Memory::*;
    use Role::{Read, Write};
    let none = Tried::empty();
    let large = 1 << 20;
    let halves = Cut { pieces: xfer::Cut { piece: large / 2, pieces: 2 }, delegated: false };
    let helped = ALONE | When::HELPED;
    check(&[
        (SYNC, Write, 1, Host, NONE, none, Plan::Eager),
        (SYNC, Write, 300, Host, ROW, none, Plan::EagerInARow),
        (SYNC, Write, 300, Host, NONE, none, Plan::Rendezvous),
        (SYNC, Write, 1001, Host, INJECT, none, Plan::OfferKept),
        (FRAMES, Write, 600, Host, NONE, none, Plan::EagerInARow),
        (FRAMES, Write, 601, Host, NONE, none, Plan::Rendezvous),
        (FRAMES, Write, 257, Device, NONE, none, Plan::Rendezvous),
        (SYNC, Read, 1, Host, NONE, none, Plan::Rendezvous),
        (SYNC, Read, 300, Host, NONE, none, Plan::Rendezvous),
        // Without the target.
        (SYNC, Write, 1, Host, ALONE, none, Plan::OneSidedFrame),
        (SYNC, Write, 1, Host, ALONE | When::BEHIND_UNACKED, none, Plan::OneSidedFrame),
        (SYNC, Write, 1, Host, ALONE | When::DELIVERY, none, Plan::InCall),
        (SYNC, Write, 300, Host, ALONE, none, Plan::InCall),
        (SYNC, Write, 300, Host, ALONE | When::BEHIND_UNACKED, none, Plan::Rendezvous),
        (SYNC, Write, 300, Host, ALONE, Tried::ONE_SIDED, Plan::Rendezvous),
        (SYNC, Write, 1, Host, ALONE, Tried::ONE_SIDED, Plan::Eager),
        (SYNC, Read, 1, Host, ALONE, none, Plan::InCall),
        (SYNC, Read, 0, Host, ALONE, none, Plan::Rendezvous),
        (SYNC, Read, 1, Device, ALONE, none, Plan::Rendezvous),
        (HOST, Read, 1, Host, ALONE, none, Plan::Rendezvous),
        (HOST, Write, 1, Host, ALONE, none, Plan::Eager),
        // Together with the target.
        (SYNC, Read, large, Host, helped, none, Plan::Cooperative(halves)),
        (
            SYNC,
            Read,
            large,
            Host,
            helped | When::DELEGATE,
            none,
            Plan::Cooperative(Cut { delegated: true, ..halves }),
        ),
        (SYNC, Write, large, Host, helped, Tried::COOPERATIVE, Plan::InCall),
        (SYNC, Write, large, Host, ALONE, none, Plan::InCall),
        // By handles.
        (HOST, Read, 256, Host, NONE, none, Plan::Rendezvous),
        (HOST, Read, 257, Host, NONE, none, Plan::ByHandles),
        (HOST, Write, 257, Host, NONE, none, Plan::ByHandles),
        (HOST, Write, 257, Host, NONE, Tried::HANDLES, Plan::Rendezvous),
        // Messages alone are got.
        (GETS, Write, 257, Host, NONE, none, Plan::Rendezvous),
        (GETS, Read, 257, Host, NONE, none, Plan::Rendezvous),
        (ALL_GETS, Write, 900, Device, NONE, none, Plan::Rendezvous),
        (ALL_GETS, Write, 900, Device, When::LASTING, none, Plan::ByHandles),
        (ALL_GETS, Write, 900, Device, When::LASTING, Tried::HANDLES, Plan::Rendezvous),
        (ALL_GETS, Read, 900, Device, When::LASTING, none, Plan::Rendezvous),
        // Long reads are put by their target, and writes are got by it.
        (PUTS, Read, 500, Host, When::LASTING, none, Plan::ByHandles),
        (PUTS, Read, 499, Host, When::LASTING, none, Plan::Rendezvous),
        (PUTS, Read, 500, Host, NONE, none, Plan::Rendezvous),
        (PUTS, Read, 500, Host, When::LASTING, Tried::HANDLES, Plan::Rendezvous),
        (PUTS | RmaCaps::DEVICE_GETS, Read, 500, Device, When::LASTING, none, Plan::Rendezvous),
        (PUTS, Write, 500, Host, When::LASTING, none, Plan::ByHandles),
        (PUTS, Write, 500, Host, NONE, none, Plan::Rendezvous),
        (SYNC | DEVICE, Write, 1, Device, ALONE, none, Plan::ByHandles),
        (SYNC | DEVICE, Read, 1, Device, ALONE, none, Plan::ByHandles),
        (SYNC | DEVICE, Read, 1, Both, NONE, none, Plan::Rendezvous),
    ]);
}

#[test]
fn what_a_peer_has_offered() {
    use Memory::*;
    let none = Tried::empty();
    let (cpu, handles, frames) =
        (Role::Fetch(Reach::Cpu), Role::Fetch(Reach::Handles), Role::Fetch(Reach::Frames));
    let large = 1 << 20;
    let halves = Cut { pieces: xfer::Cut { piece: large / 2, pieces: 2 }, delegated: false };
    check(&[
        (SYNC, cpu, 0, Host, NONE, none, Plan::Nothing),
        (HOST, frames, 0, Host, NONE, none, Plan::Nothing),
        (SYNC, cpu, 1, Host, When::HELPED, none, Plan::InCall),
        (SYNC, cpu, 1, Host, NONE, Tried::IN_CALL, Plan::Frames),
        (SYNC, cpu, 1, Device, NONE, none, Plan::Frames),
        (HOST, cpu, 1, Host, NONE, none, Plan::Frames),
        (SYNC, frames, large, Host, When::HELPED, none, Plan::Frames),
        (SYNC, cpu, large, Host, NONE, none, Plan::InCall),
        (SYNC, cpu, large, Host, When::HELPED, none, Plan::Cooperative(halves)),
        (SYNC, cpu, large, Host, When::HELPED | BOTH, none, Plan::InCall),
        (SYNC, cpu, large, Host, FROM_MANY, none, Plan::Cooperative(halves)),
        (SYNC, cpu, LEAST_WITH_HELP - 1, Host, FROM_MANY, none, Plan::InCall),
        (SYNC, cpu, LEAST_WITH_HELP - 1, Host, FROM_MANY | When::IN_POST, none, Plan::InProgress),
        (
            SYNC,
            cpu,
            large,
            Host,
            When::HELPED | When::DELEGATE,
            none,
            Plan::Cooperative(Cut { delegated: true, ..halves }),
        ),
        (SYNC, cpu, large, Host, When::HELPED, Tried::COOPERATIVE, Plan::InCall),
        (HOST, handles, 1, Host, NONE, none, Plan::ByHandles),
        (SYNC | DEVICE, handles, 1, Host, NONE, none, Plan::ByHandles),
        (SYNC | DEVICE, handles, 1, Device, When::INVITE, none, Plan::Invite),
        (SYNC | DEVICE, handles, 1, Device, When::INVITE, Tried::INVITE, Plan::ByHandles),
        (SYNC | DEVICE, handles, 1, Device, When::INVITE, Tried::INVITE | Tried::HANDLES, Plan::Frames),
        (SYNC | DEVICE, handles, 1, Device, NONE, none, Plan::ByHandles),
        // To registered memory of a device's that may be freed; and to other memory.
        (ALL_GETS, handles, large, Device, NONE, none, Plan::Frames),
        (ALL_GETS, handles, large, Both, NONE, none, Plan::Frames),
        (ALL_GETS, handles, large, Device, When::LASTING, none, Plan::ByHandles),
        (ALL_GETS, handles, large, Host, NONE, none, Plan::ByHandles),
        (ALL_GETS, handles, large, Device, When::LASTING, Tried::HANDLES, Plan::Frames),
    ]);
}

#[test]
fn devices_memory_that_neither_side_reaches() {
    use Memory::*;
    let none = Tried::empty();
    let (cpu, handles, frames) =
        (Role::Fetch(Reach::Cpu), Role::Fetch(Reach::Handles), Role::Fetch(Reach::Frames));
    let (feed, unasked) = (Role::Feed(Reach::Handles), Role::Feed(Reach::Frames));
    let (least, both) = (LEAST_BOUNCED, SYNC | DEVICE);
    let many = When::ONE_DEVICE | When::INVITE;
    check(&[
        (both, frames, least, Device, NONE, none, Plan::Bounce),
        (both, frames, least - 1, Device, NONE, none, Plan::Frames),
        (both, frames, least, Host, NONE, none, Plan::Frames),
        (both, frames, least, Both, NONE, none, Plan::Frames),
        (both | HOST, frames, least, Both, NONE, none, Plan::Frames),
        (SYNC | HOST, frames, least, Device, NONE, none, Plan::Frames),
        // The sender says no more of its memory than that: it may be on a device, too.
        (both, cpu, least, Device, NONE, none, Plan::Bounce),
        (both, handles, least, Device, NONE, none, Plan::ByHandles),
        (both, handles, least, Device, NONE, Tried::HANDLES, Plan::Frames),
        // On one device, which the two processes have in turns.
        (both, frames, LEAST_IN_TURNS, Device, When::ONE_DEVICE, none, Plan::Bounce),
        (both, frames, LEAST_IN_TURNS - 1, Device, When::ONE_DEVICE, none, Plan::Frames),
        (both, cpu, LEAST_IN_TURNS - 1, Device, When::ONE_DEVICE, none, Plan::Frames),
        (both, frames, LEAST_OF_MANY_IN_TURNS, Device, many, none, Plan::Bounce),
        (both, frames, LEAST_OF_MANY_IN_TURNS - 1, Device, many, none, Plan::Frames),
        (both, frames, least, Device, When::INVITE, none, Plan::Bounce),
        (both, feed, least, Device, NONE, none, Plan::Bounce),
        (both, feed, least - 1, Device, NONE, none, Plan::Frames),
        (both, feed, least, Device, INJECT, none, Plan::Frames),
        (both, feed, least, Device, NONE, Tried::BOUNCE, Plan::Frames),
        (both, feed, least, Host, NONE, none, Plan::Frames),
        (both, feed, least, Both, NONE, none, Plan::Frames),
        (SYNC, feed, least, Device, NONE, none, Plan::Frames),
        (both, unasked, least, Device, NONE, none, Plan::Frames),
    ]);
}

#[test]
fn reads_by_a_peer() {
    use Memory::*;
    let none = Tried::empty();
    let (cpu, handles, frames) =
        (Role::Serve(Reach::Cpu), Role::Serve(Reach::Handles), Role::Serve(Reach::Frames));
    check(&[
        (SYNC, cpu, 0, Host, NONE, none, Plan::Nothing),
        (SYNC, cpu, 256, Host, NONE, none, Plan::Eager),
        (SYNC, cpu, 256, Host, When::LAGGING, none, Plan::Frames),
        (SYNC, cpu, 257, Host, NONE, none, Plan::InCall),
        (SYNC, cpu, 257, Host, NONE, Tried::IN_CALL, Plan::Frames),
        (SYNC, cpu, 257, Device, NONE, none, Plan::Frames),
        (HOST, cpu, 257, Host, NONE, none, Plan::Frames),
        (HOST, handles, 257, Host, NONE, none, Plan::ByHandles),
        (SYNC, handles, 1, Host, NONE, none, Plan::ByHandles),
        (SYNC, handles, 1, Host, NONE, Tried::HANDLES, Plan::Eager),
        (SYNC, frames, 257, Host, NONE, none, Plan::Frames),
        (GETS, frames, 500, Host, NONE, none, Plan::Lend),
        (GETS, frames, 499, Host, NONE, none, Plan::Frames),
        (GETS, frames, 500, Host, NONE, Tried::HANDLES, Plan::Frames),
        (GETS, frames, 500, Device, When::LASTING, none, Plan::Frames),
        (PUTS, handles, 500, Host, NONE, none, Plan::ByHandles),
        (PUTS, handles, 500, Host, NONE, Tried::HANDLES, Plan::Frames),
        (ALL_GETS, frames, 500, Host, NONE, none, Plan::Lend),
        // A device's takes the promise.
        (ALL_GETS, frames, 500, Device, NONE, none, Plan::Frames),
        (ALL_GETS, frames, 500, Device, When::LASTING, none, Plan::Lend),
        (ALL_GETS, frames, 500, Both, When::LASTING, none, Plan::Lend),
        (ALL_GETS, frames, 500, Device, When::LASTING, Tried::HANDLES, Plan::Frames),
    ]);
}

#[test]
fn limits_are_the_paths_as_far_as_a_frame_holds_them() {
    let path = Path {
        link: "a",
        max_frame: 1000 + wire::EAGER_HEAD,
        eager: 5000,
        eager_in_a_row: 0,
        eager_one_way: 0,
        rma: SYNC,
        least_get: 0,
    };
    let all = Limits::new(&path);
    assert_eq!((all.eager, all.in_a_row, all.one_way), (1000, 1000, 1000));
    assert_eq!((all.fits, all.max_frame()), (1000, path.max_frame));
    let some = Limits::new(&Path { eager: 10, eager_in_a_row: 20, eager_one_way: 30, ..path });
    assert_eq!((some.eager, some.in_a_row, some.one_way), (10, 20, 30));
}

/// [`crate::endpoint`] sends messages of host memory up to that size without a choice.
#[test]
fn a_plain_message_is_eager() {
    for rma in [SYNC, HOST, GETS, SYNC | DEVICE, RmaCaps::empty()] {
        for len in 0..=256 {
            for when in [NONE, ROW, INJECT, When::HELPED] {
                assert_eq!(choose(&limits(rma), &op(Role::Send, len, Memory::Host, when)), Plan::Eager);
            }
        }
    }
}

#[test]
fn a_short_one_sided_write_is_chosen_as_choose_does() {
    let memory = hmem::fake::alloc(64);
    for rma in [SYNC, HOST, GETS, SYNC | DEVICE, RmaCaps::empty()] {
        for span in [Span::EMPTY, Span::leak(1), Span::leak(256), Span::leak(257), memory.span()] {
            let op = Op::new(Role::Write, span.len(), &[span], ALONE);
            let chosen = choose(&limits(rma), &op) == Plan::OneSidedFrame;
            assert_eq!(is_one_sided_frame(&limits(rma), &span), chosen, "{rma:?} {span:?}");
        }
    }
}

#[test]
fn accesses_of_published_registrations_in_flight() {
    use Memory::*;
    use Role::{Read, Write};
    const REGIONS: RmaCaps = GETS.union(RmaCaps::HOST_PUTS).union(RmaCaps::REGIONS);
    const FROM_DEVICES: RmaCaps = REGIONS.union(RmaCaps::FROM_DEVICES);
    let (none, behind) = (Tried::empty(), When::BEHIND_UNACKED);
    check(&[
        (REGIONS, Read, 8, Host, ALONE, none, Plan::Published),
        (REGIONS, Write, 8, Host, ALONE, none, Plan::Published),
        (REGIONS, Write, 500, Host, ALONE | When::DELIVERY, none, Plan::Published),
        (REGIONS, Read, 1 << 20, Host, ALONE | When::IN_A_ROW, none, Plan::Published),
        // Where the target has to see it, or nothing reports its end.
        (REGIONS, Read, 8, Host, NONE, none, Plan::Rendezvous),
        (REGIONS, Write, 8, Host, NONE, none, Plan::Eager),
        // It would overtake frames; and its buffer is the program's again.
        (REGIONS, Write, 8, Host, ALONE | behind, none, Plan::Eager),
        (REGIONS, Write, 8, Host, ALONE | INJECT, none, Plan::Eager),
        (REGIONS, Write, 8, Host, ALONE | INJECT | When::COPIED, none, Plan::Published),
        (REGIONS, Write, 8, Host, ALONE | When::COPIED | behind, none, Plan::Eager),
        (REGIONS, Write, 8, Host, ALONE, Tried::ONE_SIDED, Plan::Eager),
        (REGIONS, Write, 8, Device, ALONE, none, Plan::Eager),
        (FROM_DEVICES, Write, 8, Device, ALONE, none, Plan::Published),
        (FROM_DEVICES, Read, 1 << 20, Both, ALONE, none, Plan::Published),
        (RmaCaps::SYNC.union(RmaCaps::FROM_DEVICES), Read, 8, Device, ALONE, none, Plan::Rendezvous),
        (REGIONS, Write, 0, Host, ALONE, none, Plan::Eager),
        (PUTS, Write, 8, Host, ALONE, none, Plan::Eager),
    ]);
}
