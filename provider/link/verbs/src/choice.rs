//! Which device, port and GID packets go by, and how large queues are there.

use std::cmp::Reverse;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::path::PathBuf;

use below::{Below as _, RAILS};
use ipc::Ports;
use rdma_sys::{
    Channel, Context, Cq, Device, Error, IBV_ATOMIC_GLOB, Library, Pd, Port, Qp, QpInit, Srq, SrqInit, ibv_wc,
};

use register::Registry;

use crate::bounces::Bounces;
use crate::joining::manager::Manager;
use crate::joining::place::Place;
use crate::pairs::Pairs;
use crate::probe::Own;
use crate::rails::Rails;
use crate::receives::{CHUNK, Receives};
use crate::registered::Adapter;
use crate::sends::Sends;
use crate::state::{Found, MOST_INLINE, Objects, Route, Sizes, Verbs};
use crate::windows::{self, Windows};

mod asked;
mod gids;
mod nearness;
pub(crate) mod patience;

pub use asked::{Asked, ask};
use gids::{best_gid, is_of};
use nearness::{Center, Nearness};
use patience::Patience;

/// Where Linux lists the devices.
const DEVICES: &str = "/sys/class/infiniband";
/// Bytes of a message, at most.
const MESSAGE: usize = 64 << 10;
/// Places that long messages are sent from.
const SENDS: usize = 32;
/// Slots for the sends of a queue pair: drivers have room for a power of two, of which soft RoCE's uses one
/// less.
const SEND_WR: u32 = 63;
/// Most places that messages are received into: those of the shared queue, and those of all queue pairs.
const SHARED: usize = 256;
const OWN: usize = 4096;
/// How many messages of one peer there is room for in the shared queue.
const WINDOW: u32 = 32;
/// Most completions, where the device has so many.
const ENTRIES: u32 = 8192;
/// Completions taken in one go: as many as it takes to know that half of the receives are in use.
const BATCH: usize = SHARED / 2;
/// Fewest completions: those of one peer.
const LEAST: u32 = 48;
/// Most reads under way by a queue pair, each way.
const READS: i32 = 16;
/// Longest access, where messages of the device may be as long: of a length that a request can name.
const ACCESS: usize = 1 << 30;
/// The vendor that soft RoCE (rxe) says it has.
const SOFT_ROCE: u32 = 0xff_ffff;
/// Inline sizes that are tried.
const INLINE: [u32; 7] = [MOST_INLINE as u32, 256, 128, 64, 32, 16, 0];

/// What is to be used: where nothing is said, a port that is active, with the address of the endpoint, or a
/// GID that is routed; of several the nearest one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of the device, as in /sys/class/infiniband, or several with commas, the best one first.
    pub device: Option<String>,
    /// The port, from 1.
    pub port: Option<u8>,
    /// The index of the GID.
    pub gid: Option<u8>,
    /// The path MTU in bytes.
    pub mtu: Option<u32>,
    /// The library, if it is not the one that the linker finds; the same of librdmacm.
    pub library: Option<PathBuf>,
    pub manager: Option<PathBuf>,
    /// Memory of the host is registered on demand for accesses of this side.
    pub on_demand: bool,
    /// Where the kernel lists its clients for memory of other devices, if elsewhere than Linux does.
    pub clients: Option<PathBuf>,
    /// How many ports a connection uses, at most: the first, and its rails.
    pub rails: usize,
    /// The ports of TCP that connections of iWARP may be listened for at.
    pub ports: Ports,
    /// Where sysfs is, if elsewhere than Linux has it.
    pub sysfs: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: None,
            port: None,
            gid: None,
            mtu: None,
            library: None,
            manager: None,
            on_demand: false,
            clients: None,
            rails: 1,
            ports: Ports::default(),
            sysfs: None,
        }
    }
}

/// Whether this host has a device.
pub fn has_device() -> bool {
    std::fs::read_dir(DEVICES).is_ok_and(|mut all| all.next().is_some())
}

/// How well a port suits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// How far at the end of the list of [`Options::device`] its device is.
    named: Reverse<usize>,
    /// Whether its device is not one of iWARP, by which all memory goes in frames.
    reads: bool,
    /// Whether it has the endpoint's address.
    own: bool,
    /// Whether its address is routed.
    routed: bool,
    nearness: Nearness,
}

/// Ports that can be used, and why others cannot.
type Suiting<R> = (Vec<(R, Context, Route)>, Vec<String>);

/// The ports that are to be used, the best one first, for an endpoint with this address. An error says why
/// there is none.
fn find(options: &Options, own: IpAddr) -> Result<Suiting<Rank>, Vec<String>> {
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
    let wanted: Option<Vec<&str>> = options
        .device
        .as_ref()
        .map(|names| names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect());
    let place = |wanted: &Option<Vec<&str>>, name: &str| match wanted {
        Some(names) => names.iter().position(|wanted| *wanted == name),
        None => Some(0),
    };
    let center = Center::find(options.sysfs.as_deref());
    let mut found: Vec<(Rank, Context, Route)> = Vec::new();
    for device in &devices {
        let name = device.name();
        let Some(named) = place(&wanted, &name) else {
            refused.push(format!("{name}: FI_STRAIT_VERBS_DEVICE names another one"));
            continue;
        };
        let nearness = center.near_to(&device.sysfs());
        match ports(device, options, own) {
            Ok(ports) => {
                found.extend(ports.0.into_iter().map(|((own, routed), context, route)| {
                    let reads = route.manager.is_none();
                    (Rank { named: Reverse(named), reads, own, routed, nearness }, context, route)
                }));
                refused.extend(ports.1.into_iter().map(|why| format!("{name}: {why}")));
            }
            Err(why) => refused.push(format!("{name}: {why}")),
        }
    }
    // Of those that suit as well the first one.
    found.sort_by_key(|(rank, ..)| Reverse(*rank));
    let ranks: Vec<Rank> = found.iter().map(|(rank, ..)| *rank).collect();
    for (at, (rank, _, route)) in found.iter_mut().enumerate() {
        // Of those that are as near none is the nearest.
        let is_nearer = ranks[at + 1..].iter().any(|other| other.nearness < rank.nearness);
        route.reason = match wanted.is_none() && ranks.len() > 1 {
            true if rank.own => Some("with the endpoint's address".into()),
            true if is_nearer => center.reason(rank.nearness),
            _ => None,
        };
    }
    let is_lacking = |name: &&str| devices.iter().all(|one| one.name() != **name);
    let lacking: Vec<&str> = wanted.iter().flatten().copied().filter(is_lacking).collect();
    if !lacking.is_empty() {
        let names: Vec<String> = devices.iter().map(Device::name).collect();
        let (names, all) = (names.join(" or "), lacking.join(", "));
        let why = format!("there is no device {all}: FI_STRAIT_VERBS_DEVICE takes {names}");
        if wanted.as_ref().is_some_and(|wanted| wanted.len() == lacking.len()) {
            return Err(vec![why]);
        }
        refused.push(why);
    }
    if found.is_empty() { Err(refused) } else { Ok((found, refused)) }
}

fn name_of(context: &Context, route: &Route) -> String {
    format!("{} port {}", context.device().name(), route.port.number)
}

/// Opens the next best ports that have the same sort of addresses.
fn add_rails(
    verbs: &mut Verbs,
    others: Vec<(Context, Route)>,
    options: &Options,
    refused: &mut Vec<String>,
) -> Result<(), String> {
    if options.rails < 2 || verbs.sizes.access == 0 {
        return Ok(());
    }
    let mut ports = Vec::new();
    for (context, route) in others {
        if ports.len() + 1 == options.rails.min(RAILS + 1) {
            break;
        }
        let name = name_of(&context, &route);
        let opened = match route.sort() == verbs.route.sort() {
            // Events of a device come by its context: each port has its own.
            true => Context::open(context.device())
                .map_err(|e| e.to_string())
                .and_then(|context| open_port(&context, route, options, true)),
            false if route.manager.is_some() => Err("no memory is accessed by iWARP".into()),
            false => Err("its link layer is another one".into()),
        };
        match opened {
            Ok(port) => ports.push(port),
            Err(why) => refused.push(format!("{name}: as a rail: {why}")),
        }
    }
    let details: String = ports.iter().map(|port| format!("; rail {}", port.detail)).collect();
    // A part fits each of them.
    let access = ports.iter().map(|port| port.sizes.access).fold(verbs.sizes.access, usize::min);
    let waits = verbs.waits();
    let fds = waits.own.zip(waits.lender).ok_or("it has no descriptors")?;
    verbs.rails = Rails::new(ports, fds).map_err(|e| e.to_string())?;
    verbs.detail.push_str(&details);
    verbs.sizes.access = access;
    Ok(())
}

/// Opens the port that suits best, for an endpoint with this address, and others as its rails; and why
/// further ones do not. An error says why none does.
pub fn open(options: &Options, own: IpAddr) -> Result<(Verbs, Vec<String>), Vec<String>> {
    let (found, mut refused) = find(options, own)?;
    let mut found = found.into_iter();
    while let Some((rank, context, route)) = found.next() {
        let name = name_of(&context, &route);
        match open_port(&context, route, options, false) {
            Ok(mut verbs) => {
                // What is link-local reaches no peer that is routed.
                let others = found.filter(|(other, ..)| other.routed || !rank.routed);
                let others = others.map(|(_, context, route)| (context, route)).collect();
                if let Err(why) = add_rails(&mut verbs, others, options, &mut refused) {
                    refused.push(format!("{name}: its rails: {why}"));
                }
                return Ok((verbs, refused));
            }
            Err(why) => refused.push(format!("{name}: {why}")),
        }
    }
    Err(refused)
}

/// The ports of a device that can be used, and why others cannot.
fn ports(device: &Device, options: &Options, own: IpAddr) -> Result<Suiting<(bool, bool)>, String> {
    if !device.is_infiniband() && !device.is_iwarp() {
        return Err("it has no reliable connections of InfiniBand, RoCE or iWARP".into());
    }
    let place =
        device.is_iwarp().then(|| Place::find(options.manager.as_deref(), device, own, options.ports));
    let place = place.transpose()?;
    let context = Context::open(device).map_err(|e| e.to_string())?;
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for number in 1..=context.attributes().phys_port_cnt {
        if options.port.is_some_and(|wanted| wanted != number) {
            refused.push(format!("port {number}: FI_STRAIT_VERBS_PORT names another one"));
            continue;
        }
        let port = context.port(number).map_err(|e| e.to_string());
        let route = port.and_then(|port| route(&context, port, options, own, place.clone()));
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

/// How packets leave a port; whether by the endpoint's address, and by one that is routed.
fn route(
    context: &Context,
    port: Port,
    options: &Options,
    own: IpAddr,
    place: Option<Place>,
) -> Result<((bool, bool), Route), String> {
    if !port.is_active() {
        return Err("it is not active".into());
    }
    if (port.attr.max_msg_sz as usize) < MESSAGE {
        return Err(format!("its messages have {} bytes at most", port.attr.max_msg_sz));
    }
    let gid = match options.gid {
        // GIDs of iWARP stand for no address.
        _ if place.is_some() => None,
        Some(index) => {
            let gid = context.gid(&port, index);
            Some(gid.ok_or_else(|| format!("FI_STRAIT_VERBS_GID names entry {index}, which is empty"))?)
        }
        None => best_gid(&context.gids(&port), own),
    };
    let global = place.is_none() && (port.is_ethernet() || options.gid.is_some() || port.attr.lid == 0);
    if global && gid.is_none() {
        return Err("it has no GID".into());
    }
    let wanted =
        options.mtu.map_or(port.attr.active_mtu, |bytes| (1..5).find(|m| 128 << m >= bytes).unwrap_or(5));
    let mtu = wanted.min(port.attr.active_mtu).clamp(1, 5) as u8;
    let is_own = place.is_some() || gid.is_some_and(|gid| is_of(&gid, own));
    let is_routed = place.is_some() || gid.is_some_and(|gid| !gid.is_link_local()) || !port.is_ethernet();
    Ok(((is_own, is_routed), Route { port, gid, mtu, global, reason: None, manager: place }))
}

/// Opens a port, as the first one or as a rail, by which no messages go.
fn open_port(context: &Context, route: Route, options: &Options, is_rail: bool) -> Result<Verbs, String> {
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
    let half = if is_rail { 0 } else { (entries / 2) as usize };
    let places = half.min(SHARED) / CHUNK * CHUNK;
    let init = SrqInit { max_wr: (places as u32).min(most(attributes.max_srq_wr)), max_sge: 1 };
    // Of iWARP no request waits for a receive: each queue pair has those of its window.
    let is_shared = most(attributes.max_srq) > 0 && !is_rail && route.manager.is_none();
    let wanted = is_shared.then(|| Srq::new(&pd, init, 0));
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
    let window = if srq.is_some() { WINDOW.min(places as u32) } else { CHUNK as u32 };
    let mut receives = Receives::new(&pd, srq, MESSAGE, (window as usize, places));
    if receives.srq().is_some() {
        receives.begin()?;
    }
    let sends = Sends::new(&pd, if is_rail { 0 } else { SENDS }, MESSAGE)?;
    let send_wr = SEND_WR.min(most(attributes.max_qp_wr)).min(entries / 4);
    let recv_wr = match receives.srq() {
        Some(_) => 0,
        None if is_rail => 1,
        None => CHUNK as u32,
    };
    let (serves, starts) = reads(context);
    // Keys of a rail are of a domain of each peer's, and need no windows.
    let lacks = match is_rail {
        true if serves.min(starts) == 0 => return Err("no RDMA reads".into()),
        true => None,
        false => lacks(context, &pd, &route),
    };
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
    let manager = route.manager.as_ref();
    let manager = manager.map(|place| Manager::open(place, context.device(), (serves, starts), &channel));
    let manager = manager.transpose()?;
    let (bounces, registered) = (Bounces::new(&pd), Registry::new(adapter, options.on_demand));
    let (windows, pairs, context) = (Windows::new(&pd), Pairs::default(), context.clone());
    let seconds = Default::default();
    let objects = Objects {
        manager,
        windows,
        pairs,
        seconds,
        receives,
        sends,
        bounces,
        registered,
        cq,
        channel,
        pd,
        context,
    };
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
        rails: Rails::default(),
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
fn lacks(context: &Context, pd: &Pd, route: &Route) -> Option<String> {
    let (serves, starts) = reads(context);
    match serves.min(starts) {
        // A write of iWARP's ends before its bytes are there, and what is read into, the peer may write.
        _ if route.manager.is_some() => Some("iWARP".into()),
        0 => Some("no RDMA reads".into()),
        _ => windows::check(context, pd).err(),
    }
}

/// How a port is reached from itself.
fn own(route: &Route) -> Own {
    let Route { port, gid, mtu, global, .. } = route;
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
    let by = match (&route.manager, route.gid.filter(|_| route.global)) {
        (Some(place), _) => place.address().to_string(),
        (None, Some(gid)) => {
            let address = std::net::Ipv6Addr::from(gid.bytes);
            let address = gid.ipv4().map_or_else(|| address.to_string(), |v4| v4.to_string());
            format!("GID {} {address}", gid.index)
        }
        (None, None) => format!("LID {}", route.port.attr.lid),
    };
    let lacks = lacks.map_or_else(String::new, |what| format!(", {what}: memory goes in frames"));
    let reason = route.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format!("{} port {}{reason}, {by}, MTU {mtu}{lacks}", context.device().name(), route.port.number)
}
