//! By which way memory would be registered with the device that an endpoint would have.

use std::net::IpAddr;

use hmem::registry::AdapterWrites;
use hmem::{Caps, Span};
use rdma_sys::{Context, Error, Pd};
use register::{Device as _, Refusal, Registry, Uses, Way};

use super::{Options, find, own};
use crate::registered::Adapter;
use crate::state::Route;

/// So much of the memory is registered, and let go of.
const LEN: usize = 64 << 10;
/// A domain of one peer, as dma-bufs need.
const PEERS: u32 = 1;

/// What a device has answered.
#[derive(Debug)]
pub struct Asked {
    /// The device and its port; by which way it takes the memory, for this side and for peers, and which were
    /// refused; when what it writes is seen. Or why there is no device.
    pub text: String,
    /// Of dma-bufs, with the PCIe flag and without, what has refused them; `None`: nothing was asked.
    pub dmabufs: [Option<Result<(), Refusal>>; 2],
}

/// Opens the device that an endpoint with these options and this address would have, registers the first
/// 64 KiB of the memory, and closes it.
pub fn ask(options: &Options, name: IpAddr, span: Span) -> Asked {
    let first = find(options, name).map(|(found, _)| found.into_iter().next());
    let (context, route) = match first {
        Ok(Some((_, context, route))) => (context, route),
        Ok(None) => return Asked { text: "no RDMA device".into(), dmabufs: [None; 2] },
        Err(why) => return Asked { text: why.join("; "), dmabufs: [None; 2] },
    };
    let name = format!("{} port {}", context.device().name(), route.port.number);
    let span = span.part(0, span.len().min(LEN)).unwrap_or(span);
    match ask_device(&context, &route, options, span) {
        Ok((text, dmabufs)) => Asked { text: format!("{name}: {text}"), dmabufs },
        Err(e) => Asked { text: format!("{name}: {e}"), dmabufs: [None; 2] },
    }
}

type Answer = (String, [Option<Result<(), Refusal>>; 2]);

fn ask_device(context: &Context, route: &Route, options: &Options, span: Span) -> Result<Answer, Error> {
    let (shared, of_peer) = (Pd::new(context)?, Pd::new(context)?);
    let mut adapter = Adapter::new(&shared, options.clients.as_deref(), own(route));
    adapter.add_domain(PEERS, &of_peer);
    let writes = writes(&mut adapter, span);
    let mut registry = Registry::new(adapter, options.on_demand);
    let mut refusals = Vec::new();
    for uses in [Uses::default(), Uses { remote_read: true, domain: PEERS, ..Uses::default() }] {
        match registry.register(span, uses, false).map(|(number, _)| number) {
            Ok(number) => {
                if let Err((call, errno)) = registry.close(number) {
                    log::error!("{call}: errno {errno}: memory that was registered to ask for it stays so");
                }
            }
            Err(why) => refusals.extend(why.into_iter().filter(|why| why.way.is_none())),
        }
    }
    let kind = span.kind();
    let own = registry.describe(kind, false);
    // Its refusals are mostly the same.
    let peers = registry.describe(kind, true).map(|text| text.split(" (").next().map(str::to_owned));
    let unasked = refusals.first().map(|why| format!("{kind:?} by no way ({why})"));
    let parts = [own.or(unasked), peers.flatten(), writes];
    let dmabufs = [Way::DmabufPcie, Way::Dmabuf].map(|way| registry.outcome(kind, false, way));
    Ok((parts.into_iter().flatten().collect::<Vec<_>>().join(", "), dmabufs))
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
