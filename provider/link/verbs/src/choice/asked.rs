//! By which way memory would be registered with the device that an endpoint would have.

use std::net::IpAddr;

use hmem::registry::AdapterWrites;
use hmem::{Caps, Kind, Span};
use rdma_sys::{Context, Pd};
use register::{Device as _, Refusal, Registry, Uses, Way};

use super::{Options, entries, find, lacks, own};
use crate::registered::Adapter;
use crate::state::Route;

/// So much of the memory is registered, and let go of; all of a client's.
const LEN: usize = 64 << 10;
/// A domain of one peer, as dma-bufs need.
const PEER: u32 = 1;
const DMABUFS: [Way; 2] = [Way::DmabufPcie, Way::Dmabuf];

/// What a device has answered.
#[derive(Debug)]
pub struct Asked {
    /// The device and its port; by which way it takes the memory, for this side and for peers, and which were
    /// refused; when what it writes is seen. Or why there is no device.
    pub text: String,
    /// Whether peers access the memory as a dma-buf, with the PCIe flag and without; else an errno, ENODEV
    /// where there is no device.
    pub dmabufs: [Result<(), i32>; 2],
}

impl Asked {
    fn refused(text: String, errno: i32) -> Asked {
        Asked { text, dmabufs: [Err(errno); 2] }
    }
}

/// Opens the device that an endpoint with these options and this address would have, registers the first
/// 64 KiB of the memory (all of a client's), and closes it. `frames`: why this memory goes to peers in frames
/// whatever the device is, if it does.
pub fn ask(options: &Options, name: IpAddr, span: Span, frames: Option<&str>) -> Asked {
    let found = match find(options, name) {
        Ok((found, _)) => found,
        Err(why) => return Asked::refused(why.join("; "), libc::ENODEV),
    };
    // A client may say otherwise of each part.
    let len = if span.kind() == Kind::Client { span.len() } else { span.len().min(LEN) };
    let span = span.part(0, len).unwrap_or(span);
    let (mut refused, mut errno) = (Vec::new(), libc::ENODEV);
    for (_, context, route) in found {
        let name = format!("{} port {}", context.device().name(), route.port.number);
        match ask_device(&context, &route, options, (span, frames)) {
            Ok(asked) => return Asked { text: format!("{name}: {}", asked.text), ..asked },
            Err((why, of)) => {
                refused.push(format!("{name}: {why}"));
                errno = of;
            }
        }
    }
    Asked::refused(refused.join("; "), errno)
}

fn ask_device(
    context: &Context,
    route: &Route,
    options: &Options,
    (span, frames): (Span, Option<&str>),
) -> Result<Asked, (String, i32)> {
    entries(context).map_err(|why| (why, libc::ENOSPC))?;
    let domain = || Pd::new(context).map_err(|e| (e.to_string(), e.errno()));
    let shared = domain()?;
    let kind = span.kind();
    if let Some(why) = lacks(context, &shared, route) {
        return Ok(Asked::refused(format!("{kind:?} in frames: {why}"), libc::EOPNOTSUPP));
    }
    let adapter = Adapter::new(&shared, options.clients.as_deref(), own(route));
    let mut registry = Registry::new(adapter, options.on_demand);
    let unasked = register_and_close(&mut registry, span, Uses::default()).err().flatten();
    let own = registry.describe(kind, false);
    let own = own.or(unasked.map(|why| format!("{kind:?} by no way ({why})")));
    let (peers, dmabufs) = match frames {
        Some(why) => (Some(format!("{kind:?} for peers in frames: {why}")), [Err(libc::EOPNOTSUPP); 2]),
        None => {
            // As an endpoint lends it: dma-bufs and memory of clients in a domain of the peer's alone, all
            // else by windows.
            let takes = |way: Way| matches!(registry.outcome(kind, false, way), Some(Ok(())));
            let is_apart = Way::ALL.into_iter().any(|way| way.is_apart() && takes(way));
            let apart = is_apart.then(domain).transpose()?;
            let adapter = registry.device();
            adapter.try_dmabufs(None);
            apart.iter().for_each(|pd| adapter.add_domain(PEER, pd, None));
            let domain = if apart.is_some() { PEER } else { 0 };
            let uses = Uses { remote_read: true, domain, ..Uses::default() };
            let found = register_and_close(&mut registry, span, uses);
            // Its refusals are mostly the same.
            let text = registry.describe(kind, true).map(|text| text.split(" (").next().map(str::to_owned));
            let errno = found.as_ref().err().copied().flatten().map_or(libc::EOPNOTSUPP, |why| why.errno);
            // These come in place of the others, or before them, which then are not tried.
            let instead = if kind == Kind::Client { Way::Client } else { Way::Own };
            let by_instead = match registry.outcome(kind, true, instead) {
                Some(Ok(())) if found == Ok(true) => Some(Ok(())),
                Some(Err(why)) if instead == Way::Client => Some(Err(why.errno)),
                _ => None,
            };
            let of = |way| match (by_instead, registry.outcome(kind, true, way)) {
                (Some(found), _) if way == Way::Dmabuf => found,
                (_, Some(found)) => found.map_err(|why| why.errno),
                _ => Err(errno),
            };
            (text.flatten(), DMABUFS.map(of))
        }
    };
    let parts = [own, peers, writes(registry.device(), span)];
    Ok(Asked { text: parts.into_iter().flatten().collect::<Vec<_>>().join(", "), dmabufs })
}

/// Registers memory and lets go of it: whether that was as a dma-buf, or what keeps it from each way, if that
/// is so.
fn register_and_close(
    registry: &mut Registry<Adapter>,
    span: Span,
    uses: Uses,
) -> Result<bool, Option<Refusal>> {
    match registry.register(span, uses, false).map(|(number, key)| (number, key.is_dmabuf())) {
        Ok((number, is_dmabuf)) => {
            if let Err((call, errno)) = registry.close(number) {
                log::error!("{call}: errno {errno}: memory that was registered to ask for it stays so");
            }
            Ok(is_dmabuf)
        }
        Err(why) => Err(why.into_iter().find(|why| why.way.is_none())),
    }
}

/// Of a device's memory: when the device sees what the adapter writes, if that writes it.
fn writes(adapter: &mut Adapter, span: Span) -> Option<String> {
    let device = Some(()).filter(|()| span.can(Caps::DEVICE));
    device.and_then(|()| match adapter.sees(span) {
        Ok(AdapterWrites::Seen) => Some("written without a flush".into()),
        Ok(AdapterWrites::Flushed) => {
            Some("written with a flush before the completion, by peers in frames".into())
        }
        Ok(AdapterWrites::Unknown) => Some("written in frames: no order of writes, and no flush".into()),
        // The refusal of each way is that.
        Err(_) => None,
    })
}
