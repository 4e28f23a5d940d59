//! The topology for people: a table, and a picture.

use std::fmt::Write as _;

use p2pmem::topology::{Device, Map, Topology};

/// Bytes as people write them.
pub fn bytes(n: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| n >> shift > 0 && n % (1 << shift) == 0) {
        Some((shift, unit)) => format!("{} {unit}", n >> shift),
        None => format!("{n} B"),
    }
}

/// The functions that publish memory.
pub fn publishers(all: &Topology) -> Vec<usize> {
    let publishes = |d: &Device| d.p2pmem.is_some_and(|m| m.published);
    (0..all.devices().len()).filter(|n| publishes(&all.devices()[*n])).collect()
}

/// The functions that may reach memory of others: storage, adapters, displays, accelerators, and what
/// publishes.
pub fn clients(all: &Topology) -> Vec<usize> {
    let reaches = |d: &Device| matches!(d.class >> 16, 0x01 | 0x02 | 0x03 | 0x12) || d.p2pmem.is_some();
    (0..all.devices().len()).filter(|n| reaches(&all.devices()[*n])).collect()
}

fn label(device: &Device) -> String {
    let mut text = device.address.to_string();
    for name in &device.names {
        text += " ";
        text += name;
    }
    text
}

fn note(device: &Device) -> String {
    let (vendor, id) = (device.vendor, device.device);
    let mut text = format!("{} [{vendor:04x}:{id:04x}]", device.sort());
    if let Some(memory) = device.p2pmem.filter(|m| m.published) {
        let _ = write!(text, ", publishes {}, {} free", bytes(memory.size), bytes(memory.available));
    }
    if device.is_bridge() && device.acs.redirects() {
        text += match device.acs {
            p2pmem::topology::config::Acs::Unreadable => ", ACS unknown (only root may read it)",
            _ => ", ACS redirects",
        };
    }
    text
}

/// The functions as they hang below each other: host, depth, function. Bridges with nothing below that
/// matters are left out if `all_of_them` is not set.
fn order(all: &Topology, all_of_them: bool) -> Vec<(usize, usize, usize)> {
    let shown = clients(all);
    let mut keep = vec![all_of_them; all.devices().len()];
    for n in shown {
        all.upward(n).for_each(|at| keep[at] = true);
    }
    let mut out = Vec::new();
    for host in 0..all.hosts().len() {
        let roots = (0..keep.len())
            .filter(|n| all.devices()[*n].upstream.is_none() && all.devices()[*n].host == host);
        // What is still to be shown, the next one last.
        let mut stack: Vec<(usize, usize)> = roots.map(|n| (0, n)).collect();
        stack.reverse();
        while let Some((depth, at)) = stack.pop() {
            if !keep[at] {
                continue;
            }
            out.push((host, depth, at));
            let below = (0..keep.len()).rev().filter(|n| all.devices()[*n].upstream == Some(at));
            stack.extend(below.map(|n| (depth + 1, n)));
        }
    }
    out
}

/// The tree, the distances, and why there is no way where there is none.
pub fn table(all: &Topology, every: bool) -> String {
    let mut out = String::new();
    let cpu = all.cpu();
    let passes = if cpu.passes_on() { "passes peer-to-peer requests on" } else { "host bridges decide" };
    let vendor = if cpu.vendor.is_empty() { "unknown" } else { &cpu.vendor };
    let _ = writeln!(out, "processor {vendor}, family {}: {passes}", cpu.family);
    let mut last = None;
    for (host, depth, at) in order(all, every) {
        if last.replace(host) != Some(host) {
            let host = all.hosts()[host];
            let _ = writeln!(out, "root bus {:04x}:{:02x}", host.domain, host.bus);
        }
        let device = &all.devices()[at];
        let name = format!("{:indent$}{}", "", label(device), indent = 2 * depth + 2);
        let _ = writeln!(out, "{name:<40} {}", note(device));
    }
    let (from, to) = (publishers(all), clients(all));
    if from.is_empty() {
        out += "\nNothing publishes peer memory. A kernel with CONFIG_PCI_P2PDMA and a driver that publishes are needed: nvme with a\n\
            controller memory buffer is one. Host memory is what `strait p2pmemd` gives then.\n";
        return out;
    }
    let _ = writeln!(out, "\n{:<32} {:<32} {:>8}  map", "publisher", "client", "distance");
    for a in &from {
        let mut rows: Vec<_> = to.iter().map(|b| (*b, all.route(*a, *b))).collect();
        rows.sort_by_key(|(_, route)| (!route.is_supported(), route.distance));
        for (b, route) in rows {
            let (a, b) = (label(&all.devices()[*a]), label(&all.devices()[b]));
            let distance = if route.is_supported() { route.distance.to_string() } else { "-".into() };
            let _ = writeln!(out, "{a:<32} {b:<32} {distance:>8}  {}: {route}", route.map.name());
        }
    }
    out += "\ndistance: steps in the tree from publisher to client, fewer is nearer. map: bus-address, requests turn round in a\n\
        switch; host-bridge, they pass the processor; host-memory, the publisher is host memory; not-supported, there is no way.\n";
    out
}

/// The way between two functions, step by step.
pub fn way(all: &Topology, publisher: usize, client: usize) -> String {
    let route = all.route(publisher, client);
    let mut out = format!("{}, distance {}: {route}\n", route.map.name(), route.distance);
    for address in &route.path {
        let Some(device) = all.find(*address).map(|n| &all.devices()[n]) else { continue };
        let _ = writeln!(out, "  {:<38} {}", label(device), note(device));
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const ROW: usize = 34;
const STEP: usize = 40;
const BOX: usize = 380;
const LEFT: usize = 20;

const LEGEND: [(&str, &str); 4] = [
    ("#cdeccd", "publishes memory"),
    ("#d6e4f5", "may use it"),
    ("#e8e8e8", "bridge"),
    ("#f7d9d0", "bridge whose ACS redirects"),
];

/// What a function is painted with.
fn colour(device: &Device) -> &'static str {
    match device {
        d if d.p2pmem.is_some_and(|m| m.published) => "#cdeccd",
        d if d.is_bridge() && d.acs.redirects() => "#f7d9d0",
        d if d.is_bridge() => "#e8e8e8",
        _ => "#d6e4f5",
    }
}

/// A picture, SVG: the tree, from each publisher to each client the distance, and the way of one pair.
pub fn svg(all: &Topology, pair: Option<(usize, usize)>) -> String {
    let rows = order(all, false);
    let (from, to) = (publishers(all), clients(all));
    let route = pair.map(|(a, b)| all.route(a, b));
    let on_way = |n: usize| route.as_ref().is_some_and(|r| r.path.contains(&all.devices()[n].address));
    let depth = rows.iter().map(|(_, depth, _)| *depth).max().unwrap_or(0);
    let column = LEFT + (depth + 1) * STEP + BOX + 30;
    let (width, mut body) = (column + from.len().max(1) * 130 + 20, String::new());
    let y = |row: usize| 70 + row * ROW;
    for (k, a) in from.iter().enumerate() {
        let (x, name) = (column + k * 130, escaped(&all.devices()[*a].address.to_string()));
        let _ = writeln!(body, "<text x=\"{x}\" y=\"50\" font-weight=\"bold\">{name}</text>");
    }
    let mut last = None;
    for (row, (host, depth, at)) in rows.iter().enumerate() {
        let device = &all.devices()[*at];
        let (x, top) = (LEFT + (depth + 1) * STEP, y(row));
        let parent = device.upstream.and_then(|up| rows.iter().position(|(.., n)| *n == up));
        let (px, py) = match parent {
            Some(up) => (x - STEP / 2, y(up) + 26),
            None => (LEFT + STEP / 2, top + 13),
        };
        if last.replace(host) != Some(host) {
            let host = all.hosts()[*host];
            let name = format!("{:04x}:{:02x}", host.domain, host.bus);
            let _ = writeln!(body, "<text x=\"2\" y=\"{}\" font-weight=\"bold\">{name}</text>", top + 2);
        }
        let both = on_way(*at) && device.upstream.is_none_or(&on_way);
        let (line, thick) = if both { ("#c00000", 3) } else { ("#808080", 1) };
        let (middle, style) = (top + 13, format!("fill=\"none\" stroke=\"{line}\" stroke-width=\"{thick}\""));
        let _ = writeln!(body, "<path d=\"M{px} {py} V{middle} H{x}\" {style}/>");
        let (edge, thick) = if on_way(*at) { ("#c00000", 2) } else { ("#606060", 1) };
        let fill = colour(device);
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"{top}\" width=\"{BOX}\" height=\"26\" rx=\"3\" fill=\"{fill}\" stroke=\"{edge}\" stroke-width=\"{thick}\"/>"
        );
        let (name, what) = (escaped(&label(device)), escaped(&note(device)));
        let _ = writeln!(body, "<text x=\"{}\" y=\"{}\">{name}<title>{what}</title></text>", x + 6, top + 17);
        let sort = escaped(device.sort());
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#505050\">{sort}</text>",
            x + BOX - 6,
            top + 17
        );
        for (k, a) in from.iter().enumerate().filter(|_| to.contains(at)) {
            let route = all.route(*a, *at);
            let (text, fill) = match route.map {
                Map::BusAddress => (format!("{} bus", route.distance), "#006000"),
                Map::NotSupported => ("none".into(), "#a00000"),
                _ => (format!("{} host bridge", route.distance), "#805000"),
            };
            let why = escaped(&route.to_string());
            let x = column + k * 130;
            let _ = writeln!(
                body,
                "<text x=\"{x}\" y=\"{}\" fill=\"{fill}\">{text}<title>{why}</title></text>",
                top + 17
            );
        }
    }
    let height = y(rows.len()) + 80;
    let mut x = LEFT;
    for (fill, what) in LEGEND {
        let top = height - 62;
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"{top}\" width=\"14\" height=\"14\" fill=\"{fill}\" stroke=\"#606060\"/>\
             <text x=\"{}\" y=\"{}\">{what}</text>",
            x + 20,
            top + 12
        );
        x += 34 + 7 * what.len();
    }
    let width = width.max(x);
    let bottom = match (&route, pair) {
        (Some(route), Some((a, b))) => {
            let (a, b) = (all.devices()[a].address, all.devices()[b].address);
            format!("{a} to {b}: {}, distance {}: {route}", route.map.name(), route.distance)
        }
        _ => "distance and map from each publisher (columns) to each client (rows)".into(),
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">PCI peer memory</text>\n{body}\
         <text x=\"{LEFT}\" y=\"{}\">{}</text>\n</svg>\n",
        height - 18,
        escaped(&bottom)
    )
}
