//! Which provider is opened below, and by which hints.

use std::ffi::{CStr, CString};
use std::net::IpAddr;
use std::sync::Once;

use fabric_client::{Infos, fabric_of, provider_of};
use libfabric_sys as fi;

use crate::fabric::Fabric;

/// Fabrics, best first.
pub const FABRICS: [&str; 5] = ["cxi", "efa", "psm3", "opx", "verbs;ofi_rxm"];
/// What has no hardware of its own, best first: for tests, and where a link of Strait's own is not wanted.
pub const SOFT: [&str; 4] = ["tcp", "tcp;ofi_rxm", "net", "sockets"];

/// Where Linux lists the adapters of fabrics.
const ADAPTERS: [&str; 2] = ["/sys/class/infiniband", "/sys/class/cxi"];

// From include/ofi.h, which is not public; the same in 1.17 to 2.6.
/// Providers that FI_PROVIDER hides are asked, too.
const HIDDEN: u64 = 1 << 60;
/// No layers over others.
const CORE_ONLY: u64 = 1 << 59;
/// What FI_PROVIDER says of names is not looked at.
const INTERNAL: u64 = 1 << 58;

/// How the core may be asked, one way after the other: each finds what others do not. Where layers are asked
/// they log at FI_LOG_LEVEL=warn each question that finds nothing.
const WAYS: [u64; 3] = [INTERNAL, HIDDEN, HIDDEN | CORE_ONLY];
/// The same for a provider that is no layer.
const PLAIN: [u64; 3] = [HIDDEN | CORE_ONLY, INTERNAL, HIDDEN];

/// That the network below is another one than it would be, once in a process.
static SAID: Once = Once::new();

/// Messages, and reads of host memory.
const READS: u64 = fi::FI_MSG | fi::FI_RMA | fi::FI_SEND | fi::FI_RECV | fi::FI_READ | fi::FI_REMOTE_READ;
/// Writes besides.
const WRITES: u64 = fi::FI_WRITE | fi::FI_REMOTE_WRITE;

/// What a provider is to do beyond messages and reads of host memory, where it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// Read memory of devices.
    pub devices: bool,
    /// Write host memory: only where every peer is trusted. A provider may go on with a write that is
    /// arriving after the registration was closed, and a peer may say that its write is over when it is
    /// not.
    pub writes: bool,
}

/// The hints of a call of fi_getinfo(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wants {
    caps: u64,
    order: u64,
}

/// Whether this host has an adapter of a fabric.
pub fn has_adapter() -> bool {
    ADAPTERS.iter().any(|dir| std::fs::read_dir(dir).is_ok_and(|mut all| all.next().is_some()))
}

/// Whether a provider may be below: none that is or holds this one, none that reaches this host alone, and
/// none that only watches.
fn is_allowed(name: &str) -> bool {
    let never = ["strait", "lnx", "shm", "sm2", "off_coll", "coll"];
    name.split(';').all(|part| !never.contains(&part) && !part.starts_with("ofi_hook"))
}

/// Whether the core has a provider of this name with endpoints for messages, or any by the name of what is
/// below a layer. It is asked once and with few demands, since at FI_LOG_LEVEL=warn each layer logs each
/// question that finds nothing.
fn is_there(core: &fi::Core, name: &str) -> bool {
    // Layers are none of the core's own providers.
    let found = match name.split_once(';') {
        _ if name.starts_with("ofi_") => return true,
        Some((below, _)) => hints(core, below, 0).and_then(|hints| find(&hints, None, HIDDEN | CORE_ONLY)),
        None => ask(core, name, None, HIDDEN | CORE_ONLY, Wants { caps: fi::FI_MSG, order: 0 }),
    };
    found.err() != Some(-fi::FI_ENODATA)
}

/// Asks for endpoints of a provider that can exchange messages.
fn ask(
    core: &fi::Core,
    name: &str,
    node: Option<&CStr>,
    flags: u64,
    Wants { caps, order }: Wants,
) -> Result<Infos, i32> {
    let hints = hints(core, name, caps)?;
    let at = hints.at();
    // SAFETY: just allocated with all its attributes.
    unsafe {
        (*(*at).ep_attr).type_ = fi::FI_EP_RDM;
        (*(*at).tx_attr).msg_order = order;
        // A write is of use only if its completion can mean that the bytes are in the peer's memory.
        if caps & fi::FI_WRITE != 0 {
            (*(*at).tx_attr).op_flags = fi::FI_DELIVERY_COMPLETE;
        }
        (*(*at).rx_attr).msg_order = order;
        (*(*at).domain_attr).threading = fi::FI_THREAD_DOMAIN;
        (*(*at).domain_attr).resource_mgmt = fi::FI_RM_ENABLED;
    }
    let flags = if node.is_some() { flags | fi::FI_SOURCE } else { flags };
    find(&hints, node, flags)
}

/// The structures of the hints are those of 1.17, whatever the core has.
fn find(hints: &Infos, node: Option<&CStr>, flags: u64) -> Result<Infos, i32> {
    hints.find(fi::FI_VERSION(1, 17), node, flags)
}

/// What is served of a provider: its modes of operation and of registration.
fn hints(core: &fi::Core, name: &str, caps: u64) -> Result<Infos, i32> {
    let hints = Infos::hints(core, Some(name))?;
    let at = hints.at();
    // SAFETY: just allocated with all its attributes.
    unsafe {
        (*at).caps = caps;
        (*at).mode = fi::FI_CONTEXT | fi::FI_CONTEXT2;
        let domain = (*at).domain_attr;
        (*domain).mr_mode = fi::FI_MR_LOCAL
            | fi::FI_MR_VIRT_ADDR
            | fi::FI_MR_ALLOCATED
            | fi::FI_MR_PROV_KEY
            | fi::FI_MR_ENDPOINT;
        if caps & fi::FI_HMEM != 0 {
            (*domain).mr_mode |= fi::FI_MR_HMEM;
        }
    }
    Ok(hints)
}

/// Opens the first of these providers that can be opened, by an address of the host where the provider knows
/// addresses of IP; what was in the way of those before it. What is `beyond` it does
/// where it can. A name without a layer stands for the provider itself, and if that lacks endpoints for
/// messages, not for what is layered over it.
pub fn open(
    core: &fi::Core,
    names: &[&str],
    own: IpAddr,
    beyond: Beyond,
) -> Result<(Fabric, Vec<String>), Vec<String>> {
    let mut refused = Vec::new();
    for name in names {
        if !is_allowed(name) {
            refused.push(format!("{name}: not below Strait"));
            continue;
        }
        if !is_there(core, name) {
            refused.push(format!("{name}: not there"));
            continue;
        }
        let filter = std::env::var("FI_PROVIDER").unwrap_or_default();
        if let Some(below) = hidden_below(name, &filter) {
            refused.push(format!(
                "{name}: FI_PROVIDER hides {below} from it: FI_PROVIDER='strait,{below};strait' does not"
            ));
            continue;
        }
        match open_one(core, name, own, beyond) {
            Ok(fabric) => {
                if let Some(why) = refused.iter().find(|why| why.contains(": FI_PROVIDER hides ")) {
                    SAID.call_once(|| log::warn!("{own}: ofi is over {name}, and not over {why}"));
                }
                return Ok((fabric, refused));
            }
            Err(why) => refused.push(format!("{name}: {why}")),
        }
    }
    Err(refused)
}

/// What a layer is over, if this filter of the core's hides it: a layer asks for it by itself, finds nothing,
/// and logs several lines.
fn hidden_below<'a>(name: &'a str, filter: &str) -> Option<&'a str> {
    let (below, _) = name.split_once(';')?;
    let (negated, names) = filter.trim().strip_prefix('^').map_or((false, filter), |rest| (true, rest));
    let is_named = names.split([',', ';']).any(|one| one.trim().eq_ignore_ascii_case(below));
    (!names.trim().is_empty() && is_named == negated).then_some(below)
}

fn open_one(core: &fi::Core, name: &str, own: IpAddr, beyond: Beyond) -> Result<Fabric, String> {
    let node = CString::new(own.to_string()).ok();
    let mut why = String::from("not there");
    // With messages in order first: those that overtake others keep places to receive into until these have
    // come.
    let orders = [fi::FI_ORDER_SAS, 0];
    let asks = orders.into_iter().flat_map(|order| [(node.as_deref(), order), (None, order)]);
    // And with memory that is read without its owner, where there is that.
    let asks = asks.flat_map(|(node, order)| [READS, fi::FI_MSG].map(|caps| (node, Wants { caps, order })));
    // Fabrics that the provider does not open, whatever else the hints say.
    let mut closed: Vec<String> = Vec::new();
    let ways = if name.contains(';') { WAYS } else { PLAIN };
    for (node, wants) in asks {
        for flags in ways {
            let found = match ask(core, name, node, flags, wants) {
                Ok(found) => found,
                Err(e) if -e == fi::FI_ENODATA => continue,
                Err(e) => {
                    why = core.strerror(e);
                    continue;
                }
            };
            // And first of all with what is wanted beyond.
            let (hmem, writes) = (beyond.devices.then_some(fi::FI_HMEM), beyond.writes.then_some(WRITES));
            let further = [hmem.zip(writes).map(|(a, b)| a | b), hmem, writes];
            let further = further.into_iter().flatten().filter(|_| wants.caps == READS);
            let wider = further.map(|besides| Wants { caps: READS | besides, ..wants });
            let wider: Vec<Infos> = wider.filter_map(|w| ask(core, name, node, flags, w).ok()).collect();
            // SAFETY: entries of lists that are there.
            let is_it = |info: &*mut fi::fi_info| unsafe { provider_of(*info) } == name;
            for info in wider.iter().chain([&found]).flat_map(Infos::iter).filter(is_it) {
                // SAFETY: an element of the core's list.
                let of = unsafe { fabric_of(info) };
                if closed.contains(&of) {
                    continue;
                }
                // SAFETY: an element of the core's list.
                match unsafe { Fabric::open(core, info, name) } {
                    Ok(fabric) => return Ok(fabric),
                    Err(e) => {
                        if e.starts_with("fi_fabric: ") {
                            closed.push(of);
                        }
                        why = e;
                    }
                }
            }
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_filter_hides_from_a_layer_is_found() {
        for (name, filter, hidden) in [
            ("tcp;ofi_rxm", "strait", Some("tcp")),
            ("verbs;ofi_rxm", "strait,tcp;strait", Some("verbs")),
            ("tcp;ofi_rxm", "^TCP", Some("tcp")),
            ("tcp;ofi_rxm", "strait,tcp;strait", None),
            ("tcp;ofi_rxm", "strait, TCP", None),
            ("tcp;ofi_rxm", "^efa", None),
            ("tcp;ofi_rxm", "", None),
            ("tcp", "strait", None),
        ] {
            assert_eq!(hidden_below(name, filter), hidden, "{name} FI_PROVIDER={filter}");
        }
    }

    #[test]
    fn what_holds_this_provider_is_not_below_it() {
        assert!(FABRICS.iter().chain(&SOFT).all(|name| is_allowed(name)));
        for name in ["strait", "strait;ofi_rxm", "tcp;ofi_rxm;strait", "lnx", "shm", "tcp;ofi_hook_debug"] {
            assert!(!is_allowed(name), "{name}");
        }
    }
}
