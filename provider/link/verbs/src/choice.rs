//! Which device, port and GID packets go by, and how large queues are there.

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::path::PathBuf;

use rdma_sys::{
    Channel, Context, Cq, Device, Error, Gid, GidType, IBV_ATOMIC_GLOB, Library, Pd, Port, Qp, QpInit, Srq,
    SrqInit, ibv_wc,
};

use register::Registry;

use crate::bounces::Bounces;
use crate::pairs::Pairs;
use crate::probe::Own;
use crate::receives::{CHUNK, Receives};
use crate::registered::Adapter;
use crate::sends::Sends;
use crate::state::{Found, Objects, Route, Sizes, Verbs};
use crate::windows::{self, Windows};

mod asked;
pub(crate) mod patience;

pub use asked::{Asked, ask};
use patience::Patience;

/// Where Linux lists the devices.
const DEVICES: &str = "/sys/class/infiniband";
/// Bytes of a message, at most.
const MESSAGE: usize = 64 << 10;
/// Places that long messages are sent from.
const SENDS: usize = 32;
/// Slots for the sends of a queue pair.
const SEND_WR: u32 = 64;
/// Most places that messages are received into: those of the shared queue, and those of all queue pairs.
const SHARED: usize = 256;
const OWN: usize = 4096;
/// How many messages of one peer there is room for in the shared queue.
const WINDOW: u32 = 32;
/// Most completions, where the device has so many.
const ENTRIES: u32 = 8192;
/// Completions taken in one go.
const BATCH: usize = 16;
/// Fewest completions: those of one peer.
const LEAST: u32 = 48;
/// Most reads under way by a queue pair, each way.
const READS: i32 = 16;
/// Longest access, where messages of the device may be as long: of a length that a request can name.
const ACCESS: usize = 1 << 30;
/// The vendor that soft RoCE (rxe) says it has.
const SOFT_ROCE: u32 = 0xff_ffff;
/// Inline sizes that are tried.
const INLINE: [u32; 7] = [512, 256, 128, 64, 32, 16, 0];

/// What is to be used: where nothing is said, the first port that is active, best one with the address of
/// the endpoint, by a GID that is routed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The name of the device, as in /sys/class/infiniband.
    pub device: Option<String>,
    /// The port, from 1.
    pub port: Option<u8>,
    /// The index of the GID.
    pub gid: Option<u8>,
    /// The path MTU in bytes.
    pub mtu: Option<u32>,
    /// The library, if it is not the one that the linker finds.
    pub library: Option<PathBuf>,
    /// Memory of the host is registered on demand for accesses of this side.
    pub on_demand: bool,
    /// Where the kernel lists its clients for memory of other devices, if elsewhere than Linux does.
    pub clients: Option<PathBuf>,
}

/// Whether this host has a device.
pub fn has_device() -> bool {
    std::fs::read_dir(DEVICES).is_ok_and(|mut all| all.next().is_some())
}

/// How well a port suits.
type Rank = (bool, bool);

/// Ports that can be used, the best one first; and why others cannot.
type Ports = (Vec<(Rank, Context, Route)>, Vec<String>);

/// The ports that are to be used, for an endpoint with this address. An error says why there is none.
fn find(options: &Options, own: IpAddr) -> Result<Ports, Vec<String>> {
    let all = |e: Error| vec![e.to_string()];
    let library = match &options.library {
        Some(path) => Library::open_at(path),
        None => Library::open(),
    };
    let devices = Device::list(&library.map_err(all)?).map_err(all)?;
    let mut refused = Vec::new();
    if devices.is_empty() {
        return Err(vec!["this host has no RDMA device that the process may use".into()]);
    }
    let mut found: Vec<(Rank, Context, Route)> = Vec::new();
    for device in &devices {
        let name = device.name();
        if options.device.as_ref().is_some_and(|wanted| *wanted != name) {
            refused.push(format!("{name}: FI_STRAIT_VERBS_DEVICE names another one"));
            continue;
        }
        match ports(device, options, own) {
            Ok(ports) => {
                found.extend(ports.0);
                refused.extend(ports.1.into_iter().map(|why| format!("{name}: {why}")));
            }
            Err(why) => refused.push(format!("{name}: {why}")),
        }
    }
    // Of those that suit as well the first one.
    found.sort_by_key(|(rank, ..)| std::cmp::Reverse(*rank));
    if let Some(wanted) = options.device.as_ref().filter(|d| devices.iter().all(|one| one.name() != **d)) {
        let names: Vec<String> = devices.iter().map(Device::name).collect();
        return Err(vec![format!(
            "there is no device {wanted}: FI_STRAIT_VERBS_DEVICE takes {}",
            names.join(" or ")
        )]);
    }
    if found.is_empty() { Err(refused) } else { Ok((found, refused)) }
}

/// Opens the port that suits best, for an endpoint with this address; and why others do not. An error says
/// why none does.
pub fn open(options: &Options, own: IpAddr) -> Result<(Verbs, Vec<String>), Vec<String>> {
    let (found, mut refused) = find(options, own)?;
    for (_, context, route) in found {
        let name = format!("{} port {}", context.device().name(), route.port.number);
        match open_port(&context, route, options) {
            Ok(verbs) => return Ok((verbs, refused)),
            Err(why) => refused.push(format!("{name}: {why}")),
        }
    }
    Err(refused)
}

/// The ports of a device that can be used, and why others cannot.
fn ports(device: &Device, options: &Options, own: IpAddr) -> Result<Ports, String> {
    if device.is_iwarp() {
        return Err("its connections are iWARP's, which need librdmacm: use ofi:verbs;ofi_rxm".into());
    }
    if !device.is_infiniband() {
        return Err("it has no reliable connections of InfiniBand or RoCE".into());
    }
    let context = Context::open(device).map_err(|e| e.to_string())?;
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for number in 1..=context.attributes().phys_port_cnt {
        if options.port.is_some_and(|wanted| wanted != number) {
            refused.push(format!("port {number}: FI_STRAIT_VERBS_PORT names another one"));
            continue;
        }
        let route =
            context.port(number).map_err(|e| e.to_string()).and_then(|p| route(&context, p, options, own));
        match route {
            Ok((rank, route)) => found.push((rank, context.clone(), route)),
            Err(why) => refused.push(format!("port {number}: {why}")),
        }
    }
    if found.is_empty() && refused.is_empty() {
        return Err("it has no ports".into());
    }
    Ok((found, refused))
}

/// How packets leave a port.
fn route(context: &Context, port: Port, options: &Options, own: IpAddr) -> Result<(Rank, Route), String> {
    if !port.is_active() {
        return Err("it is not active".into());
    }
    if (port.attr.max_msg_sz as usize) < MESSAGE {
        return Err(format!("its messages have {} bytes at most", port.attr.max_msg_sz));
    }
    let gid = match options.gid {
        Some(index) => {
            let gid = context.gid(&port, index);
            Some(gid.ok_or_else(|| format!("FI_STRAIT_VERBS_GID names entry {index}, which is empty"))?)
        }
        None => best_gid(&context.gids(&port), own),
    };
    let global = port.is_ethernet() || options.gid.is_some() || port.attr.lid == 0;
    if global && gid.is_none() {
        return Err("it has no GID".into());
    }
    let wanted =
        options.mtu.map_or(port.attr.active_mtu, |bytes| (1..5).find(|m| 128 << m >= bytes).unwrap_or(5));
    let mtu = wanted.min(port.attr.active_mtu).clamp(1, 5) as u8;
    let is_own = gid.is_some_and(|gid| is_of(&gid, own));
    let is_routed = gid.is_some_and(|gid| !gid.is_link_local()) || !port.is_ethernet();
    Ok(((is_own, is_routed), Route { port, gid, mtu, global }))
}

/// Whether a GID stands for this address.
fn is_of(gid: &Gid, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => gid.ipv4() == Some(v4),
        IpAddr::V6(v6) => gid.bytes == v6.octets(),
    }
}

/// The GID that stands for the address, else one that is routed, else any: by RoCE v2 where there is that.
fn best_gid(gids: &[Gid], own: IpAddr) -> Option<Gid> {
    let rank = |gid: &Gid| {
        let is_v2 = [GidType::RoceV2, GidType::Ib].contains(&gid.kind);
        (is_of(gid, own), !gid.is_link_local(), is_v2, gid.ipv4().is_some(), std::cmp::Reverse(gid.index))
    };
    gids.iter().max_by_key(|gid| rank(gid)).copied()
}

/// Opens a port.
fn open_port(context: &Context, route: Route, options: &Options) -> Result<Verbs, String> {
    let text = |e: Error| e.to_string();
    let attributes = context.attributes();
    let most = |n: i32| u32::try_from(n).unwrap_or(0);
    let entries = entries(context)?;
    let pd = Pd::new(context).map_err(text)?;
    let channel = Channel::new(context).map_err(text)?;
    channel.set_nonblocking().map_err(text)?;
    context.set_nonblocking().map_err(text)?;
    let cq = Cq::new(context, entries, Some(&channel), 0, 0).map_err(text)?;
    // Of the completions a part is of receives, whose places say how many there can be.
    let half = (entries / 2) as usize;
    let places = half.min(SHARED) / CHUNK * CHUNK;
    let init = SrqInit { max_wr: (places as u32).min(most(attributes.max_srq_wr)), max_sge: 1 };
    let wanted = (most(attributes.max_srq) > 0).then(|| Srq::new(&pd, init, 0));
    let srq = match wanted {
        Some(Ok(srq)) => Some(srq),
        Some(Err(e)) => {
            log::debug!("{}: no shared receive queue: {e}", context.device().name());
            None
        }
        None => None,
    };
    let places = match &srq {
        Some(_) => init.max_wr as usize / CHUNK * CHUNK,
        None => half.min(OWN) / CHUNK * CHUNK,
    };
    let mut receives = Receives::new(&pd, srq, MESSAGE, places);
    let window = if receives.srq().is_some() { WINDOW.min(places as u32) } else { CHUNK as u32 };
    if receives.srq().is_some() {
        receives.grow()?;
    }
    let sends = Sends::new(&pd, SENDS, MESSAGE)?;
    let send_wr = SEND_WR.min(most(attributes.max_qp_wr)).min(entries / 4);
    let recv_wr = if receives.srq().is_some() { 0 } else { CHUNK as u32 };
    let (serves, starts) = reads(context);
    let lacks = lacks(context, &pd);
    let access = if lacks.is_some() { 0 } else { (route.port.attr.max_msg_sz as usize).min(ACCESS) };
    // Others are atomic among the accesses by one device alone, and not with frames, which a processor
    // applies.
    let atomics = access > 0 && attributes.atomic_cap == IBV_ATOMIC_GLOB;
    let (most, inline) = (MESSAGE, 0);
    let repeats = attributes.vendor_id == SOFT_ROCE;
    let patience = Patience::of(attributes.local_ca_ack_delay);
    let sizes =
        Sizes { most, window, send_wr, recv_wr, inline, access, serves, starts, atomics, patience, repeats };
    let credits = entries as usize - places;
    let detail = detail(context, &route, lacks.as_deref());
    let adapter = Adapter::new(&pd, options.clients.as_deref(), own(&route));
    let (bounces, registered) = (Bounces::new(&pd), Registry::new(adapter, options.on_demand));
    let (windows, pairs, context) = (Windows::new(&pd), Pairs::default(), context.clone());
    let seconds = Default::default();
    let objects =
        Objects { windows, pairs, seconds, receives, sends, bounces, registered, cq, channel, pd, context };
    let mut verbs = Verbs {
        objects: ManuallyDrop::new(objects),
        route,
        sizes,
        detail,
        credits,
        half: credits / 2,
        did: Default::default(),
        dead: None,
        idle: 0,
        found: Found(vec![ibv_wc::default(); BATCH].into()),
        pid: std::process::id(),
    };
    verbs.sizes.inline = find_inline(&verbs.objects, sizes)?;
    Ok(verbs)
}

/// How many completions there is room for.
fn entries(context: &Context) -> Result<u32, String> {
    let entries = ENTRIES.min(u32::try_from(context.attributes().max_cqe).unwrap_or(0));
    if entries < LEAST {
        return Err(format!("its completion queues have {entries} entries at most, and {LEAST} are needed"));
    }
    Ok(entries)
}

/// Reads under way by a queue pair: of peers, and of this side.
fn reads(context: &Context) -> (u8, u8) {
    let attributes = context.attributes();
    let of = |n: i32| n.clamp(0, READS) as u8;
    (of(attributes.max_qp_rd_atom), of(attributes.max_qp_init_rd_atom))
}

/// What the device lacks so that all memory goes in frames. Without windows a key would serve any peer that
/// knows it.
fn lacks(context: &Context, pd: &Pd) -> Option<String> {
    let (serves, starts) = reads(context);
    match serves.min(starts) {
        0 => Some("no RDMA reads".into()),
        _ => windows::check(context, pd).err(),
    }
}

/// How a port is reached from itself.
fn own(route: &Route) -> Own {
    let Route { port, gid, mtu, global } = route;
    Own { gid: gid.filter(|_| *global), lid: port.attr.lid, port: port.number, mtu: *mtu }
}

/// How much the device sends inline: of no attribute, so that queue pairs find out.
fn find_inline(objects: &Objects, sizes: Sizes) -> Result<u32, String> {
    let Objects { receives, cq, pd, .. } = objects;
    let mut why = String::new();
    for max_inline in INLINE {
        let init = QpInit { max_inline, ..sizes.init() };
        match Qp::new(pd, cq, cq, receives.srq(), init) {
            Ok(_) => return Ok(max_inline),
            Err(e) => why = e.to_string(),
        }
    }
    Err(why)
}

fn detail(context: &Context, route: &Route, lacks: Option<&str>) -> String {
    let mtu = 128 << route.mtu;
    let by = match route.gid.filter(|_| route.global) {
        Some(gid) => {
            let address = std::net::Ipv6Addr::from(gid.bytes);
            let address = gid.ipv4().map_or_else(|| address.to_string(), |v4| v4.to_string());
            format!("GID {} {address}", gid.index)
        }
        None => format!("LID {}", route.port.attr.lid),
    };
    let lacks = lacks.map_or_else(String::new, |what| format!(", {what}: memory goes in frames"));
    format!("{} port {}, {by}, MTU {mtu}{lacks}", context.device().name(), route.port.number)
}
