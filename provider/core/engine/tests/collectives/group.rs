//! Nodes that have joined a group.

use engine::{Collective, CollectiveKind as Kind, Ctx, Error, FiAddr, GroupId, OpFlags};
use hmem::{AtomicOp, Datatype, Span};
use testkit::{Net, Setup};

/// How members reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Messages,
    Memory,
    /// Nodes of so many hosts in turn, which share memory inside each.
    Hosts(usize),
}

impl Reach {
    pub const ALL: [Reach; 4] = [Reach::Messages, Reach::Memory, Reach::Hosts(2), Reach::Hosts(3)];

    pub fn is_shared(self) -> bool {
        self != Reach::Messages
    }

    /// Nodes that reach each other so.
    pub fn net(self, nodes: usize, setup: Setup) -> Net {
        let mut net = net(nodes, Setup { shared: self.is_shared(), ..setup });
        if let Reach::Hosts(hosts) = self {
            net.set_hosts(&(0..nodes).map(|at| at % hosts).collect::<Vec<_>>());
        }
        net
    }
}

/// Nodes whose endpoints may take part in collective operations.
pub fn net(nodes: usize, setup: Setup) -> Net {
    let mut net = Net::with(nodes, setup);
    (0..nodes).for_each(|at| {
        let ep = net[at].ep;
        net[at].ep_allow_collectives(ep);
    });
    net
}

/// Has these nodes join a group, in this order, and waits until they have; the group of each, by place.
pub fn join(net: &mut Net, members: &[usize]) -> Vec<GroupId> {
    let groups = begin_join(net, members);
    net.settle();
    for (at, group) in members.iter().zip(&groups) {
        let joined = net[*at].joined(*group).expect("the join is over");
        assert_eq!((joined.group, joined.ctx, joined.err), (*group, Ctx(7), None));
        assert_eq!(net[*at].joined(*group), None);
    }
    groups
}

pub fn begin_join(net: &mut Net, members: &[usize]) -> Vec<GroupId> {
    let addrs: Vec<FiAddr> = members.iter().map(|at| *at as FiAddr).collect();
    let mut join = |at: usize| {
        let ep = net[at].ep;
        net[at].group_join(ep, &addrs, Ctx(7)).expect("a group")
    };
    members.iter().map(|at| join(*at)).collect()
}

/// An operation without its buffers.
pub fn op(kind: Kind, root: usize, count: usize) -> Collective {
    Collective {
        kind,
        root: root as FiAddr,
        count,
        datatype: Datatype::Uint64,
        op: kind.reduces().then_some(AtomicOp::Sum),
        input: Span::EMPTY,
        result: Span::EMPTY,
        ctx: Ctx(1),
        flags: OpFlags::COMPLETION,
    }
}

/// The operation with buffers of a node, of which the first holds these bytes as far as it goes.
pub fn with_memory(
    net: &mut Net,
    at: usize,
    group: GroupId,
    op: &Collective,
    bytes: impl Fn(usize) -> Vec<u8>,
) -> Result<Collective, Error> {
    let ep = net[at].ep;
    let (input, result) = net[at].collective_lengths(ep, group, op)?;
    let input = bytes(input);
    let input = if input.is_empty() { Span::EMPTY } else { net.bytes(at, &input) };
    let into = bytes(result);
    let result = if into.is_empty() { Span::EMPTY } else { net.bytes(at, &into) };
    Ok(Collective { input, result, ..*op })
}

/// Posts an operation of a node.
pub fn call(net: &mut Net, at: usize, group: GroupId, op: &Collective) -> Result<(), Error> {
    let ep = net[at].ep;
    net[at].collective(ep, group, op)
}
