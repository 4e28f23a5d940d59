//! Why there is no answer, by the names of fi_getinfo(3).

use std::fmt;

use libfabric_sys::*;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub what: &'static str,
    pub asked: u64,
    pub offered: u64,
    pub kind: Kind,
}

/// What the numbers of a refusal are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Neither: all is in its name.
    Word,
    /// An amount; as much as is offered would do.
    Most,
    /// A choice.
    Code,
    /// Capabilities, or flags of operations.
    Flags,
    /// Orders of messages.
    Orders,
}

/// A value that is not the one offered.
pub(super) fn refuse<T>(
    what: &'static str,
    asked: impl TryInto<u64>,
    offered: impl TryInto<u64>,
) -> Result<T, Refusal> {
    let (asked, offered) = (asked.try_into().unwrap_or(0), offered.try_into().unwrap_or(0));
    Err(Refusal { what, asked, offered, kind: Kind::Code })
}

/// A number and its name.
macro_rules! named {
    ($($name:ident)*) => { [$(($name, stringify!($name))),*] };
}

/// Bits that mean the same in capabilities and in the flags of operations.
const FLAGS: [(u64, &str); 41] = named![
    FI_MSG FI_RMA FI_TAGGED FI_ATOMIC FI_MULTICAST FI_COLLECTIVE FI_READ FI_WRITE FI_RECV FI_SEND
    FI_REMOTE_READ FI_REMOTE_WRITE FI_MULTI_RECV FI_REMOTE_CQ_DATA FI_MORE FI_PEEK FI_TRIGGER FI_FENCE
    FI_COMPLETION FI_INJECT FI_INJECT_COMPLETE FI_TRANSMIT_COMPLETE FI_DELIVERY_COMPLETE FI_AFFINITY
    FI_COMMIT_COMPLETE FI_MATCH_COMPLETE FI_PEER_TRANSFER FI_HMEM FI_RMA_PMEM FI_SOURCE_ERR
    FI_LOCAL_COMM FI_REMOTE_COMM FI_SHARED_AV FI_RMA_EVENT FI_SOURCE FI_NAMED_RX_CTX FI_DIRECTED_RECV
    FI_TAGGED_DIRECTED_RECV FI_PEER FI_XPU FI_AV_USER_ID
];

const ORDERS: [(u64, &str); 17] = named![
    FI_ORDER_RAR FI_ORDER_RAW FI_ORDER_RAS FI_ORDER_WAR FI_ORDER_WAW FI_ORDER_WAS FI_ORDER_SAR FI_ORDER_SAW
    FI_ORDER_SAS FI_ORDER_RMA_RAR FI_ORDER_RMA_RAW FI_ORDER_RMA_WAR FI_ORDER_RMA_WAW
    FI_ORDER_ATOMIC_RAR FI_ORDER_ATOMIC_RAW FI_ORDER_ATOMIC_WAR FI_ORDER_ATOMIC_WAW
];

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { what, asked, offered, kind } = *self;
        let lacking = asked & !offered;
        match kind {
            Kind::Word => f.write_str(what),
            Kind::Most => write!(f, "{what}: {asked} asked, at most {offered} offered"),
            Kind::Code => write!(f, "{what}: {asked:#x} asked, {offered:#x} offered"),
            Kind::Orders => write!(f, "{what}: {} asked and not offered", names(&ORDERS, lacking)),
            Kind::Flags => write!(f, "{what}: {} asked and not offered", names(&FLAGS, lacking)),
        }
    }
}

/// The names of bits, and the number of those that have none here.
fn names(of: &[(u64, &str)], mut bits: u64) -> String {
    let mut found = Vec::new();
    for (bit, name) in of {
        if bits & bit != 0 {
            found.push((*name).to_owned());
            bits &= !bit;
        }
    }
    if bits != 0 {
        found.push(format!("{bits:#x}"));
    }
    found.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: Kind, asked: u64, offered: u64) -> String {
        Refusal { what: "capabilities", asked, offered, kind }.to_string()
    }

    #[test]
    fn what_lacks_is_named() {
        let asked = FI_MSG | FI_COLLECTIVE | FI_MULTICAST | 1 << 62;
        assert_eq!(
            text(Kind::Flags, asked, FI_MSG),
            "capabilities: FI_MULTICAST, FI_COLLECTIVE, 0x4000000000000000 asked and not offered"
        );
        assert!(
            text(Kind::Orders, FI_ORDER_SAW | FI_ORDER_SAS, FI_ORDER_SAS).contains(" FI_ORDER_SAW asked")
        );
        assert_eq!(text(Kind::Most, 8192, 4096), "capabilities: 8192 asked, at most 4096 offered");
        assert_eq!(text(Kind::Word, 0, 0), "capabilities");
    }

    #[test]
    fn no_bit_has_two_names() {
        for table in [&FLAGS[..], &ORDERS] {
            for (k, (bit, name)) in table.iter().enumerate() {
                assert!(bit.is_power_of_two(), "{name}");
                for (other, second) in &table[..k] {
                    assert!(bit != other, "{name} is {second}");
                }
            }
        }
    }
}
